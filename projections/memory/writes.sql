-- name: put_memory
-- The key holds this value from now on.
-- table: memory
-- params: tenant, scope, scope_id, key, value, expires_ns, created_ns, updated_ns, effect_id,
--   size, seq
INSERT INTO memory (
    tenant, scope, scope_id, key, value, expires_ns, created_ns, updated_ns, effect_id, size,
    seq
)
VALUES (
    :tenant, :scope, :scope_id, :key, :value, :expires_ns, :created_ns, :updated_ns, :effect_id,
    :size, :seq
)
ON CONFLICT (tenant, scope, scope_id, key) DO UPDATE SET
    value = excluded.value,
    expires_ns = excluded.expires_ns,
    created_ns = excluded.created_ns,
    updated_ns = excluded.updated_ns,
    effect_id = excluded.effect_id,
    size = excluded.size,
    seq = excluded.seq;

-- name: delete_memory
-- The key holds nothing from now on.
-- table: memory
-- params: tenant, scope, scope_id, key
DELETE FROM memory
WHERE tenant = :tenant AND scope = :scope AND scope_id = :scope_id AND key = :key;

-- name: note_fault
-- A message that could not be read.
-- table: memory_faults
-- params: seq, subject, reason
INSERT INTO memory_faults (seq, subject, reason)
VALUES (:seq, :subject, :reason)
ON CONFLICT (seq) DO NOTHING;
