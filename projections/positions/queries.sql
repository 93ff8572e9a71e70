-- name: versions
-- What these tables were folded with.
SELECT projection, version FROM view_versions;

-- name: vocabulary
-- Fingerprint of the event types that the last writer understood.
SELECT fingerprint FROM view_vocabulary;

-- name: positions
-- How far each stream is folded, and why it is held there.
SELECT stream, position, held FROM view_positions;
