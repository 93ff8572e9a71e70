-- name: create_hooks
-- One row for each registered hook; position orders the chain, agents and tools
-- are JSON lists or NULL.
CREATE TABLE hooks (
    subject       TEXT PRIMARY KEY,
    position      BIGINT NOT NULL,
    id            TEXT NOT NULL,
    tenant        TEXT NOT NULL,
    owner         TEXT NOT NULL,
    name          TEXT NOT NULL,
    phase         TEXT NOT NULL,
    agents        TEXT,
    tools         TEXT,
    callback_url  TEXT NOT NULL,
    fail_mode     TEXT NOT NULL,
    timeout_ms    BIGINT NOT NULL,
    registered_ns BIGINT NOT NULL
);

-- name: create_hook_faults
-- Messages that could not be read.
CREATE TABLE hook_faults (
    seq     BIGINT PRIMARY KEY,
    subject TEXT NOT NULL,
    reason  TEXT NOT NULL
);
