"""Types, ranges and rules of the YAML configuration: config spec sections 7, 10 and 11."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from loomcycle.config import AgentConfig, Config, ConfigError, LoadedConfig, Problem, load
from loomcycle.config.decode import field_names

DEFAULTS = "defaults: {provider: mock, model: m}\n"


def load_text(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> LoadedConfig:
    (tmp_path / "c.yaml").write_text(text)
    return load([Path("c.yaml")], environ or {}, tmp_path)


def refused(
    tmp_path: Path, text: str, environ: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as error:
        load_text(tmp_path, text, environ)
    return [(problem.path, problem.code) for problem in error.value.problems]


AGENT_FAULTS = [
    ("{tier: low, model: m}", "tier", "conflict"),
    ("{tier: low, provider: mock}", "tier", "conflict"),
    ("{tier: highest}", "tier", "unknown_name"),
    ("{effort: huge}", "effort", "unknown_name"),
    ("{providers: [mock, opnai]}", "providers[1]", "unknown_name"),
    ("{providers: [code-js]}", "providers[0]", "unknown_name"),
    ("{models: {extreme: [m]}}", "models.extreme", "unknown_name"),
    ("{models: {low: [m]}}", "models.low[0]", "unknown_name"),
    ("{models: {low: [{provider: mock}]}}", "models.low[0]", "missing"),
    ("{sampling: {temperature: 2.1}}", "sampling.temperature", "out_of_range"),
    ("{sampling: {temperature: -0.1}}", "sampling.temperature", "out_of_range"),
    ("{sampling: {top_p: 1.01}}", "sampling.top_p", "out_of_range"),
    ("{sampling: {top_k: 0}}", "sampling.top_k", "out_of_range"),
    ("{sampling: {frequency_penalty: -3}}", "sampling.frequency_penalty", "out_of_range"),
    ("{sampling: {presence_penalty: 3}}", "sampling.presence_penalty", "out_of_range"),
    ("{sampling: {stop: [a,b,c,d,e,f,g,h,i]}}", "sampling.stop", "out_of_range"),
    ("{sampling: {temperature: .nan}}", "sampling.temperature", "out_of_range"),
    ("{compaction: {target_percentage: 9}}", "compaction.target_percentage", "out_of_range"),
    ("{compaction: {target_percentage: 51}}", "compaction.target_percentage", "out_of_range"),
    ("{compaction: {keep_last_n: -1}}", "compaction.keep_last_n", "out_of_range"),
    ("{compaction: {autocompact_at_pct: 49}}", "compaction.autocompact_at_pct", "out_of_range"),
    ("{compaction: {autocompact_at_pct: 96}}", "compaction.autocompact_at_pct", "out_of_range"),
    ("{memory_scopes: [global]}", "memory_scopes[0]", "unknown_name"),
    ("{sql_scopes: [global]}", "sql_scopes[0]", "unknown_name"),
    ("{memory_quota_bytes: -1}", "memory_quota_bytes", "out_of_range"),
    ("{sql_quota_bytes: -1}", "sql_quota_bytes", "out_of_range"),
    ("{retry_attempts: -1}", "retry_attempts", "out_of_range"),
    ("{volumes: [none]}", "volumes[0]", "unknown_name"),
    ("{memory_backend: other}", "memory_backend", "unknown_name"),
    ("{channels: {publish: [nope]}}", "channels.publish[0]", "unknown_name"),
    ("{channels: {subscribe: [nope/*]}}", "channels.subscribe[0]", "unknown_name"),
    ("{channels: {publish: ['jobs*']}}", "channels.publish[0]", "unsupported"),
    ("{channels: {publish: ['*']}}", "channels.publish[0]", "unsupported"),
    ("{channels: {publish: ['jobs/*/x']}}", "channels.publish[0]", "unsupported"),
    ("{agent_def_scopes: ['named:']}", "agent_def_scopes[0]", "unknown_name"),
    ("{agent_def_scopes: [all]}", "agent_def_scopes[0]", "unknown_name"),
    ("{skill_def_scopes: [self]}", "skill_def_scopes[0]", "unknown_name"),
    ("{volume_def_scopes: [descendants]}", "volume_def_scopes[0]", "unknown_name"),
    ("{evaluation_scopes: [read]}", "evaluation_scopes[0]", "unknown_name"),
    ("{history_scope: all}", "history_scope", "unknown_name"),
    ("{history_scope: 'named:'}", "history_scope", "unknown_name"),
    ("{system_prompt: x, system_prompt_file: y}", "system_prompt_file", "conflict"),
    ("{system_prompt_file: nope.txt}", "system_prompt_file", "unreadable"),
    ("{skills: [x]}", "skills", "missing"),
    ("{max_cost_usd: -0.5}", "max_cost_usd", "out_of_range"),
    ("{max_tokens_total: -5}", "max_tokens_total", "out_of_range"),
    ("{output_schema: [x]}", "output_schema", "wrong_type"),
    ("{output_schema: {type: banana}}", "output_schema", "syntax"),
    ("{output_schema: {$ref: 'https://example.com/s'}}", "output_schema", "syntax"),
    ("{require_approval: ['']}", "require_approval[0]", "unsupported"),
    ("{require_approval: [Read, '*sh']}", "require_approval[1]", "unsupported"),
    ("{allowed_tools: Read}", "allowed_tools", "wrong_type"),
    ("{max_tokens: '12'}", "max_tokens", "wrong_type"),
    ("{max_tokens: 1.5}", "max_tokens", "wrong_type"),
    ("{disable_context: 1}", "disable_context", "wrong_type"),
    ("{provider: code-js, code: x}", "provider", "unsupported"),
]


@pytest.mark.parametrize(("agent", "field", "code"), AGENT_FAULTS)
def test_a_faulty_agent_is_refused_at_its_field(
    agent: str, field: str, code: str, tmp_path: Path
) -> None:
    text = (
        DEFAULTS + "channels: {jobs/new: {scope: user}}\nmemory_backends: {b: {kind: mem9}}\n"
        f"agents:\n  a: {agent}\n"
    )
    assert refused(tmp_path, text) == [(f"agents.a.{field}", code)]


CONFIG_FAULTS = [
    ("concurrency: {max_concurrent_runs: 0}", "concurrency.max_concurrent_runs", "out_of_range"),
    ("concurrency: {max_queue_depth: -1}", "concurrency.max_queue_depth", "out_of_range"),
    ("concurrency: [1]", "concurrency", "wrong_type"),
    ("context_plugins: [{name: other}]", "context_plugins[0].name", "unknown_name"),
    ("context_plugins: [{enabled: true}]", "context_plugins[0].name", "missing"),
    ("provider_priority: [nope]", "provider_priority[0]", "unknown_name"),
    ("tiers: {top: []}", "tiers.top", "unknown_name"),
    ("tiers: {low: [{provider: nope, model: m}]}", "tiers.low[0]", "unknown_name"),
    ("tiers: {low: [{provider: mock}]}", "tiers.low[0]", "missing"),
    ("tiers: {low: [bare]}", "tiers.low[0]", "unknown_name"),
    ("user_tiers: {gold: {}}", "user_tiers", "missing"),
    (
        "user_tiers: {default: {max_fallback_attempts: -1}}",
        "user_tiers.default.max_fallback_attempts",
        "out_of_range",
    ),
    (
        "user_tiers: {default: {rate_limit_cooldown_ms: -1}}",
        "user_tiers.default.rate_limit_cooldown_ms",
        "out_of_range",
    ),
    (
        "user_tiers: {default: {provider_priority: [x]}}",
        "user_tiers.default.provider_priority[0]",
        "unknown_name",
    ),
    (
        "user_tiers: {default: {tiers: {low: [x]}}}",
        "user_tiers.default.tiers.low[0]",
        "unknown_name",
    ),
    (
        "memory_backends: {b: {tenancy_strategy:"
        " {kind: shared_key_with_prefix, prefix_pattern: x}}}",
        "memory_backends.b.tenancy_strategy.prefix_pattern",
        "conflict",
    ),
    ("channels: {c: {}}", "channels.c.scope", "missing"),
    ("channels: {c: {scope: tenant}}", "channels.c.scope", "unknown_name"),
    ("channels: {c: {scope: user, semantic: topic}}", "channels.c.semantic", "unknown_name"),
    ("channels: {c: {scope: user, publisher: agent}}", "channels.c.publisher", "unknown_name"),
    ("channels: {c: {scope: user, period: 30s}}", "channels.c.period", "conflict"),
    ("channels: {c: {scope: user, publisher: system}}", "channels.c.period", "missing"),
    ("channels: {c: {scope: user, publisher: system, period: 0s}}", "channels.c.period", "missing"),
    (
        "channels: {c: {scope: user, publisher: system, period: 30}}",
        "channels.c.period",
        "wrong_type",
    ),
    ("channels: {c: {scope: user, default_ttl: 10m}}", "channels.c.default_ttl", "wrong_type"),
    ("channels: {c: {scope: user, max_messages: -1}}", "channels.c.max_messages", "out_of_range"),
    ("mcp_servers: {s: {command: x}}", "mcp_servers.s.transport", "unknown_name"),
    (
        "mcp_servers: {s: {transport: streamable-http, url: x}}",
        "mcp_servers.s.transport",
        "unknown_name",
    ),
    ("mcp_servers: {s: {transport: stdio}}", "mcp_servers.s.command", "missing"),
    ("mcp_servers: {s: {transport: http}}", "mcp_servers.s.url", "missing"),
    ("scheduled_runs: {s: {schedule: '* * * * *'}}", "scheduled_runs.s.agent", "missing"),
    ("scheduled_runs: {s: {agent: x}}", "scheduled_runs.s.agent", "unknown_name"),
    ("scheduled_runs: {s: {agent: a, schedule: '* * * *'}}", "scheduled_runs.s.schedule", "syntax"),
    (
        "scheduled_runs: {s: {agent: a, schedule: '* * * * *',"
        " user_tier_schedules: {t: '* * * * *'}}}",
        "scheduled_runs.s.schedule",
        "conflict",
    ),
    (
        "scheduled_runs: {s: {agent: a, catch_up_max: -1}}",
        "scheduled_runs.s.catch_up_max",
        "out_of_range",
    ),
    (
        "scheduled_runs: {s: {agent: a, on_complete: [{kind: mail}]}}",
        "scheduled_runs.s.on_complete[0].kind",
        "unknown_name",
    ),
    (
        "scheduled_runs: {s: {agent: a, on_complete: [{kind: channel.publish}]}}",
        "scheduled_runs.s.on_complete[0].channel",
        "missing",
    ),
    (
        "scheduled_runs: {s: {agent: a, on_complete: [{kind: mcp.call, server: x}]}}",
        "scheduled_runs.s.on_complete[0].tool",
        "missing",
    ),
    (
        "scheduled_runs: {s: {agent: a, on_complete: [{kind: memory.set, scope: user}]}}",
        "scheduled_runs.s.on_complete[0].key",
        "missing",
    ),
    (
        "scheduled_runs: {s: {agent: a, on_complete: "
        " [{kind: memory.set, scope: user, key: k, payload: [1]}]}}",
        "scheduled_runs.s.on_complete[0].payload",
        "wrong_type",
    ),
    ("webhooks: {w: {}}", "webhooks.w.agent", "missing"),
    ("webhooks: {w: {delivery: mail, agent: a}}", "webhooks.w.delivery", "unknown_name"),
    ("webhooks: {w: {agent: a, channel: c}}", "webhooks.w.channel", "conflict"),
    ("webhooks: {w: {delivery: channel}}", "webhooks.w.channel", "missing"),
    ("webhooks: {w: {delivery: channel, channel: c, agent: a}}", "webhooks.w.agent", "conflict"),
    ("webhooks: {w: {agent: a, auth: {kind: basic}}}", "webhooks.w.auth.kind", "unknown_name"),
    ("volumes: {v: {}}", "volumes.v.path", "missing"),
    ("volumes: {v: {path: nowhere}}", "volumes.v.path", "unreadable"),
    ("volumes: {v: {path: c.yaml}}", "volumes.v.path", "unreadable"),
    ("volumes: {v: {path: ., mode: wo}}", "volumes.v.mode", "unknown_name"),
    (
        "volumes: {v: {path: ., default: true}, w: {path: ., default: true}}",
        "volumes.w.default",
        "conflict",
    ),
    (
        "volumes: {v: {path: ., dynamic_root: true}, w: {path: ., dynamic_root: true}}",
        "volumes.w.dynamic_root",
        "conflict",
    ),
    ("memory: {embedder: {provider: openai}}", "memory.embedder.model", "missing"),
    ("memory: {embedder: {model: x}}", "memory.embedder.provider", "missing"),
    ("memory: {embedder: {provider: opena, model: x}}", "memory.embedder.provider", "unknown_name"),
    ("memory: {embedder: {provider: stub, model: x}}", "memory.embedder.provider", "unknown_name"),
    (
        "memory: {embedder: {provider: openai, model: x, timeout_ms: -1}}",
        "memory.embedder.timeout_ms",
        "out_of_range",
    ),
    ("interruption: {backend: mail}", "interruption.backend", "unknown_name"),
    ("interruption: {backend: 'mcp_server:'}", "interruption.backend", "unknown_name"),
    ("storage: {backend: mysql}", "storage.backend", "unknown_name"),
    ("storage: {backend: postgres}", "storage.pg_dsn", "missing"),
    (
        "storage: {backend: postgres, pg_dsn: x, sqlmem_enabled: true}",
        "storage.sqlmem_pg_dsn",
        "missing",
    ),
    (
        "storage: {backend: postgres, pg_dsn: x, sqlmem_enabled: true, sqlmem_pg_dsn: x}",
        "storage.sqlmem_pg_dsn",
        "conflict",
    ),
    ("prices: {gpt-*: {input_per_mtok: -1}}", "prices.gpt-*.input_per_mtok", "out_of_range"),
    ("log: {sync: sometimes}", "log.sync", "wrong_type"),
    ("log: {sync: 0s}", "log.sync", "out_of_range"),
    ("log: {prefix: 'a.b'}", "log.prefix", "unsupported"),
    ("runtime: {archive_after: 30}", "runtime.archive_after", "wrong_type"),
    ("runtime: {reader_grace_ms: -1}", "runtime.reader_grace_ms", "out_of_range"),
]


@pytest.mark.parametrize(("block", "path", "code"), CONFIG_FAULTS)
def test_a_faulty_block_is_refused_at_its_field(
    block: str, path: str, code: str, tmp_path: Path
) -> None:
    assert refused(tmp_path, f"{DEFAULTS}agents: {{a: {{}}}}\n{block}\n") == [(path, code)]


@pytest.mark.parametrize(
    ("environ", "path", "code"),
    [
        ({"LOOMCYCLE_REPLICA_ID": "-x"}, "LOOMCYCLE_REPLICA_ID", "unsupported"),
        ({"LOOMCYCLE_REPLICA_ID": "x" * 65}, "LOOMCYCLE_REPLICA_ID", "unsupported"),
        ({"LOOMCYCLE_A2A_ENABLED": "1"}, "LOOMCYCLE_A2A_SERVER_CARD", "missing"),
        (
            {
                "LOOMCYCLE_A2A_ENABLED": "1",
                "LOOMCYCLE_A2A_SERVER_CARD": "x",
                "LOOMCYCLE_A2A_TENANCY_ROUTING": "dns",
            },
            "LOOMCYCLE_A2A_TENANCY_ROUTING",
            "unknown_name",
        ),
        (
            {"LOOMCYCLE_A2A_ENABLED": "1", "LOOMCYCLE_A2A_SERVER_CARD": "card"},
            "a2a_server_cards.card.exposed_agents",
            "missing",
        ),
        ({"LOOMCYCLE_HELP_ROOT": "nowhere"}, "LOOMCYCLE_HELP_ROOT", "unreadable"),
        ({"LOOMCYCLE_AGENTS_ROOT": "nowhere"}, "LOOMCYCLE_AGENTS_ROOT", "unreadable"),
        ({"LOOMCYCLE_SKILLS_ROOT": "nowhere"}, "LOOMCYCLE_SKILLS_ROOT", "unreadable"),
    ],
)
def test_a_faulty_environment_is_refused(
    environ: dict[str, str], path: str, code: str, tmp_path: Path
) -> None:
    text = "a2a_server_cards: {card: {name: x, exposed_agents: [{agent_name: a}]}}\n"
    assert refused(tmp_path, text, environ) == [(path, code)]


def test_a2a_settings_are_not_looked_at_while_a2a_is_off(tmp_path: Path) -> None:
    loaded = load([], {"LOOMCYCLE_A2A_TENANCY_ROUTING": "dns"}, tmp_path)
    assert not loaded.environment.a2a_enabled
    assert loaded.environment.a2a_tenancy_routing == "dns"


def test_an_agent_needs_a_model_from_somewhere(tmp_path: Path) -> None:
    assert refused(tmp_path, "agents: {a: {}}") == [("agents.a", "missing")]
    for field, value in (("model", "m"), ("provider", "mock"), ("tier", "low")):
        agent = load_text(tmp_path, f"agents: {{a: {{{field}: {value}}}}}").config.agents["a"]
        assert getattr(agent, field) == value


def test_all_problems_are_reported_at_once_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("concurrency:\n  max_concurrent_runs: 0\n")
    (tmp_path / "b.yaml").write_text("\n\nagents:\n  x: {tier: low, model: m}\n")
    with pytest.raises(ConfigError) as error:
        load([Path("a.yaml"), Path("b.yaml")], {"LOOMCYCLE_READ_ROOT": "/x"}, tmp_path)
    lines = str(error.value).splitlines()
    assert lines[0] == "3 problems:"
    assert lines[1] == ("  - concurrency.max_concurrent_runs: 0 must be at least 1 (a.yaml:2)")
    assert lines[2].startswith("  - LOOMCYCLE_READ_ROOT: ")
    assert lines[3].startswith("  - agents.x.tier: ")
    assert lines[3].endswith("(b.yaml:4)")


def test_a_range_error_names_field_and_range(tmp_path: Path) -> None:
    text = "agents: {a: {model: m, compaction: {target_percentage: 5}}}"
    with pytest.raises(
        ConfigError, match=r"compaction\.target_percentage: 5 out of range \[10,50\]"
    ):
        load_text(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "concurency: {}",
            'concurency: unknown key, ignored (did you mean "concurrency"?) (c.yaml:1)',
        ),
        (
            "storage: {pg_max_idle_conns: 3}",
            "storage.pg_max_idle_conns: unknown key, ignored"
            ' (did you mean "pg_min_idle_conns"?) (c.yaml:1)',
        ),
        (
            "agents: {a: {model: m, sampling: {temprature: 1}}}",
            "agents.a.sampling.temprature: unknown key, ignored"
            ' (did you mean "temperature"?) (c.yaml:1)',
        ),
        ("agents: {a: {model: m, name: b}}", "agents.a.name: unknown key, ignored (c.yaml:1)"),
        ("zzz: 1", "zzz: unknown key, ignored (c.yaml:1)"),
    ],
)
def test_an_unknown_key_is_a_warning_with_a_suggestion(
    text: str, warning: str, tmp_path: Path
) -> None:
    assert load_text(tmp_path, text).warnings == (warning,)


def test_keys_for_anchors_and_for_recipe_commands_are_not_warned_of(tmp_path: Path) -> None:
    assert load_text(tmp_path, "x-common: 1\nenv: {allowlist: [A]}\n").warnings == ()


def test_null_means_the_default_everywhere(tmp_path: Path) -> None:
    text = DEFAULTS + "agents: {a: ~}\nconcurrency: ~\ntiers: {low: ~}\nmcp_servers:\n"
    config = load_text(tmp_path, text).config
    assert config.agents["a"].name == "a"
    assert config.concurrency.max_concurrent_runs == 8
    assert config.tiers == {"low": ()}


def test_string_fields_keep_what_was_written(tmp_path: Path) -> None:
    text = "mcp_servers: {s: {transport: stdio, command: x, env: {A: 8080, B: 1.10, C: no, D: ~}}}"
    env = load_text(tmp_path, text).config.mcp_servers["s"].env
    assert env == {"A": "8080", "B": "1.10", "C": "no", "D": ""}


def test_free_form_values_stay_plain_data(tmp_path: Path) -> None:
    text = (
        "memory: {entries: [{scope: user, key: k, value: {a: [1, 2.5, true, ~, x]}}]}\n"
        "agents: {a: {model: m, output_schema: {type: object, required: [x]}}}\n"
    )
    config = load_text(tmp_path, text).config
    assert config.memory.entries[0].value == {"a": [1, 2.5, True, None, "x"]}
    assert config.agents["a"].output_schema == {"type": "object", "required": ["x"]}


def test_zeros_become_the_defaults_they_stand_for(tmp_path: Path) -> None:
    text = (
        "user_tiers: {default: {}, b: {retry_attempts: 9, rate_limit_cooldown_ms: 5},"
        " c: {rate_limit_cooldown_ms: 9000000, max_fallback_attempts: 1}}\n"
        "interruption: {heartbeat_interval_ms: 0}\nstorage: {sqlmem_gc_interval_ms: 0}\n"
    )
    config = load_text(tmp_path, text).config
    tiers = {
        name: (t.max_fallback_attempts, t.retry_attempts, t.rate_limit_cooldown_ms)
        for name, t in config.user_tiers.items()
    }
    assert tiers == {"default": (3, 0, 30_000), "b": (3, 5, 1_000), "c": (1, 0, 600_000)}
    assert config.interruption.heartbeat_interval_ms == 30_000
    assert config.storage.sqlmem_gc_interval_ms == 3_600_000


def test_volumes_become_absolute_against_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "conf" / "c.yaml").write_text("volumes: {v: {path: data}, l: {path: link}}")
    volumes = load([Path("conf/c.yaml")], {}, tmp_path).config.volumes
    assert (volumes["v"].path, volumes["v"].mode) == (str(tmp_path / "data"), "rw")
    assert volumes["l"].path == str(tmp_path / "link")


def test_an_unknown_embedder_is_told_the_known_ones_in_order(tmp_path: Path) -> None:
    text = "memory: {embedder: {provider: zzz, model: x}}"
    with pytest.raises(ConfigError, match=r'unknown embedder "zzz"; use anthropic, gemini, openai'):
        load_text(tmp_path, text)
    with pytest.raises(ConfigError, match="use anthropic, gemini, openai, stub"):
        load_text(tmp_path, text, {"LOOMCYCLE_EMBEDDER_STUB": "1"})
    near = r'"opena" \(did you mean "openai"\?\); use anthropic, gemini, openai'
    with pytest.raises(ConfigError, match=near):
        load_text(tmp_path, "memory: {embedder: {provider: opena, model: x}}")


@pytest.mark.parametrize("block", ["{}", "{timeout_ms: 5}"])
def test_an_embedder_that_is_declared_needs_provider_and_model(block: str, tmp_path: Path) -> None:
    assert refused(tmp_path, f"memory: {{embedder: {block}}}") == [
        ("memory.embedder.provider", "missing"),
        ("memory.embedder.model", "missing"),
    ]
    assert load_text(tmp_path, "memory: {embedder: null}").config.memory.embedder is None


def test_an_embedder_without_its_key_is_warned_of(tmp_path: Path) -> None:
    text = "memory: {embedder: {provider: anthropic, model: voyage-4}}"
    (warning,) = load_text(tmp_path, text).warnings
    assert "VOYAGE_API_KEY is not set" in warning
    assert load_text(tmp_path, text, {"VOYAGE_API_KEY": "k"}).warnings == ()


def test_event_driven_system_channels_need_no_period(tmp_path: Path) -> None:
    names = (
        "_system/runtime-state",
        "_system/provider-events",
        "_system/interrupts/pending",
        "_system/interrupts/resolved",
    )
    blocks = ", ".join(f"{name}: {{scope: user, publisher: system}}" for name in names)
    channels = load_text(
        tmp_path, f"channels: {{{blocks}, tick: {{scope: global, publisher: system, period: 30s}}}}"
    ).config.channels
    assert channels.keys() == {*names, "tick"}
    assert not any(channels[name].period for name in names)


def test_channel_entries_of_agents_match_by_prefix(tmp_path: Path) -> None:
    text = (
        "channels: {jobs/a/b: {scope: user}}\n"
        "agents: {a: {model: m, channels: {publish: [' jobs/* '], subscribe: [jobs/a/b]}}}\n"
    )
    granted = load_text(tmp_path, text).config.agents["a"].channels
    assert [entry.strip() for entry in granted.publish] == ["jobs/*"]
    assert granted.subscribe == ("jobs/a/b",)
    elsewhere = text.replace("jobs/*", "work/*")
    assert refused(tmp_path, elsewhere) == [("agents.a.channels.publish[0]", "unknown_name")]


@pytest.mark.parametrize("backend", ["inprocess", "default", "declared"])
def test_known_memory_backends_are_accepted(backend: str, tmp_path: Path) -> None:
    text = (
        "memory_backends: {declared: {kind: mem9}}\n"
        f"agents: {{a: {{model: m, memory_backend: {backend}}}}}\n"
    )
    assert load_text(tmp_path, text).config.agents["a"].memory_backend == backend


def test_any_memory_backend_passes_while_none_is_declared(tmp_path: Path) -> None:
    text = "agents: {a: {model: m, memory_backend: later}}"
    assert load_text(tmp_path, text).config.agents["a"].memory_backend == "later"
    declared = f"memory_backends: {{declared: {{kind: mem9}}}}\n{text}"
    assert refused(tmp_path, declared) == [("agents.a.memory_backend", "unknown_name")]


PRINCIPAL = "principals: {p: {tenant: acme, subject: s, scopes: [runs:create], token_env: NAME}}"


@pytest.mark.parametrize(
    ("entry", "path", "code"),
    [
        ("{token_env: LOOMCYCLE_T}", "subject", "missing"),
        ("{subject: s}", "token_env", "missing"),
        ("{subject: s, token_env: HOME}", "token_env", "unsupported"),
        ("{subject: s, token_env: LOOMCYCLE_AUTH_TOKEN}", "token_env", "unsupported"),
        ("{subject: s, token_env: PG_DSN}", "token_env", "unsupported"),
        (
            "{subject: s, token_env: LOOMCYCLE_T, scopes: [memory:read]}",
            "scopes[0]",
            "unknown_name",
        ),
    ],
)
def test_a_faulty_principal_is_refused(entry: str, path: str, code: str, tmp_path: Path) -> None:
    environ = {"LOOMCYCLE_T": "secret-value"}
    found = refused(tmp_path, f"principals: {{p: {entry}}}", environ)
    assert found == [(f"principals.p.{path}", code)]


def test_principals_resolve_their_secrets_and_never_show_them(tmp_path: Path) -> None:
    text = PRINCIPAL.replace("NAME", "LOOMCYCLE_T")
    loaded = load_text(tmp_path, text, {"LOOMCYCLE_T": "sesame"})
    (principal,) = loaded.principals
    assert (principal.token_def_id, principal.tenant, principal.secret) == (
        "cfg:p",
        "acme",
        "sesame",
    )
    assert "sesame" not in repr(loaded.principals) + repr(loaded)
    (tmp_path / "token").write_text("from-file\n")
    from_file = load_text(tmp_path, text, {"LOOMCYCLE_T_FILE": "token"})
    assert from_file.principals[0].secret == "from-file"


def test_an_empty_principal_variable_makes_it_inert_with_a_warning(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, PRINCIPAL.replace("NAME", "LOOMCYCLE_T"))
    assert loaded.principals == ()
    assert loaded.warnings == (
        "principals.p: LOOMCYCLE_T is empty: this principal is inert (c.yaml:1)",
    )


def test_two_principals_with_one_secret_are_refused_without_showing_it(tmp_path: Path) -> None:
    text = (
        "principals: {p: {subject: a, token_env: LOOMCYCLE_A},"
        " q: {subject: b, token_env: LOOMCYCLE_B}}"
    )
    with pytest.raises(ConfigError, match="same secret") as error:
        load_text(tmp_path, text, {"LOOMCYCLE_A": "sesame", "LOOMCYCLE_B": "sesame"})
    assert "sesame" not in str(error.value)


GATED = "{model: m, allowed_tools: [Memory, Evaluation, Channel, Interruption], sql_scopes: [run]}"


def test_tools_behind_closed_gates_are_warned_of_in_order(tmp_path: Path) -> None:
    warnings = load_text(tmp_path, f"agents: {{a: {GATED}}}").warnings
    words = ["memory_scopes", "evaluation_scopes", "channels.publish", "interruption", "sql_scopes"]
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_open_gates_and_other_spellings_are_not_warned_of(tmp_path: Path) -> None:
    text = (
        "channels: {c: {scope: user}}\n"
        "agents: {a: {model: m, allowed_tools: [Memory, Evaluation, Channel, Interruption],"
        " memory_scopes: [user], evaluation_scopes: [read_any], channels: {subscribe: [c]},"
        " interruption: {enabled: true}, sql_scopes: [run]},"
        " b: {model: m, allowed_tools: [memory, 'Mem*']}}\n"
    )
    assert load_text(tmp_path, text, {"LOOMCYCLE_SQLMEM_ENABLED": "1"}).warnings == ()


def test_boot_notes_tell_what_is_off_or_open(tmp_path: Path) -> None:
    text = (
        "user_tiers: {b: {}, default: {}, a: {}}\n"
        "agents: {bare: {model: m, disable_context: true}}\n"
        "webhooks: {off: {agent: bare}, on: {agent: bare, enabled: true,"
        " auth: {signing_secret_env: LOOMCYCLE_HOOK}}}\n"
    )
    environ = {"LOOMCYCLE_BASH_ENABLED": "1", "LOOMCYCLE_WEBHOOKS_ENABLED": "1"}
    notes = "\n".join(load_text(tmp_path, text, environ).notes)
    for part in (
        "user tiers: default, a, b",
        "volumes: none declared",
        "LOOMCYCLE_HTTP_HOST_ALLOWLIST is empty",
        "WebSearch is off",
        "WARNING: Bash is on",
        'agent "bare": has no tools',
        "/v1 is open to everybody",
        'webhooks: WARNING: "off" is disabled',
        'webhooks: WARNING: "on": LOOMCYCLE_HOOK is empty',
    ):
        assert part in notes


def test_only_a_server_that_anybody_can_use_is_called_open(tmp_path: Path) -> None:
    principal = PRINCIPAL.replace("NAME", "LOOMCYCLE_T")

    def is_called_open(text: str, environ: dict[str, str]) -> bool:
        return any("is open to" in note for note in load_text(tmp_path, text, environ).notes)

    assert not is_called_open("agents: {}", {"LOOMCYCLE_AUTH_TOKEN": "sesame"})
    assert not is_called_open(principal, {"LOOMCYCLE_T": "sesame"})
    assert is_called_open(principal, {}), "a principal without a secret keeps nobody out"


def test_an_audit_file_to_which_nothing_is_written_is_told(tmp_path: Path) -> None:
    def notes(environ: dict[str, str]) -> str:
        return "\n".join(load_text(tmp_path, "agents: {}", environ).notes)

    assert "LOOMCYCLE_AUDIT_LOG_PATH" in notes({"LOOMCYCLE_AUDIT_LOG_PATH": "audit.jsonl"})
    assert "LOOMCYCLE_AUDIT_LOG_PATH" not in notes({})


AGENT_KEYS = field_names(AgentConfig)


def _any_value(depth: int = 3) -> st.SearchStrategy[object]:
    words = st.sampled_from(["", "a", "low", "default", "mock", "30s", "named:x", "*", "system"])
    numbers = st.sampled_from([0, 1, -1, 7, 1.5, float("inf"), float("nan"), 10**30])
    leaves = st.one_of(words, numbers, st.booleans(), st.none())
    if depth == 0:
        return leaves
    inner = _any_value(depth - 1)
    keys = st.sampled_from([*AGENT_KEYS, "a", "low", "default", "enabled", "kind", "scope"])
    return st.one_of(leaves, st.lists(inner, max_size=2), st.dictionaries(keys, inner, max_size=3))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(field_names(Config)), _any_value(), max_size=6))
def test_any_tree_loads_or_is_refused_with_located_problems(tree: dict[str, object]) -> None:
    with TemporaryDirectory() as directory:
        cwd = Path(directory)
        (cwd / "c.yaml").write_text(yaml.safe_dump(tree))
        problems: tuple[Problem, ...] = ()
        try:
            load([Path("c.yaml")], {}, cwd)
        except ConfigError as error:
            problems = error.problems
    assert all(problem.path and problem.place for problem in problems)
