-- name: create_view_versions
-- What the tables beside this one were folded with.
CREATE TABLE view_versions (
    projection TEXT PRIMARY KEY,
    version    BIGINT NOT NULL
);

-- name: create_view_vocabulary
-- Fingerprint of the event types that the last writer understood; one row.
CREATE TABLE view_vocabulary (
    fingerprint TEXT NOT NULL
);

-- name: create_view_positions
-- How far each stream is folded; moved in the transaction of the rows it speaks of.
CREATE TABLE view_positions (
    stream   TEXT PRIMARY KEY,
    position BIGINT NOT NULL,
    held     TEXT NOT NULL
);
