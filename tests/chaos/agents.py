"""Agents of the kill loop that do all a run can do, and how often each of them counts."""

from __future__ import annotations

from typing import Any

from tests.chaos.clients import CONFIG, EXPECTED_COUNTS, MIXED

COMPACTED_STEPS = 6
TIERED_STEPS = 4
HOOKED_STEPS = 5
QUESTIONS = 2
TURNS = 4

TREE = """
function run(input) {
  const [levels, width] = input.prompt.split(" ").map(Number);
  const below = levels > 1 ? {name: "tree", prompt: (levels - 1) + " " + width}
                           : {name: "plain", prompt: "hi"};
  if (levels === 1) Memory.incr({scope: "user", key: "branches"});
  const spawns = Array.from({length: width}, () => below);
  const rows = Agent.spawn({op: "parallel_spawn", spawns: spawns}).results;
  let leaves = 0;
  for (const row of rows) {
    if (!row.ok) throw new Error(row.error);
    leaves += levels > 1 ? Number(row.output.split("\\n")[1]) : 1;
  }
  return String(leaves);
}
"""

ASKING = f"""
function run(input) {{
  const answers = [];
  for (let i = 0; i < {QUESTIONS}; i++) {{
    const told = Interruption({{op: "ask", question: "Question " + i + "?"}});
    answers.push(JSON.parse(told).answer);
  }}
  return answers.join(" ");
}}
"""

_COUNTS = {"allowed_tools": ["Memory"], "memory_scopes": ["user"]}

WHOLE_LOOP: dict[str, Any] = {
    **CONFIG,
    "provider_priority": ["anthropic", "openai"],
    "tiers": {
        "middle": [
            {"provider": "anthropic", "model": "m-1"},
            {"provider": "openai", "model": "m-1"},
        ]
    },
    "user_tiers": {
        "default": {"fallback_on_error": True, "retry_attempts": 1, "max_fallback_attempts": 3}
    },
    "interruption": {},
    "agents": {
        **CONFIG["agents"],
        "tree": {
            "provider": "code-js",
            "code": TREE,
            "allowed_tools": ["Agent", "Memory"],
            "memory_scopes": ["user"],
            "max_concurrent_children": 8,
        },
        "asking": {
            "provider": "code-js",
            "code": ASKING,
            "allowed_tools": ["Interruption"],
            "interruption": {"enabled": True, "kinds": ["question"]},
        },
        "talker": {"provider": "mock", "model": "mock-generic", "max_iterations": TURNS},
        "compacted": {
            "provider": "anthropic",
            "model": "claude-counting",
            "compaction": {
                "enabled": True,
                "keep_last_n": 2,
                "autocompact_at_pct": 80,
                "model": "claude-small",
            },
            **_COUNTS,
        },
        "tiered": {"tier": "middle", "max_iterations": 60, **_COUNTS},
        "hooked": {
            "provider": "mock",
            "model": f"mock-steps-{HOOKED_STEPS}",
            "unbounded_iterations": True,
            **_COUNTS,
        },
    },
}
"""The kill loop's configuration; models are played by ``tests/chaos/doubles.py``."""

LOOPING = (*MIXED, "asking", "talker", "compacted", "tiered", "hooked")

COUNTS = {
    **EXPECTED_COUNTS,
    "asking": 0,
    "talker": 0,
    "compacted": COMPACTED_STEPS,
    "tiered": TIERED_STEPS,
    "hooked": HOOKED_STEPS,
}
"""What the run's user's counters must hold in the end; those of trees depend on their width."""

LEVELS = 3


def counted_by(agent: str, width: int = 0) -> int:
    """How often a run's tree counts."""
    return width ** (LEVELS - 1) if agent == "tree" else COUNTS[agent]


def body_of(agent: str, width: int) -> dict[str, Any]:
    """What a client asks for."""
    match agent:
        case "tree":
            return {"prompt": f"{LEVELS} {width}"}
        case "talker":
            return {"prompt": "hi", "interactive": True}
        case _:
            return {"prompt": "count c1"}
