-- name: set_version
-- Note what a projection's tables are folded with.
-- params: projection, version
INSERT INTO view_versions (projection, version) VALUES (:projection, :version);

-- name: set_vocabulary
-- Note what the writer understands (after forget_vocabulary).
-- params: fingerprint
INSERT INTO view_vocabulary (fingerprint) VALUES (:fingerprint);

-- name: forget_vocabulary
-- Make room for set_vocabulary.
DELETE FROM view_vocabulary;

-- name: set_position
-- First position of a stream.
-- params: stream, position
INSERT INTO view_positions (stream, position, held) VALUES (:stream, :position, '');

-- name: move_position
-- The rows of this transaction reach this far.
-- params: stream, position, held
UPDATE view_positions SET position = :position, held = :held WHERE stream = :stream;
