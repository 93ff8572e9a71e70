-- name: start_run
-- Everything that the first commit says, and those that follow it in the batch. A second first
-- commit breaks the journal.
-- table: runs
-- params: run_id, session_id, tenant, agent, agent_id, user_id, user_tier, parent_agent_id,
--   parent_run, parent_context, started_ns, interactive, origin, reader, principal, plan, machine,
--   last_commit, last_n, hash, epoch, owner, at_ns, seq, first_seq, parked, input_tokens,
--   output_tokens, cache_creation, cache_read, max_context, model, provider, status,
--   stop_reason, error, completed_ns, second_seq, doubled
INSERT INTO runs (
    run_id, session_id, tenant, agent, agent_id, user_id, user_tier, parent_agent_id,
    parent_run, parent_context, status, stop_reason, error, started_ns, completed_ns, input_tokens,
    output_tokens, cache_creation_input_tokens, cache_read_input_tokens, max_context_tokens,
    model, provider, interactive, origin, reader, principal, plan, machine, owner, epoch, parked,
    last_n, last_commit, last_hash, last_commit_ns, last_seq, first_seq,
    second_seq, fault_kind, fault, fault_seq
)
VALUES (
    :run_id, :session_id, :tenant, :agent, :agent_id, :user_id, :user_tier, :parent_agent_id,
    :parent_run, :parent_context, :status, :stop_reason, :error, :started_ns, :completed_ns, :input_tokens,
    :output_tokens, :cache_creation, :cache_read, :max_context,
    :model, :provider, :interactive, :origin, :reader, :principal, :plan, :machine, :owner,
    :epoch, :parked, :last_n, :last_commit, :hash, :at_ns, :seq, :first_seq,
    :second_seq, '', '', 0
)
ON CONFLICT (run_id) DO UPDATE SET
    fault_kind = 'broken', fault = :doubled, fault_seq = :first_seq
WHERE runs.fault_seq = 0;

-- name: check_link
-- The commit to come must follow the run's last one; otherwise the journal is broken here.
-- table: runs
-- params: run_id, tenant, prev, prev_commit, prev_n, epoch, seq, broken
INSERT INTO runs (
    run_id, session_id, tenant, agent, agent_id, user_id, user_tier, parent_agent_id,
    parent_run, parent_context, status, stop_reason, error, started_ns, completed_ns, input_tokens,
    output_tokens, cache_creation_input_tokens, cache_read_input_tokens, max_context_tokens,
    model, provider, interactive, origin, reader, principal, plan, machine, owner, epoch, parked,
    last_n, last_commit, last_hash, last_commit_ns, last_seq, first_seq,
    second_seq, fault_kind, fault, fault_seq
)
VALUES (
    :run_id, '', :tenant, '', '', '', '', '', '', '', 'running', '', '', 0, 0, 0, 0, 0, 0, 0, '', '',
    0, '', '', '', '', 0, '', 0, 0, 0, 0, '', 0, 0, 0, 0, 'broken', :broken, :seq
)
ON CONFLICT (run_id) DO UPDATE SET
    fault_kind = 'broken', fault = :broken, fault_seq = :seq
WHERE runs.fault_seq = 0 AND NOT (
    runs.last_hash = :prev AND runs.last_commit = :prev_commit
    AND runs.last_n = :prev_n AND runs.epoch <= :epoch
);

-- name: stop_fold
-- The run's fold ends here: its journal is broken, or an event is newer than this software.
-- table: runs
-- params: run_id, tenant, kind, reason, seq
INSERT INTO runs (
    run_id, session_id, tenant, agent, agent_id, user_id, user_tier, parent_agent_id,
    parent_run, parent_context, status, stop_reason, error, started_ns, completed_ns, input_tokens,
    output_tokens, cache_creation_input_tokens, cache_read_input_tokens, max_context_tokens,
    model, provider, interactive, origin, reader, principal, plan, machine, owner, epoch, parked,
    last_n, last_commit, last_hash, last_commit_ns, last_seq, first_seq,
    second_seq, fault_kind, fault, fault_seq
)
VALUES (
    :run_id, '', :tenant, '', '', '', '', '', '', '', 'running', '', '', 0, 0, 0, 0, 0, 0, 0, '', '',
    0, '', '', '', '', 0, '', 0, 0, 0, 0, '', 0, 0, 0, 0, :kind, :reason, :seq
)
ON CONFLICT (run_id) DO UPDATE SET
    fault_kind = :kind, fault = :reason, fault_seq = :seq
WHERE runs.fault_seq = 0;

-- name: advance_run
-- One commit more, or several that follow each other (first_seq is the first). Their usage is
-- added; the totals of a terminal event replace the sum (final). The first terminal event wins.
-- table: runs
-- params: run_id, prev, prev_commit, prev_n, last_commit, last_n, hash, epoch, owner, at_ns, seq,
--   first_seq, parked, input_tokens, output_tokens, cache_creation, cache_read, max_context,
--   model, provider, final, status, stop_reason, error, completed_ns
UPDATE runs SET
    last_commit = :last_commit,
    last_n = :last_n,
    last_hash = :hash,
    epoch = :epoch,
    owner = :owner,
    last_commit_ns = :at_ns,
    last_seq = :seq,
    second_seq = CASE WHEN last_commit = 1 THEN :first_seq ELSE second_seq END,
    parked = :parked,
    input_tokens = CASE
        WHEN :final = 0 THEN input_tokens + :input_tokens
        WHEN status = 'running' THEN :input_tokens
        ELSE input_tokens END,
    output_tokens = CASE
        WHEN :final = 0 THEN output_tokens + :output_tokens
        WHEN status = 'running' THEN :output_tokens
        ELSE output_tokens END,
    cache_creation_input_tokens = CASE
        WHEN :final = 0 THEN cache_creation_input_tokens + :cache_creation
        WHEN status = 'running' THEN :cache_creation
        ELSE cache_creation_input_tokens END,
    cache_read_input_tokens = CASE
        WHEN :final = 0 THEN cache_read_input_tokens + :cache_read
        WHEN status = 'running' THEN :cache_read
        ELSE cache_read_input_tokens END,
    max_context_tokens = CASE
        WHEN :max_context > 0 THEN :max_context ELSE max_context_tokens END,
    model = CASE WHEN :model <> '' THEN :model ELSE model END,
    provider = CASE WHEN :provider <> '' THEN :provider ELSE provider END,
    stop_reason = CASE
        WHEN :status <> '' AND status = 'running' THEN :stop_reason ELSE stop_reason END,
    error = CASE WHEN :status <> '' AND status = 'running' THEN :error ELSE error END,
    completed_ns = CASE
        WHEN :status <> '' AND status = 'running' THEN :completed_ns ELSE completed_ns END,
    status = CASE WHEN :status <> '' AND status = 'running' THEN :status ELSE status END
WHERE run_id = :run_id AND fault_seq = 0
  AND last_hash = :prev AND last_commit = :prev_commit AND last_n = :prev_n AND epoch <= :epoch;

-- name: open_await
-- A tool call waits for somebody else.
-- table: awaits
-- params: run_id, tool_use_id, n, state, target
INSERT INTO awaits (run_id, tool_use_id, n, state, target)
VALUES (:run_id, :tool_use_id, :n, :state, :target)
ON CONFLICT (run_id, tool_use_id) DO UPDATE SET
    n = excluded.n, state = excluded.state, target = excluded.target;

-- name: close_await
-- The call has its result.
-- table: awaits
-- params: run_id, tool_use_id
DELETE FROM awaits WHERE run_id = :run_id AND tool_use_id = :tool_use_id;

-- name: close_awaits
-- The run ended; nothing of it waits any more.
-- table: awaits
-- params: run_id
DELETE FROM awaits WHERE run_id = :run_id;
