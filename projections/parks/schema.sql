-- name: create_parks
-- One row for each run whose last commit let it go. until_ns is when it must be looked at (unix
-- nanoseconds, 0 for never), last_commit and last_seq name that commit, called_seq is the newest
-- message in the run's inbox since then (0 for none).
CREATE TABLE parks (
    run_id      TEXT PRIMARY KEY,
    reason      TEXT NOT NULL,
    until_ns    BIGINT NOT NULL,
    last_commit BIGINT NOT NULL,
    last_seq    BIGINT NOT NULL,
    called_seq  BIGINT NOT NULL
);

-- name: create_expected_children
-- Children that a run has started and whose end it has not recorded.
CREATE TABLE expected_children (
    parent_run  TEXT NOT NULL,
    tool_use_id TEXT NOT NULL,
    child_index BIGINT NOT NULL,
    child_run   TEXT NOT NULL,
    PRIMARY KEY (parent_run, tool_use_id, child_index)
);
