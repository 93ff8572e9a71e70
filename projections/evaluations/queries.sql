-- name: evaluation
-- One evaluation; a NULL tenant means any.
-- params: eval_id, tenant
SELECT
    eval_id, tenant, run_id, def_id, score, dimensions, judgement, rationale, emitter_role,
    emitter_agent_id, emitter_run_id, created_ns
FROM evaluations
WHERE eval_id = :eval_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant);

-- name: evaluations_of_run
-- Evaluations of a run, newest first; a NULL tenant means any.
-- params: run_id, tenant, row_limit
SELECT
    eval_id, tenant, run_id, def_id, score, dimensions, judgement, rationale, emitter_role,
    emitter_agent_id, emitter_run_id, created_ns
FROM evaluations
WHERE run_id = :run_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY created_ns DESC, seq DESC
LIMIT :row_limit;

-- name: evaluations_of_def
-- Evaluations of all runs of a definition, newest first; a NULL tenant means any.
-- params: def_id, tenant, row_limit
SELECT
    eval_id, tenant, run_id, def_id, score, dimensions, judgement, rationale, emitter_role,
    emitter_agent_id, emitter_run_id, created_ns
FROM evaluations
WHERE def_id = :def_id AND def_id <> ''
  AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY created_ns DESC, seq DESC
LIMIT :row_limit;

-- name: evaluation_stats
-- Statistics of a definition's evaluations: of the score, of the score by the role of who judged,
-- and of each dimension. A NULL tenant means any. The median of an even number of values is the
-- mean of the two in the middle; the latest is the newest by time.
-- params: def_id, tenant
WITH chosen AS (
    SELECT eval_id, score, emitter_role, created_ns, seq
    FROM evaluations
    WHERE def_id = :def_id AND def_id <> ''
      AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
),
measured AS (
    SELECT 'score' AS kind, '' AS name, score AS value, created_ns, seq FROM chosen
    UNION ALL
    SELECT 'role', emitter_role, score, created_ns, seq FROM chosen
    UNION ALL
    SELECT 'dimension', d.name, d.value, c.created_ns, c.seq
    FROM chosen AS c JOIN evaluation_dimensions AS d ON d.eval_id = c.eval_id
),
ranked AS (
    SELECT
        kind, name, value,
        ROW_NUMBER() OVER (PARTITION BY kind, name ORDER BY value) AS place,
        ROW_NUMBER() OVER (PARTITION BY kind, name ORDER BY created_ns DESC, seq DESC) AS age,
        COUNT(*) OVER (PARTITION BY kind, name) AS total
    FROM measured
)
SELECT
    kind, name, AVG(value),
    AVG(CASE WHEN place IN ((total + 1) / 2, (total + 2) / 2) THEN value END),
    MIN(value), MAX(value), MAX(CASE WHEN age = 1 THEN value END), MAX(total)
FROM ranked
GROUP BY kind, name;

-- name: evaluation_problems
-- Messages of evaluations that could not be read.
-- params: row_limit
SELECT seq, subject, reason FROM evaluation_faults ORDER BY seq LIMIT :row_limit;

-- name: all_of_evaluations
-- Every row in a fixed order, for verify.
SELECT * FROM evaluations ORDER BY eval_id;

-- name: all_of_evaluation_dimensions
-- Every row in a fixed order, for verify.
SELECT * FROM evaluation_dimensions ORDER BY eval_id, place;

-- name: all_of_evaluation_faults
-- Every row in a fixed order, for verify.
SELECT * FROM evaluation_faults ORDER BY seq;
