-- name: put_park
-- The run was let go by this commit.
-- table: parks
-- params: run_id, reason, until_ns, last_commit, last_seq
INSERT INTO parks (run_id, reason, until_ns, last_commit, last_seq, called_seq)
VALUES (:run_id, :reason, :until_ns, :last_commit, :last_seq, 0)
ON CONFLICT (run_id) DO UPDATE SET
    reason = excluded.reason,
    until_ns = excluded.until_ns,
    last_commit = excluded.last_commit,
    last_seq = excluded.last_seq,
    called_seq = 0;

-- name: call_park
-- Something reached the inbox of a run; it matters here while the run is parked.
-- table: parks
-- params: run_id, seq
UPDATE parks SET called_seq = :seq WHERE run_id = :run_id;

-- name: end_park
-- Somebody took the run up.
-- table: parks
-- params: run_id
DELETE FROM parks WHERE run_id = :run_id;

-- name: expect_child
-- A child was started.
-- table: expected_children
-- params: parent_run, tool_use_id, child_index, child_run
INSERT INTO expected_children (parent_run, tool_use_id, child_index, child_run)
VALUES (:parent_run, :tool_use_id, :child_index, :child_run)
ON CONFLICT (parent_run, tool_use_id, child_index) DO UPDATE SET
    child_run = excluded.child_run;

-- name: forget_child
-- The child's end is recorded.
-- table: expected_children
-- params: parent_run, tool_use_id, child_index
DELETE FROM expected_children
WHERE parent_run = :parent_run AND tool_use_id = :tool_use_id AND child_index = :child_index;

-- name: forget_children
-- The run ended before its children did.
-- table: expected_children
-- params: parent_run
DELETE FROM expected_children WHERE parent_run = :parent_run;
