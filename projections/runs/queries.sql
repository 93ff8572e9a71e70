-- name: session
-- One session by its id, as its earliest run describes it.
-- params: session_id
SELECT session_id, tenant, agent, user_id, started_ns, run_id
FROM runs
WHERE run_id = 'r_' || substr(:session_id, 3) AND session_id = :session_id
UNION ALL
SELECT session_id, tenant, agent, user_id, started_ns, run_id
FROM runs
WHERE session_id = :session_id AND run_id <> 'r_' || substr(session_id, 3)
ORDER BY started_ns, run_id
LIMIT 1;

-- name: run
-- One run by its id.
-- params: run_id
SELECT * FROM run_details AS r
WHERE r.run_id = :run_id;

-- name: run_by_agent_id
-- The live run of a tracking handle, else the most recently started; a NULL tenant means any.
-- Runs that never started, because the handle was another's, come last.
-- params: agent_id, tenant
SELECT * FROM run_details AS r
WHERE r.run_id IN (
    SELECT run_id FROM runs
    WHERE run_id = 'r_' || substr(:agent_id, 3) AND agent_id = :agent_id
    UNION ALL
    SELECT run_id FROM runs
    WHERE agent_id = :agent_id AND run_id <> 'r_' || substr(agent_id, 3)
) AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
ORDER BY
    (r.error = 'agent_id collision; run never started'),
    (r.status = 'running') DESC, r.started_ns DESC, r.run_id DESC
LIMIT 1;

-- name: runs_of_user
-- Runs of a user, newest start first; NULL status or tenant means any.
-- params: user_id, status, tenant, row_limit
SELECT * FROM run_details AS r
WHERE r.user_id = :user_id
  AND (CAST(:status AS TEXT) IS NULL OR r.status = :status)
  AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
ORDER BY r.started_ns DESC, r.run_id DESC
LIMIT :row_limit;

-- name: runs_of_session
-- Runs of a session in the order they started.
-- params: session_id
SELECT * FROM run_details AS r
WHERE r.run_id IN (
    SELECT run_id FROM runs
    WHERE run_id = 'r_' || substr(:session_id, 3) AND session_id = :session_id
    UNION ALL
    SELECT run_id FROM runs
    WHERE session_id = :session_id AND run_id <> 'r_' || substr(session_id, 3)
)
ORDER BY r.started_ns, r.run_id;

-- name: running_runs
-- Runs that can make progress or wait, least recently moved first, without those whose fold
-- stopped; a NULL owner means any.
-- params: owner
SELECT * FROM run_details AS r
WHERE r.status = 'running' AND r.fault_seq = 0
  AND (CAST(:owner AS TEXT) IS NULL OR r.owner = :owner)
ORDER BY r.last_seq;

-- name: advancing_runs
-- Runs that somebody should be advancing, least recently moved first.
-- No parameters.
SELECT * FROM run_details AS r
WHERE r.status = 'running' AND r.parked = 0 AND r.fault_seq = 0
ORDER BY r.last_seq;

-- name: descendants
-- Running runs below a handle, however deep.
-- params: agent_id, tenant
WITH RECURSIVE tree (agent_id, run_id) AS (
    SELECT c.agent_id, c.run_id FROM runs AS c
    WHERE c.parent_agent_id = :agent_id AND c.parent_agent_id <> '' AND c.tenant = :tenant
    UNION
    SELECT c.agent_id, c.run_id FROM runs AS c JOIN tree AS t ON c.parent_agent_id = t.agent_id
    WHERE c.parent_agent_id <> '' AND c.tenant = :tenant
)
SELECT r.* FROM run_details AS r JOIN tree AS t ON t.run_id = r.run_id
WHERE r.status = 'running'
ORDER BY r.started_ns, r.run_id;

-- name: live_counts
-- Running runs of each user, and how many of them are parked.
-- No parameters.
SELECT tenant, user_id, COUNT(*), CAST(SUM(parked) AS BIGINT)
FROM runs
WHERE status = 'running' AND fault_seq = 0
GROUP BY tenant, user_id;

-- name: faulty_runs
-- Runs whose fold stopped, in the order they did.
-- params: row_limit
SELECT run_id, tenant, fault_kind, fault, fault_seq
FROM runs WHERE fault_seq > 0 ORDER BY fault_seq LIMIT :row_limit;

-- name: any_held
-- Whether some run waits for a newer version of this software.
-- No parameters.
SELECT COUNT(*) FROM runs WHERE fault_seq > 0 AND fault_kind = 'held';

-- name: all_of_runs
-- Every row in a fixed order, for verify.
SELECT * FROM runs ORDER BY run_id;

-- name: all_of_awaits
-- Every row in a fixed order, for verify.
SELECT * FROM awaits ORDER BY run_id, tool_use_id;

-- name: witnesses
-- The last commit of every run that was ever seen: what a journal must at least hold.
-- params:
SELECT r.run_id, r.tenant, r.last_commit, r.last_seq FROM runs AS r ORDER BY r.run_id;
