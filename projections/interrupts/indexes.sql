-- name: create_interrupts_by_run
-- The questions of a run, and through its runs those of a user.
CREATE INDEX interrupts_by_run ON interrupts (run_id);
