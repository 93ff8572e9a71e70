-- name: put_hook
-- The hook is this from now on; one that exists keeps its place in the chain.
-- table: hooks
-- params: subject, position, id, tenant, owner, name, phase, agents, tools, callback_url,
--   fail_mode, timeout_ms, registered_ns
INSERT INTO hooks (
    subject, position, id, tenant, owner, name, phase, agents, tools, callback_url, fail_mode,
    timeout_ms, registered_ns
)
VALUES (
    :subject, :position, :id, :tenant, :owner, :name, :phase, :agents, :tools, :callback_url,
    :fail_mode, :timeout_ms, :registered_ns
)
ON CONFLICT (subject) DO UPDATE SET
    id = excluded.id,
    phase = excluded.phase,
    agents = excluded.agents,
    tools = excluded.tools,
    callback_url = excluded.callback_url,
    fail_mode = excluded.fail_mode,
    timeout_ms = excluded.timeout_ms,
    registered_ns = excluded.registered_ns;

-- name: delete_hook
-- The hook is gone; registered again it stands at the end.
-- table: hooks
-- params: subject
DELETE FROM hooks WHERE subject = :subject;

-- name: note_hook_fault
-- A message that could not be read.
-- table: hook_faults
-- params: seq, subject, reason
INSERT INTO hook_faults (seq, subject, reason)
VALUES (:seq, :subject, :reason)
ON CONFLICT (seq) DO NOTHING;
