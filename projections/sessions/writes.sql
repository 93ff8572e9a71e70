-- name: open_session
-- A run names the session; the earliest run wins, in whatever order two streams are folded.
-- table: sessions
-- params: session_id, tenant, agent, user_id, created_ns
INSERT INTO sessions (session_id, tenant, agent, user_id, created_ns)
VALUES (:session_id, :tenant, :agent, :user_id, :created_ns)
ON CONFLICT (session_id) DO UPDATE SET
    tenant = excluded.tenant,
    agent = excluded.agent,
    user_id = excluded.user_id,
    created_ns = excluded.created_ns
WHERE excluded.created_ns < sessions.created_ns;
