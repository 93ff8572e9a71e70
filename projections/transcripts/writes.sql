-- name: add_row
-- A public event, once.
-- table: transcripts
-- params: seq, run_id, c, ts_ns, type, event, payload
INSERT INTO transcripts (seq, run_id, c, ts_ns, type, event, payload)
VALUES (:seq, :run_id, :c, :ts_ns, :type, :event, :payload)
ON CONFLICT (seq) DO NOTHING;
