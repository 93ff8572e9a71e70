-- name: create_transcripts
-- One row for each public event; c is the number of its commit.
CREATE TABLE transcripts (
    seq     BIGINT PRIMARY KEY,
    run_id  TEXT NOT NULL,
    c       BIGINT NOT NULL,
    ts_ns   BIGINT NOT NULL,
    type    TEXT NOT NULL,
    event   TEXT NOT NULL,
    payload TEXT
);
