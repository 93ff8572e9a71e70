-- name: memory_get
-- One live row.
-- params: tenant, scope, scope_id, key, now_ns
SELECT tenant, scope, scope_id, key, value, expires_ns, created_ns, updated_ns
FROM memory
WHERE tenant = :tenant AND scope = :scope AND scope_id = :scope_id AND key = :key
  AND (expires_ns IS NULL OR expires_ns > :now_ns);

-- name: memory_list
-- Live rows whose key lies in [low, high), in byte order.
-- params: tenant, scope, scope_id, low, high, now_ns, row_limit
SELECT tenant, scope, scope_id, key, value, expires_ns, created_ns, updated_ns
FROM memory
WHERE tenant = :tenant AND scope = :scope AND scope_id = :scope_id
  AND key >= :low AND key < :high
  AND (expires_ns IS NULL OR expires_ns > :now_ns)
ORDER BY key
LIMIT :row_limit;

-- name: memory_usage
-- Number and size (key and value bytes) of the live rows of one scope id.
-- params: tenant, scope, scope_id, now_ns
SELECT COUNT(*), CAST(COALESCE(SUM(size), 0) AS BIGINT)
FROM memory
WHERE tenant = :tenant AND scope = :scope AND scope_id = :scope_id
  AND (expires_ns IS NULL OR expires_ns > :now_ns);

-- name: memory_scopes
-- Scope ids that hold live rows, most recently written first; a NULL tenant means all.
-- params: scope, tenant, now_ns, row_limit
SELECT tenant, scope_id, COUNT(*), CAST(SUM(size) AS BIGINT), MAX(updated_ns)
FROM memory
WHERE scope = :scope AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
  AND (expires_ns IS NULL OR expires_ns > :now_ns)
GROUP BY tenant, scope_id
ORDER BY MAX(updated_ns) DESC, tenant, scope_id
LIMIT :row_limit;

-- name: memory_problems
-- Messages of memory that could not be read.
-- params: row_limit
SELECT seq, subject, reason FROM memory_faults ORDER BY seq LIMIT :row_limit;

-- name: all_of_memory
-- Every row in a fixed order, for verify.
SELECT * FROM memory ORDER BY tenant, scope, scope_id, key;

-- name: all_of_memory_faults
-- Every row in a fixed order, for verify.
SELECT * FROM memory_faults ORDER BY seq;
