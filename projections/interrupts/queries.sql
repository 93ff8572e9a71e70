-- name: interrupt
-- One question by its id. Pending ones of an ended run are cancelled, overdue ones timed out.
-- params: interrupt_id, now_ns
SELECT
    i.interrupt_id, i.run_id, r.tenant, r.user_id, r.agent_id, r.agent, i.kind, i.approval,
    CASE
        WHEN i.status <> 'pending' THEN i.status
        WHEN r.status <> 'running' THEN 'cancelled'
        WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN 'timed_out'
        ELSE 'pending' END,
    i.question, i.options, i.context, i.priority, i.answer, i.created_ns, i.expires_ns,
    CASE
        WHEN i.status <> 'pending' THEN i.resolved_ns
        WHEN r.status <> 'running' THEN r.completed_ns
        WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN i.expires_ns
        ELSE 0 END,
    CASE
        WHEN i.status <> 'pending' THEN i.resolved_by
        WHEN r.status <> 'running' THEN 'agent_cancel'
        WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN 'timeout'
        ELSE '' END,
    i.message
FROM interrupts AS i JOIN runs AS r ON r.run_id = i.run_id
WHERE i.interrupt_id = :interrupt_id;

-- name: interrupts_of_run
-- Questions of a run, newest first; NULL status or tenant means any.
-- params: run_id, tenant, status, now_ns, row_limit
SELECT * FROM (
    SELECT
        i.interrupt_id, i.run_id, r.tenant, r.user_id, r.agent_id, r.agent, i.kind, i.approval,
        CASE
            WHEN i.status <> 'pending' THEN i.status
            WHEN r.status <> 'running' THEN 'cancelled'
            WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN 'timed_out'
            ELSE 'pending' END AS status,
        i.question, i.options, i.context, i.priority, i.answer, i.created_ns, i.expires_ns,
        CASE
            WHEN i.status <> 'pending' THEN i.resolved_ns
            WHEN r.status <> 'running' THEN r.completed_ns
            WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN i.expires_ns
            ELSE 0 END AS resolved_ns,
        CASE
            WHEN i.status <> 'pending' THEN i.resolved_by
            WHEN r.status <> 'running' THEN 'agent_cancel'
            WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN 'timeout'
            ELSE '' END AS resolved_by,
        i.message
    FROM interrupts AS i JOIN runs AS r ON r.run_id = i.run_id
    WHERE i.run_id = :run_id
      AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
) AS shown
WHERE CAST(:status AS TEXT) IS NULL OR status = :status
ORDER BY created_ns DESC, interrupt_id DESC
LIMIT :row_limit;

-- name: interrupts_of_user
-- Questions of all runs of a user, newest first; NULL status or tenant means any.
-- params: user_id, tenant, status, now_ns, row_limit
SELECT * FROM (
    SELECT
        i.interrupt_id, i.run_id, r.tenant, r.user_id, r.agent_id, r.agent, i.kind, i.approval,
        CASE
            WHEN i.status <> 'pending' THEN i.status
            WHEN r.status <> 'running' THEN 'cancelled'
            WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN 'timed_out'
            ELSE 'pending' END AS status,
        i.question, i.options, i.context, i.priority, i.answer, i.created_ns, i.expires_ns,
        CASE
            WHEN i.status <> 'pending' THEN i.resolved_ns
            WHEN r.status <> 'running' THEN r.completed_ns
            WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN i.expires_ns
            ELSE 0 END AS resolved_ns,
        CASE
            WHEN i.status <> 'pending' THEN i.resolved_by
            WHEN r.status <> 'running' THEN 'agent_cancel'
            WHEN i.expires_ns > 0 AND i.expires_ns <= :now_ns THEN 'timeout'
            ELSE '' END AS resolved_by,
        i.message
    FROM interrupts AS i JOIN runs AS r ON r.run_id = i.run_id
    WHERE r.user_id = :user_id
      AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
) AS shown
WHERE CAST(:status AS TEXT) IS NULL OR status = :status
ORDER BY created_ns DESC, interrupt_id DESC
LIMIT :row_limit;

-- name: all_of_interrupts
-- Every row in a fixed order, for verify.
SELECT * FROM interrupts ORDER BY interrupt_id;
