"""The host of code-js agents: a run whose decisions come from a JavaScript program.

What must not break here: a program and a list of recorded calls always give the same outcome;
program code reaches nothing but its tools, and never runs outside the limits (so: no host
function inside the sandbox, and no JavaScript value read by the wrapper except one JSON text of
the prelude). No randomness, no I/O, no await; the one clock read only bounds work.
"""

from replay.codejs.interpreter import Interpreter
from replay.codejs.outcome import (
    Call,
    Failed,
    FailureCode,
    Finished,
    Outcome,
    ToolCall,
    cancelled,
    go_duration,
    load_failed,
    timed_out,
)
from replay.codejs.program import (
    ABI_VERSION,
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_STACK_LIMIT,
    DETERMINISTIC_SEED,
    DETERMINISTIC_STARTED_MS,
    InvalidAgentName,
    Program,
    body_path,
    check,
    run_input,
    seed_of,
)

__all__ = [
    "ABI_VERSION",
    "DEFAULT_MEMORY_LIMIT",
    "DEFAULT_STACK_LIMIT",
    "DETERMINISTIC_SEED",
    "DETERMINISTIC_STARTED_MS",
    "Call",
    "Failed",
    "FailureCode",
    "Finished",
    "Interpreter",
    "InvalidAgentName",
    "Outcome",
    "Program",
    "ToolCall",
    "body_path",
    "cancelled",
    "check",
    "go_duration",
    "load_failed",
    "run_input",
    "seed_of",
    "timed_out",
]
