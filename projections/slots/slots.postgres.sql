-- name: create_home
-- The schema that survives every rebuild.
CREATE SCHEMA IF NOT EXISTS loomcycle_views;

-- name: create_serving
-- The slot that readers use; no row while nothing is served.
CREATE TABLE IF NOT EXISTS loomcycle_views.serving (slot TEXT NOT NULL);

-- name: create_requests
-- What readers and operators ask of the writer.
CREATE TABLE IF NOT EXISTS loomcycle_views.requests (request TEXT PRIMARY KEY);

-- name: drop_a
-- Empty slot a.
DROP SCHEMA IF EXISTS loomcycle_views_a CASCADE;

-- name: create_a
-- Slot a.
CREATE SCHEMA loomcycle_views_a;

-- name: drop_b
-- Empty slot b.
DROP SCHEMA IF EXISTS loomcycle_views_b CASCADE;

-- name: create_b
-- Slot b.
CREATE SCHEMA loomcycle_views_b;

-- name: drop_scratch
-- Empty the place where verify folds.
DROP SCHEMA IF EXISTS loomcycle_views_scratch CASCADE;

-- name: create_scratch
-- The place where verify folds.
CREATE SCHEMA loomcycle_views_scratch;

-- name: use_schema
-- Names of tables mean those of this schema from now on.
-- params: name
SELECT set_config('search_path', :name, false);

-- name: lock
-- Become the only writer; the lock ends with the connection.
SELECT pg_try_advisory_lock(hashtextextended('loomcycle_views', 0));

-- name: unlock
-- Let another process write.
SELECT pg_advisory_unlock(hashtextextended('loomcycle_views', 0));

-- name: serving
-- The slot that is served.
SELECT slot FROM loomcycle_views.serving;

-- name: clear_serving
-- Serve nothing.
DELETE FROM loomcycle_views.serving;

-- name: set_serving
-- Serve a slot (after clear_serving).
-- params: slot
INSERT INTO loomcycle_views.serving (slot) VALUES (:slot);

-- name: ask
-- Leave a request for the writer.
-- params: request
INSERT INTO loomcycle_views.requests (request) VALUES (:request) ON CONFLICT DO NOTHING;

-- name: take_requests
-- Take what was asked.
DELETE FROM loomcycle_views.requests RETURNING request;

-- name: lock_positions
-- Nobody else moves while this transaction lasts.
SELECT stream, position FROM view_positions FOR UPDATE;
