-- name: create_runs
-- One row for each run. status follows http-runs.md section 5; times are unix nanoseconds, 0 is
-- "not yet". owner and epoch are those of the last commit; last_* name that commit. first_seq and
-- second_seq are the stream sequences of commits 1 and 2, where a transcript begins. fault says
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
    parent_run                  TEXT NOT NULL,
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
    first_seq                   BIGINT NOT NULL,
    second_seq                  BIGINT NOT NULL,
    fault_kind                  TEXT NOT NULL,
    fault                       TEXT NOT NULL,
    fault_seq                   BIGINT NOT NULL
);

-- name: create_sessions
-- A session is described by its earliest run.
CREATE VIEW sessions AS
SELECT session_id, tenant, agent, user_id, started_ns AS created_ns
FROM (
    SELECT
        session_id, tenant, agent, user_id, started_ns,
        ROW_NUMBER() OVER (PARTITION BY session_id ORDER BY started_ns, run_id) AS place
    FROM runs
    WHERE session_id <> ''
) AS ordered
WHERE place = 1;

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

-- name: create_run_details
-- A run as its readers are told of it: the fields of Run (projections/rows.py) in their order.
-- awaited_* name the first of the calls that it waits for.
CREATE VIEW run_details AS
SELECT
    r.run_id, r.session_id, r.tenant, r.agent, r.agent_id, r.user_id, r.user_tier,
    r.parent_agent_id, r.parent_context, r.status, r.stop_reason, r.error, r.started_ns,
    r.completed_ns, r.input_tokens, r.output_tokens, r.cache_creation_input_tokens,
    r.cache_read_input_tokens, r.max_context_tokens, r.model, r.provider, r.interactive,
    r.origin, r.reader, r.principal, r.plan, r.machine, r.owner, r.epoch, r.parked,
    r.last_n, r.last_commit, r.last_hash, r.last_commit_ns, r.last_seq, r.fault_kind,
    r.fault, r.fault_seq,
    (SELECT a.state FROM awaits AS a WHERE a.run_id = r.run_id ORDER BY a.n LIMIT 1)
        AS awaited_state,
    (SELECT a.target FROM awaits AS a WHERE a.run_id = r.run_id ORDER BY a.n LIMIT 1)
        AS awaited_on
FROM runs AS r;
