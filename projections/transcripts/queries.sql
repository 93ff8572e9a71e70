-- name: transcript_of_session
-- All rows of all runs of a session: of each run those of its first commit, its second, and
-- the rest. A damaged journal counts up to its damage. (A plus keeps SQLite from using a bound of
-- seq that is worse than the other.)
-- params: session_id, after
WITH chosen AS (
    SELECT run_id, session_id, tenant, first_seq, second_seq, fault_seq FROM runs
    WHERE run_id = 'r_' || substr(:session_id, 3) AND session_id = :session_id
    UNION ALL
    SELECT run_id, session_id, tenant, first_seq, second_seq, fault_seq FROM runs
    WHERE session_id = :session_id AND run_id <> 'r_' || substr(session_id, 3)
)
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM chosen AS r CROSS JOIN transcripts AS t
WHERE t.seq >= r.first_seq * 1024 AND t.seq < (r.first_seq + 1) * 1024 AND +t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
UNION ALL
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM chosen AS r CROSS JOIN transcripts AS t
WHERE t.seq >= r.second_seq * 1024 AND t.seq < (r.second_seq + 1) * 1024 AND +t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
UNION ALL
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM chosen AS r CROSS JOIN transcripts AS t
WHERE t.run_id = r.run_id AND t.c > 2 AND t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
ORDER BY 1;

-- name: transcript_of_run
-- The rows of one run, the same way.
-- params: run_id, after
WITH chosen AS (
    SELECT run_id, session_id, tenant, first_seq, second_seq, fault_seq FROM runs WHERE run_id = :run_id
)
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM chosen AS r CROSS JOIN transcripts AS t
WHERE t.seq >= r.first_seq * 1024 AND t.seq < (r.first_seq + 1) * 1024 AND +t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
UNION ALL
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM chosen AS r CROSS JOIN transcripts AS t
WHERE t.seq >= r.second_seq * 1024 AND t.seq < (r.second_seq + 1) * 1024 AND +t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
UNION ALL
SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
FROM chosen AS r CROSS JOIN transcripts AS t
WHERE t.run_id = r.run_id AND t.c > 2 AND t.seq > :after
  AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
ORDER BY 1;

-- name: history_of_session
-- The oldest rows of a session, the same way: from a time on, and of the types that are named
-- between bars (an empty text means all).
-- params: session_id, since_ns, types, row_limit
WITH chosen AS (
    SELECT run_id, session_id, tenant, first_seq, second_seq, fault_seq FROM runs
    WHERE run_id = 'r_' || substr(:session_id, 3) AND session_id = :session_id
    UNION ALL
    SELECT run_id, session_id, tenant, first_seq, second_seq, fault_seq FROM runs
    WHERE session_id = :session_id AND run_id <> 'r_' || substr(session_id, 3)
),
found AS (
    SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
    FROM chosen AS r CROSS JOIN transcripts AS t
    WHERE t.seq >= r.first_seq * 1024 AND t.seq < (r.first_seq + 1) * 1024
      AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
    UNION ALL
    SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
    FROM chosen AS r CROSS JOIN transcripts AS t
    WHERE t.seq >= r.second_seq * 1024 AND t.seq < (r.second_seq + 1) * 1024
      AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
    UNION ALL
    SELECT t.seq, r.session_id, t.run_id, r.tenant, t.ts_ns, t.type, t.event, t.payload
    FROM chosen AS r CROSS JOIN transcripts AS t
    WHERE t.run_id = r.run_id AND t.c > 2
      AND (r.fault_seq = 0 OR t.seq < r.fault_seq * 1024)
)
SELECT seq, session_id, run_id, tenant, ts_ns, type, event, payload
FROM found
WHERE ts_ns >= :since_ns
  AND (CAST(:types AS TEXT) = '' OR replace(:types, '|' || type || '|', '') <> :types)
ORDER BY seq
LIMIT :row_limit;

-- name: held_in_session
-- Runs of a session that wait for a newer version of this software.
-- params: session_id
SELECT run_id, fault FROM runs
WHERE run_id = 'r_' || substr(:session_id, 3) AND session_id = :session_id AND fault_kind = 'held'
UNION ALL
SELECT run_id, fault FROM runs
WHERE session_id = :session_id AND run_id <> 'r_' || substr(session_id, 3)
  AND fault_kind = 'held';

-- name: all_of_transcripts
-- Every row in a fixed order, for verify.
SELECT * FROM transcripts ORDER BY seq;
