-- name: create_evaluations_by_run
-- The evaluations of a run.
CREATE INDEX evaluations_by_run ON evaluations (run_id);

-- name: create_evaluations_by_def
-- The evaluations of a definition; those of static agents cost it nothing.
CREATE INDEX evaluations_by_def ON evaluations (def_id) WHERE def_id <> '';
