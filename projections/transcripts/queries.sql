-- name: transcript_of_session
-- All rows of all runs of a session; a damaged journal counts up to its damage.
-- params: session_id, after
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM runs AS r JOIN transcripts AS t ON t.run_id = r.run_id
WHERE r.session_id = :session_id AND t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
ORDER BY t.seq;

-- name: transcript_of_run
-- The rows of one run; a damaged journal counts up to its damage.
-- params: run_id, after
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM runs AS r JOIN transcripts AS t ON t.run_id = r.run_id
WHERE r.run_id = :run_id AND t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
ORDER BY t.seq;

-- name: held_in_session
-- Runs of a session that wait for a newer version of this software.
-- params: session_id
SELECT run_id, fault FROM runs WHERE session_id = :session_id AND fault_kind = 'held';

-- name: all_of_transcripts
-- Every row in a fixed order, for verify.
SELECT * FROM transcripts ORDER BY seq;
