"""The deployment that circuits run on: agents, channels and limits of operations.md section 16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ROLES = ("researcher", "editor", "evaluator")
AUDITOR, PROBE = "auditor", "probe"

AUDIT = """
function run(input) {
  const asked = JSON.parse(input.prompt);
  const keys = ["research", "research-edited", "research-scored"];
  let rows = 0;
  for (const part of keys) {
    const key = asked.circuit + "-" + part;
    if (Memory.get({ scope: "user", key: key }).value !== null) rows += 1;
    Memory.delete({ scope: "user", key: key });
  }
  const left = Memory.list({ scope: "user", prefix: asked.circuit + "-" }).entries.length;
  const scores = [];
  if (asked.editor) {
    const found = JSON.parse(Evaluation({ op: "list_for_run", run_id: asked.editor }));
    for (const one of found.evaluations) scores.push(one.score);
  }
  return JSON.stringify({ rows: rows, left: left, scores: scores });
}
"""
TOOLS = """
function run(input) {
  return JSON.stringify(JSON.parse(Context({ op: "tools" })).tools.map((tool) => tool.name));
}
"""

MEMORY = {"memory_scopes": ["user"]}


def configuration(
    circuits: int, *, latency_ms: int, jitter_ms: int, rate_429: float, rate_500: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """(configuration, environment) for circuits c1 to c``circuits``.

    With a failure rate runs may fall back to ``mock-stable``.
    """
    config: dict[str, Any] = {
        "concurrency": {
            "max_concurrent_runs": 2000,
            "max_queue_depth": 30_000,
            "queue_timeout_ms": 600_000,
        },
        "channels": {
            f"{kind}/c{number}": _CHANNEL
            for kind in ("research-done", "editing-done")
            for number in range(1, circuits + 1)
        },
        "agents": {
            "researcher": _role("researcher", ["Memory"], publish=["research-done/*"]),
            "editor": _role(
                "editor",
                ["Memory", "Context"],
                publish=["editing-done/*"],
                subscribe=["research-done/*"],
            ),
            "evaluator": {
                **_role("evaluator", ["Memory", "Evaluation"], subscribe=["editing-done/*"]),
                "evaluation_scopes": ["submit_any"],
            },
            AUDITOR: {
                **_program(AUDIT, ["Memory", "Evaluation"]),
                **MEMORY,
                "evaluation_scopes": ["read_any"],
            },
            PROBE: {
                **_program(TOOLS, ["Context", "Channel"]),
                "channels": _grants(["research-done/*"], []),
            },
        },
    }
    environ = {
        "LOOMCYCLE_MOCK_LATENCY_MS": str(latency_ms),
        "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": str(jitter_ms),
        "LOOMCYCLE_CHANNELS_LONGPOLL_CAP_MS": "120000",
    }
    if rate_429 or rate_500:
        environ |= {
            "LOOMCYCLE_MOCK_429_RATE": str(rate_429),
            "LOOMCYCLE_MOCK_500_RATE": str(rate_500),
        }
        config["agents"] = {
            name: _falling_back(agent) if name in ROLES else agent
            for name, agent in config["agents"].items()
        }
        config["user_tiers"] = {
            "default": {
                "provider_priority": ["mock", "mock-stable"],
                "fallback_on_error": True,
                "max_fallback_attempts": 1,
                "retry_attempts": 2,
            }
        }
    return config, environ


_CHANNEL = {"scope": "global", "semantic": "queue", "default_ttl": 600, "max_messages": 1000}


def _role(
    role: str, tools: list[str], *, publish: Sequence[str] = (), subscribe: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "provider": "mock",
        "model": f"mock-{role}",
        "allowed_tools": [*tools, "Channel"],
        "channels": _grants(publish, subscribe),
        **MEMORY,
    }


def _falling_back(role: dict[str, Any]) -> dict[str, Any]:
    """The same with ``mock-stable`` behind ``mock``."""
    kept = {name: value for name, value in role.items() if name not in ("provider", "model")}
    candidates = [
        {"provider": provider, "model": role["model"]} for provider in ("mock", "mock-stable")
    ]
    return {**kept, "tier": "middle", "models": {"middle": candidates}}


def _grants(publish: Sequence[str], subscribe: Sequence[str]) -> dict[str, list[str]]:
    return {"publish": list(publish), "subscribe": list(subscribe)}


def _program(code: str, tools: list[str]) -> dict[str, Any]:
    return {"provider": "code-js", "code": code, "allowed_tools": tools}
