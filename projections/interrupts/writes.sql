-- name: ask
-- A question is open.
-- table: interrupts
-- params: interrupt_id, run_id, kind, approval, question, options, context, priority, created_ns,
--   expires_ns
INSERT INTO interrupts (
    interrupt_id, run_id, kind, approval, status, question, options, context, priority, answer,
    created_ns, expires_ns, resolved_ns, resolved_by, message
)
VALUES (
    :interrupt_id, :run_id, :kind, :approval, 'pending', :question, :options, :context, :priority, '',
    :created_ns, :expires_ns, 0, '', ''
)
ON CONFLICT (interrupt_id) DO NOTHING;

-- name: notify
-- A message that waits for no answer: settled as soon as it is told.
-- table: interrupts
-- params: interrupt_id, run_id, kind, question, context, priority, created_ns
INSERT INTO interrupts (
    interrupt_id, run_id, kind, approval, status, question, options, context, priority, answer,
    created_ns, expires_ns, resolved_ns, resolved_by, message
)
VALUES (
    :interrupt_id, :run_id, :kind, 0, 'cancelled', :question, '', :context, :priority, '',
    :created_ns, 0, :created_ns, 'agent_cancel', ''
)
ON CONFLICT (interrupt_id) DO NOTHING;

-- name: close
-- A question is settled; the first time counts.
-- table: interrupts
-- params: interrupt_id, run_id, status, answer, resolved_by, resolved_ns, message
UPDATE interrupts SET
    status = :status, answer = :answer, resolved_by = :resolved_by,
    resolved_ns = :resolved_ns, message = :message
WHERE interrupt_id = :interrupt_id AND run_id = :run_id AND status = 'pending';
