-- name: session
-- One session by its id.
-- params: session_id
SELECT session_id, tenant, agent, user_id, created_ns
FROM sessions
WHERE session_id = :session_id;

-- name: all_of_sessions
-- Every row in a fixed order, for verify.
SELECT * FROM sessions ORDER BY session_id;
