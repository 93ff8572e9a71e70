-- name: create_transcripts_by_run
-- Finds the rows of a run behind its second commit. Those of the first two are found by their
-- sequences, which the run names: so a run of two commits costs no index entry at all.
CREATE INDEX transcripts_by_run ON transcripts (run_id, seq) WHERE c > 2;
