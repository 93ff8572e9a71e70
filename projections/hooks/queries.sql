-- name: hooks
-- Hooks in the order of their chain; a NULL tenant means all.
-- params: tenant
SELECT
    id, tenant, owner, name, phase, agents, tools, callback_url, fail_mode, timeout_ms,
    registered_ns
FROM hooks
WHERE CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant
ORDER BY position;

-- name: hook_problems
-- Messages of hooks that could not be read.
-- params: row_limit
SELECT seq, subject, reason FROM hook_faults ORDER BY seq LIMIT :row_limit;

-- name: all_of_hooks
-- Every row in a fixed order, for verify.
SELECT * FROM hooks ORDER BY subject;

-- name: all_of_hook_faults
-- Every row in a fixed order, for verify.
SELECT * FROM hook_faults ORDER BY seq;
