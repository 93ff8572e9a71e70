-- name: create_memory
-- One row for each key that holds a value; key is UTF-8 bytes, value is JSON
-- text, size counts the bytes of both.
CREATE TABLE memory (
    tenant     TEXT NOT NULL,
    scope      TEXT NOT NULL,
    scope_id   TEXT NOT NULL,
    key        BYTEA NOT NULL,
    value      TEXT NOT NULL,
    expires_ns BIGINT,
    created_ns BIGINT NOT NULL,
    updated_ns BIGINT NOT NULL,
    effect_id  TEXT NOT NULL,
    size       BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    PRIMARY KEY (tenant, scope, scope_id, key)
);

-- name: create_memory_faults
-- Messages that could not be read.
CREATE TABLE memory_faults (
    seq     BIGINT PRIMARY KEY,
    subject TEXT NOT NULL,
    reason  TEXT NOT NULL
);
