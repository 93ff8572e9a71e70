-- name: add_evaluation
-- An evaluation, once.
-- table: evaluations
-- params: eval_id, tenant, run_id, def_id, score, dimensions, judgement, rationale, emitter_role,
--   emitter_agent_id, emitter_run_id, created_ns, seq
INSERT INTO evaluations (
    eval_id, tenant, run_id, def_id, score, dimensions, judgement, rationale, emitter_role,
    emitter_agent_id, emitter_run_id, created_ns, seq
)
VALUES (
    :eval_id, :tenant, :run_id, :def_id, :score, :dimensions, :judgement, :rationale,
    :emitter_role, :emitter_agent_id, :emitter_run_id, :created_ns, :seq
)
ON CONFLICT (eval_id) DO NOTHING;

-- name: add_dimension
-- One dimension of an evaluation, once.
-- table: evaluation_dimensions
-- params: eval_id, place, name, value
INSERT INTO evaluation_dimensions (eval_id, place, name, value)
VALUES (:eval_id, :place, :name, :value)
ON CONFLICT (eval_id, place) DO NOTHING;

-- name: note_evaluation_fault
-- A message that could not be read.
-- table: evaluation_faults
-- params: seq, subject, reason
INSERT INTO evaluation_faults (seq, subject, reason)
VALUES (:seq, :subject, :reason)
ON CONFLICT (seq) DO NOTHING;
