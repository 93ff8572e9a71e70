-- name: create_runs_by_session
-- The runs of a session, but for the first one, which shares the session's digits: it is found
-- by its own id. So a plain run costs neither this index nor the next an entry.
CREATE INDEX runs_by_session ON runs (session_id)
WHERE run_id <> 'r_' || substr(session_id, 3);

-- name: create_runs_by_handle
-- The runs of a handle, which may be used again after its run ended. A generated handle has its
-- run's digits, and the run is found by its own id.
CREATE INDEX runs_by_handle ON runs (agent_id)
WHERE run_id <> 'r_' || substr(agent_id, 3);

-- name: create_runs_by_user
-- The runs of a user, newest start first.
CREATE INDEX runs_by_user ON runs (user_id, started_ns);

-- name: create_runs_by_parent
-- The children of a run.
CREATE INDEX runs_by_parent ON runs (parent_agent_id) WHERE parent_agent_id <> '';

-- name: create_runs_running
-- All that has not ended; ended runs cost it nothing.
CREATE INDEX runs_running ON runs (run_id) WHERE status = 'running';

-- name: create_runs_advancing
-- What the sweeper looks at; parked runs cost it nothing.
CREATE INDEX runs_advancing ON runs (run_id) WHERE status = 'running' AND parked = 0;

-- name: create_runs_children
-- Children that have not ended, by their parent.
CREATE INDEX runs_children ON runs (parent_run) WHERE status = 'running' AND parent_run <> '';

-- name: create_runs_faulty
-- Runs whose fold stopped.
CREATE INDEX runs_faulty ON runs (fault_seq) WHERE fault_seq > 0;
