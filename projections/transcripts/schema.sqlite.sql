-- name: create_transcripts
-- One row for each public event; seq is the rowid, so rows are stored in the order they come.
CREATE TABLE transcripts (
    seq     INTEGER PRIMARY KEY,
    run_id  TEXT NOT NULL,
    ts_ns   BIGINT NOT NULL,
    type    TEXT NOT NULL,
    event   TEXT NOT NULL,
    payload TEXT
);

-- name: create_transcripts_by_run
-- Finds the rows of a run in order.
CREATE INDEX transcripts_by_run ON transcripts (run_id, seq);
