-- name: create_runs
-- One row for each run. status follows http-runs.md section 5; times are unix nanoseconds, 0 is
-- "not yet". owner and epoch are those of the last commit; last_* name that commit. fault says
-- why the fold of the run stopped at stream sequence fault_seq, fault_kind whether the journal
-- is broken or the event is one of a newer version (held).
CREATE TABLE runs (
    run_id                      TEXT PRIMARY KEY,
    session_id                  TEXT NOT NULL,
    tenant                      TEXT NOT NULL,
    agent                       TEXT NOT NULL,
    agent_id                    TEXT NOT NULL,
    user_id                     TEXT NOT NULL,
    user_tier                   TEXT NOT NULL,
    parent_agent_id             TEXT NOT NULL,
    parent_context              TEXT NOT NULL,
    status                      TEXT NOT NULL,
    stop_reason                 TEXT NOT NULL,
    error                       TEXT NOT NULL,
    started_ns                  BIGINT NOT NULL,
    completed_ns                BIGINT NOT NULL,
    input_tokens                BIGINT NOT NULL,
    output_tokens               BIGINT NOT NULL,
    cache_creation_input_tokens BIGINT NOT NULL,
    cache_read_input_tokens     BIGINT NOT NULL,
    max_context_tokens          BIGINT NOT NULL,
    model                       TEXT NOT NULL,
    provider                    TEXT NOT NULL,
    interactive                 BIGINT NOT NULL,
    origin                      TEXT NOT NULL,
    reader                      TEXT NOT NULL,
    principal                   TEXT NOT NULL,
    plan                        TEXT NOT NULL,
    machine                     BIGINT NOT NULL,
    owner                       TEXT NOT NULL,
    epoch                       BIGINT NOT NULL,
    parked                      BIGINT NOT NULL,
    last_n                      BIGINT NOT NULL,
    last_commit                 BIGINT NOT NULL,
    last_hash                   TEXT NOT NULL,
    last_commit_ns              BIGINT NOT NULL,
    last_seq                    BIGINT NOT NULL,
    fault_kind                  TEXT NOT NULL,
    fault                       TEXT NOT NULL,
    fault_seq                   BIGINT NOT NULL
);

-- name: create_runs_by_session
-- The runs of a session.
CREATE INDEX runs_by_session ON runs (session_id);

-- name: create_runs_by_handle
-- (agent id, newest start) -> run: a handle may be used again after its run ended.
CREATE INDEX runs_by_handle ON runs (agent_id, started_ns, run_id);

-- name: create_runs_by_user
-- The runs of a user, newest start first.
CREATE INDEX runs_by_user ON runs (user_id, started_ns, run_id);

-- name: create_runs_by_parent
-- The children of a run.
CREATE INDEX runs_by_parent ON runs (parent_agent_id) WHERE parent_agent_id <> '';

-- name: create_runs_running
-- What the sweeper looks at; ended runs cost it nothing.
CREATE INDEX runs_running ON runs (run_id) WHERE status = 'running';

-- name: create_runs_faulty
-- Runs whose fold stopped.
CREATE INDEX runs_faulty ON runs (fault_seq) WHERE fault_seq > 0;

-- name: create_awaits
-- Open tool calls that wait for somebody else (http-runs.md section 10, awaited_state).
CREATE TABLE awaits (
    run_id      TEXT NOT NULL,
    tool_use_id TEXT NOT NULL,
    n           BIGINT NOT NULL,
    state       TEXT NOT NULL,
    target      TEXT NOT NULL,
    PRIMARY KEY (run_id, tool_use_id)
);
