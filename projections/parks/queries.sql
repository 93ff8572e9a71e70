-- name: due_parks
-- Parked runs that have something to do, at most once for each cause: something is in the inbox,
-- the time has come, the runtime is paused no longer (paused = 0), a child has ended. The last
-- column rises when there is more of the cause. (A cross join says which table comes first.)
-- params: now_ns, paused
SELECT p.run_id, r.tenant, p.last_commit, p.last_seq, 'inbox', p.called_seq
FROM parks AS p CROSS JOIN runs AS r
WHERE r.run_id = p.run_id AND p.called_seq > 0 AND r.status = 'running' AND r.fault_seq = 0
UNION ALL
SELECT p.run_id, r.tenant, p.last_commit, p.last_seq, 'time', p.until_ns
FROM parks AS p CROSS JOIN runs AS r
WHERE r.run_id = p.run_id AND p.until_ns > 0 AND p.until_ns <= :now_ns
  AND r.status = 'running' AND r.fault_seq = 0
UNION ALL
SELECT p.run_id, r.tenant, p.last_commit, p.last_seq, 'pause', 0
FROM parks AS p CROSS JOIN runs AS r
WHERE r.run_id = p.run_id AND p.reason = 'pause' AND :paused = 0
  AND r.status = 'running' AND r.fault_seq = 0
UNION ALL
SELECT p.run_id, r.tenant, p.last_commit, p.last_seq, 'children', COUNT(*)
FROM parks AS p
JOIN runs AS r ON r.run_id = p.run_id
JOIN expected_children AS c ON c.parent_run = p.run_id
JOIN runs AS child ON child.run_id = c.child_run
WHERE p.reason = 'calls' AND r.status = 'running' AND r.fault_seq = 0
  AND child.status <> 'running'
GROUP BY p.run_id, r.tenant, p.last_commit, p.last_seq;

-- name: abandoned_children
-- Children that run although their parent has ended.
-- No parameters.
SELECT child.run_id, child.tenant, child.last_commit, child.last_seq, 'parent', 0
FROM runs AS child JOIN runs AS parent ON parent.run_id = child.parent_run
WHERE child.status = 'running' AND child.parent_run <> '' AND child.fault_seq = 0
  AND parent.status <> 'running';

-- name: parked_count
-- How many runs nobody advances.
-- No parameters.
SELECT COUNT(*) FROM parks;

-- name: all_of_parks
-- Every row in a fixed order, for verify.
SELECT * FROM parks ORDER BY run_id;

-- name: all_of_expected_children
-- Every row in a fixed order, for verify.
SELECT * FROM expected_children ORDER BY parent_run, tool_use_id, child_index;
