"""Environment variables, auth.env and secret files: config spec sections 5 and 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loomcycle.config import ConfigError, Environment, Secret, load, variables_table
from loomcycle.config.environment import read_environment
from loomcycle.config.problems import Findings
from loomcycle.config.secret_files import parse_auth_env
from loomcycle.config.variables import VARIABLES


def read(**variables: str) -> Environment:
    return read_environment({f"LOOMCYCLE_{key}": v for key, v in variables.items()}, Findings())


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("LISTEN_ADDR", "0.0.0.0:1", "listen_addr", "0.0.0.0:1"),
        ("LISTEN_ADDR", "", "listen_addr", "127.0.0.1:8787"),
        ("AUTH_VERBOSE", "1", "auth_verbose", True),
        ("AUTH_VERBOSE", "true", "auth_verbose", False),
        ("REDACT_SECRETS", "0", "redact_secrets", False),
        ("REDACT_SECRETS", "false", "redact_secrets", True),
        ("HEARTBEAT_SWEEPER", "0", "heartbeat_sweeper", False),
        ("AUTH_CACHE_TTL_SECONDS", "0", "auth_cache_ttl_seconds", 0),
        (
            "OPERATOR_TOKEN_ROTATION_GRACE_SECONDS",
            "0",
            "operator_token_rotation_grace_seconds",
            86400,
        ),
        ("SSE_KEEPALIVE_MS", "-5", "sse_keepalive_ms", 0),
        ("SSE_KEEPALIVE_MS", "5", "sse_keepalive_ms", 1000),
        ("SSE_KEEPALIVE_MS", "9000000", "sse_keepalive_ms", 300000),
        ("TOOL_PARALLELISM", "0", "tool_parallelism", 8),
        ("TOOL_PARALLELISM", "99", "tool_parallelism", 64),
        ("TOOL_PARALLELISM", "x", "tool_parallelism", 8),
        ("MAX_CONCURRENT_RUNS_PER_USER", "-1", "max_concurrent_runs_per_user", 0),
        ("PAUSE_DEFAULT_TIMEOUT_MS", "900000", "pause_default_timeout_ms", 300000),
        ("RESOLVE_PROBE_INTERVAL_MS", "1", "resolve_probe_interval_ms", 60000),
        ("PROVIDER_IDLE_TIMEOUT_MS", "0", "provider_idle_timeout_ms", 90000),
        ("MEMORY_MAX_VALUE_BYTES", "-1", "memory_max_value_bytes", 0),
        ("METRICS_SAMPLE_INTERVAL_MS", "3", "metrics_sample_interval_ms", 1000),
        ("CODE_AGENTS_RUN_TIMEOUT_SECONDS", "0", "code_agents_run_timeout_seconds", 1),
        ("MOCK_429_RATE", "1.5", "mock_429_rate", 0.0),
        ("MOCK_500_RATE", "nan", "mock_500_rate", 0.0),
        ("MOCK_LATENCY_MS", "-3", "mock_latency_ms", 0),
        ("OTEL_TRACES_SAMPLER_RATIO", "7", "otel_traces_sampler_ratio", 1.0),
        ("HTTP_HOST_ALLOWLIST", " a.com ,, b.com", "http_host_allowlist", ("a.com", "b.com")),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "k=v,bad,=x,a=b=c",
            "otel_exporter_otlp_headers",
            {"k": "v", "a": "b=c"},
        ),
        ("A2A_PUBLIC_BASE_URL", "https://x.example/", "a2a_public_base_url", "https://x.example"),
    ],
)
def test_a_variable_is_read_within_its_limits(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(read(**{name: text}), field) == value


def test_variables_of_vendors_have_no_prefix() -> None:
    environ = {
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9/",
        "OLLAMA_BASE_URL": "disabled",
        "NATS_URL": "nats://a:1, nats://b:2",
    }
    environment = read_environment(environ, Findings())
    assert environment.anthropic_api_key == "k"
    assert environment.anthropic_base_url == "http://127.0.0.1:9"
    assert environment.ollama_base_url == ""
    assert environment.nats_servers == ("nats://a:1", "nats://b:2")
    own = read_environment({**environ, "LOOMCYCLE_NATS_URL": "nats://c:3"}, Findings())
    assert own.nats_servers == ("nats://c:3",)


def test_every_variable_is_named_once_and_is_in_the_printed_table() -> None:
    names = [row.meaning.name for row in VARIABLES]
    assert len(set(names)) == len(names)
    assert [row.field for row in VARIABLES] == list(Environment.__struct_fields__)
    table = variables_table()
    assert all(f"| `{name}` |" in table for name in names)


def test_an_unusable_number_is_a_warning_that_does_not_quote_it() -> None:
    findings = Findings()
    read_environment({"LOOMCYCLE_TOOL_PARALLELISM": "hunter2"}, findings)
    assert findings.warnings == ["LOOMCYCLE_TOOL_PARALLELISM: not a whole number, ignored; using 8"]


def test_a_secret_is_not_shown_by_its_representation() -> None:
    environment = read(AUTH_TOKEN="sesame", OTEL_EXPORTER_OTLP_HEADERS="authorization=sesame")
    assert environment.auth_token == "sesame"
    assert "sesame" not in repr(environment)
    assert repr(Secret("x")) == "Secret('***')"


def test_auth_env_lines_are_parsed_leniently() -> None:
    text = """
# comment
A=1
export B = "two words"
C='x
D=''
broken line
=nothing
E="a=b"
"""
    assert parse_auth_env(text) == {"A": "1", "B": "two words", "C": "'x", "D": "", "E": "a=b"}


def test_auth_env_fills_only_what_is_unset_or_empty(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "c.yaml").write_text("defaults: {model: '${LOOMCYCLE_MODEL}'}\n")
    (tmp_path / "conf" / "auth.env").write_text(
        "LOOMCYCLE_AUTH_TOKEN=t\nLOOMCYCLE_MODEL=m\nLOOMCYCLE_GRPC_ADDR=x\n"
    )
    environ = {"LOOMCYCLE_AUTH_TOKEN": "", "LOOMCYCLE_GRPC_ADDR": "kept"}
    loaded = load([Path("conf/c.yaml")], environ, tmp_path)
    assert loaded.environment.auth_token == "t"
    assert loaded.environment.grpc_addr == "kept"
    assert loaded.config.defaults.model == "m"
    assert loaded.auth_env == ("LOOMCYCLE_AUTH_TOKEN", "LOOMCYCLE_MODEL")
    assert any(note.startswith("auth.env: loaded 2 var(s) from ") for note in loaded.notes)
    assert environ["LOOMCYCLE_AUTH_TOKEN"] == ""
    without = load([Path("conf/c.yaml")], environ, tmp_path, read_auth_env=False)
    assert without.environment.auth_token == ""


def test_auth_env_beside_an_earlier_layer_is_not_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.yaml").write_text("")
        (tmp_path / name / "auth.env").write_text(f"LOOMCYCLE_AUTH_TOKEN={name}\n")
    loaded = load([Path("one/c.yaml"), Path("two/c.yaml")], {}, tmp_path)
    assert loaded.environment.auth_token == "two"


def test_an_unreadable_auth_env_is_a_note_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "auth.env").mkdir()
    assert any(note.startswith("auth.env: cannot read") for note in load([], {}, tmp_path).notes)


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY",
        "LOOMCYCLE_AUTH_TOKEN",
        "LOOMCYCLE_OPERATOR_TOKEN_PEPPER",
        "LOOMCYCLE_PG_DSN",
        "LOOMCYCLE_MASTER_KEY",
        "LOOMCYCLE_JOBS_TOKEN",
    ],
)
def test_a_secret_can_come_from_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("value\n\n")
    assert load([], {f"{name}_FILE": "secret"}, tmp_path).environ[name] == "value\n"
    given = load([], {f"{name}_FILE": "secret", name: "kept"}, tmp_path)
    assert given.environ[name] == "kept"


def test_an_expanded_secret_does_not_reach_an_error_or_a_warning(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "storage: {backend: '${LOOMCYCLE_DB_PASSWORD}'}\n"
        "provider_priority: ['${GITHUB_TOKEN}']\n"
        "memory_backends: {b: {kind: '${LOOMCYCLE_DB_PASSWORD}'}}\n"
    )
    environ = {"LOOMCYCLE_DB_PASSWORD": "open-sesame", "GITHUB_TOKEN": "ghp_open-sesame"}
    with pytest.raises(ConfigError) as error:
        load([Path("c.yaml")], environ, tmp_path)
    shown = str(error.value) + "".join(error.value.warnings)
    assert len(error.value.problems) == 2
    assert "open-sesame" not in shown
    assert "[redacted:LOOMCYCLE_DB_PASSWORD]" in shown


def test_a_secret_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LOOMCYCLE_AUTH_TOKEN_FILE: cannot read nope") as error:
        load([], {"LOOMCYCLE_AUTH_TOKEN_FILE": "nope"}, tmp_path)
    assert error.value.problems[0].code == "unreadable"


@pytest.mark.parametrize("content", ["", "\n", "\r\n", " \n\n"])
@pytest.mark.parametrize("name", ["LOOMCYCLE_AUTH_TOKEN", "OPENAI_API_KEY", "LOOMCYCLE_JOBS_TOKEN"])
def test_a_secret_file_without_a_secret_is_an_error(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(content.encode())
    with pytest.raises(ConfigError, match=f"{name}_FILE: secret is empty") as error:
        load([], {f"{name}_FILE": "secret"}, tmp_path)
    assert error.value.problems[0].code == "missing"
    assert load([], {f"{name}_FILE": "secret", name: "own"}, tmp_path).environ[name] == "own"


def test_file_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    environ = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/nonexistent", "LOOMCYCLE_ENV_FILE": "/nonexistent"}
    assert load([], environ, tmp_path).environ == environ


def test_retired_variables_are_errors_that_name_each(tmp_path: Path) -> None:
    environ = {"LOOMCYCLE_READ_ROOT": "/a", "LOOMCYCLE_BASH_CWD": "/b", "LOOMCYCLE_WRITE_ROOT": ""}
    with pytest.raises(ConfigError, match="volumes:") as error:
        load([], environ, tmp_path)
    assert [(problem.path, problem.code) for problem in error.value.problems] == [
        ("LOOMCYCLE_READ_ROOT", "retired"),
        ("LOOMCYCLE_BASH_CWD", "retired"),
    ]


def test_a_misspelt_variable_is_a_warning_unless_the_yaml_uses_it(tmp_path: Path) -> None:
    environ = {"LOOMCYCLE_LISTEN_ADRR": "x", "LOOMCYCLE_MY_OWN": "y"}
    (warning,) = load([], environ, tmp_path).warnings
    assert 'did you mean "LOOMCYCLE_LISTEN_ADDR"' in warning
    (tmp_path / "c.yaml").write_text("defaults: {model: '${LOOMCYCLE_LISTEN_ADRR}'}")
    assert load([Path("c.yaml")], environ, tmp_path).warnings == ()


def test_storage_variables_override_yaml_and_switches_only_turn_on(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "storage: {sqlmem_enabled: true, pg_automigrate: true, sqlmem_max_rows: 5,"
        " pg_dsn: '${LOOMCYCLE_PG_DSN}', sqlmem_shared_schemas: [a]}\n"
    )
    environ = {
        "LOOMCYCLE_STORAGE_BACKEND": "postgres",
        "LOOMCYCLE_PG_DSN": "postgres://u:p@h/d",
        "LOOMCYCLE_SQLMEM_PG_DSN": "postgres://u:p@h/e",
        "LOOMCYCLE_SQLMEM_ENABLED": "0",
        "LOOMCYCLE_PG_MAX_OPEN_CONNS": "8",
        "LOOMCYCLE_PG_MIN_IDLE_CONNS": "9",
        "LOOMCYCLE_SQLMEM_MAX_ROWS": "-3",
        "LOOMCYCLE_SQLMEM_TXN_TIMEOUT_MS": "0",
        "LOOMCYCLE_SQLMEM_SHARED_SCHEMAS": "b, c",
        "LOOMCYCLE_SQLMEM_AUDIT_MODE": "loud",
    }
    storage = load([Path("c.yaml")], environ, tmp_path).config.storage
    assert (storage.backend, storage.pg_dsn) == ("postgres", "postgres://u:p@h/d")
    assert (storage.sqlmem_enabled, storage.pg_automigrate) == (True, True)
    assert (storage.pg_max_open_conns, storage.pg_min_idle_conns) == (8, 2)
    assert (storage.sqlmem_max_rows, storage.sqlmem_txn_timeout_ms) == (5, 30_000)
    assert storage.sqlmem_shared_schemas == ("b", "c")
    assert storage.sqlmem_audit_mode == "full"


def test_other_overrides_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "concurrency: {max_concurrent_runs_per_user: 4}\n"
        "hooks: {permit_host_widen: {owners: [a]}}\n"
    )
    environ = {
        "LOOMCYCLE_MAX_CONCURRENT_RUNS_PER_USER": "0",
        "LOOMCYCLE_HOOKS_PERMIT_HOST_WIDEN_OWNERS": "t:b",
        "LOOMCYCLE_LOG_PREFIX": "other",
        "LOOMCYCLE_DATA_DIR": "/var/x",
    }
    config = load([Path("c.yaml")], environ, tmp_path).config
    assert config.concurrency.max_concurrent_runs_per_user == 0
    assert config.hooks.permit_host_widen.owners == ("a", "t:b")
    assert config.log.prefix == "other"
    assert config.storage.sqlmem_root == "/var/x/sqlmem"
