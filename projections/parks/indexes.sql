-- name: create_parks_called
-- Parked runs with something in their inbox.
CREATE INDEX parks_called ON parks (run_id) WHERE called_seq > 0;

-- name: create_parks_timed
-- Parked runs by the time at which they must be looked at.
CREATE INDEX parks_timed ON parks (until_ns) WHERE until_ns > 0;

-- name: create_parks_by_reason
-- Finds what was parked by a pause, and what waits for calls.
CREATE INDEX parks_by_reason ON parks (reason);
