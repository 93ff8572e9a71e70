-- name: create_sessions
-- One row for each session; agent, tenant and user are those of its first run.
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    agent      TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    created_ns BIGINT NOT NULL
);
