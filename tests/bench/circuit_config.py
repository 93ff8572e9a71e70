"""The deployment that circuits run on: agents, channels and limits of operations.md section 16."""

from __future__ import annotations

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
  const scores = [];
  if (asked.editor) {
    const found = JSON.parse(Evaluation({ op: "list_for_run", run_id: asked.editor }));
    for (const one of found.evaluations) scores.push(one.score);
  }
  return JSON.stringify({ rows: rows, scores: scores });
}
"""
TOOLS = """
function run(input) {
  return JSON.stringify(JSON.parse(Context({ op: "tools" })).tools.map((tool) => tool.name));
}
"""

MEMORY = {"memory_scopes": ["user"]}


def configuration(
    *, latency_ms: int, jitter_ms: int, rate_429: float, rate_500: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """(configuration, environment). With a failure rate runs may fall back to ``mock-stable``."""
    config = {
        "concurrency": {
            "max_concurrent_runs": 2000,
            "max_queue_depth": 30_000,
            "queue_timeout_ms": 600_000,
        },
        "channels": {name: _CHANNEL for name in ("research-done/c0", "editing-done/c0")},
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
            "default": {"fallback_on_error": True, "max_fallback_attempts": 1, "retry_attempts": 2}
        }
    return config, environ


_CHANNEL = {"scope": "global", "semantic": "queue", "default_ttl": 600, "max_messages": 1000}


def _role(
    role: str,
    tools: list[str],
    publish: list[str] | None = None,
    subscribe: list[str] | None = None,
) -> dict[str, Any]:
    return {
        "provider": "mock",
        "model": f"mock-{role}",
        "allowed_tools": [*tools, "Channel"],
        "channels": _grants(publish or [], subscribe or []),
        **MEMORY,
    }


def _falling_back(role: dict[str, Any]) -> dict[str, Any]:
    """The same with ``mock-stable`` behind ``mock``."""
    kept = {name: value for name, value in role.items() if name not in ("provider", "model")}
    candidates = [
        {"provider": provider, "model": role["model"]} for provider in ("mock", "mock-stable")
    ]
    return {**kept, "tier": "middle", "models": {"middle": candidates}}


def _grants(publish: list[str], subscribe: list[str]) -> dict[str, list[str]]:
    return {"publish": publish, "subscribe": subscribe}


def _program(code: str, tools: list[str]) -> dict[str, Any]:
    return {"provider": "code-js", "code": code, "allowed_tools": tools}
