-- name: create_evaluations
-- One row for each evaluation. dimensions is a JSON object and judgement JSON text, both NULL when
-- not given; created_ns is unix nanoseconds, seq the stream sequence.
CREATE TABLE evaluations (
    eval_id          TEXT PRIMARY KEY,
    tenant           TEXT NOT NULL,
    run_id           TEXT NOT NULL,
    def_id           TEXT NOT NULL,
    score            DOUBLE PRECISION NOT NULL,
    dimensions       TEXT,
    judgement        TEXT,
    rationale        TEXT NOT NULL,
    emitter_role     TEXT NOT NULL,
    emitter_agent_id TEXT NOT NULL,
    emitter_run_id   TEXT NOT NULL,
    created_ns       BIGINT NOT NULL,
    seq              BIGINT NOT NULL
);

-- name: create_evaluation_dimensions
-- One row for each dimension of each evaluation; place is its place by name.
CREATE TABLE evaluation_dimensions (
    eval_id TEXT NOT NULL,
    place   BIGINT NOT NULL,
    name    TEXT NOT NULL,
    value   DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (eval_id, place)
);

-- name: create_evaluation_faults
-- Messages that could not be read.
CREATE TABLE evaluation_faults (
    seq     BIGINT PRIMARY KEY,
    subject TEXT NOT NULL,
    reason  TEXT NOT NULL
);
