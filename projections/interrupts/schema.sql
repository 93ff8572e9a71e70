-- name: create_interrupts
-- One row for each question to a person. status is pending, resolved, timed_out or cancelled as
-- the log says it; times are unix nanoseconds, 0 is "not yet" and, for expires_ns, "never".
-- options is a JSON array or empty; message is the id of the inbox message that settled it;
-- approval is 1 where the answer decides whether a tool call may run.
CREATE TABLE interrupts (
    interrupt_id TEXT PRIMARY KEY,
    run_id       TEXT NOT NULL,
    kind         TEXT NOT NULL,
    approval     BIGINT NOT NULL,
    status       TEXT NOT NULL,
    question     TEXT NOT NULL,
    options      TEXT NOT NULL,
    context      TEXT NOT NULL,
    priority     TEXT NOT NULL,
    answer       TEXT NOT NULL,
    created_ns   BIGINT NOT NULL,
    expires_ns   BIGINT NOT NULL,
    resolved_ns  BIGINT NOT NULL,
    resolved_by  TEXT NOT NULL,
    message      TEXT NOT NULL
);
