"""The command line's rules: what each way of calling it prints, where, and with which code."""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from loomcycle.address import Address, parse_address
from loomcycle.cli import main
from loomcycle.cli.client import error_text
from loomcycle.cli.entry import COMMANDS
from loomcycle.logs import BOOT, Flood, subsystem

CONFIG = """
defaults: {provider: openai, model: gpt-4o-mini}
agents:
  triage: {system_prompt: Sort., allowed_tools: [Read], max_tokens: 100}
  writer: {provider: anthropic, model: m}
mcp_servers:
  search: {transport: stdio, command: searcher}
"""

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in an otherwise empty working directory, and no variables of our own."""
    monkeypatch.chdir(tmp_path)
    for name in ("LOOMCYCLE_CONFIG_FILES", "LOOMCYCLE_DATA_DIR", "LOOMCYCLE_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    file = tmp_path / "loomcycle.yaml"
    file.write_text(CONFIG)
    return file


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """``serve`` takes over the process log and its signals."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    root.handlers[:], root.level = handlers, level
    for number, handler in signals.items():
        signal.signal(number, handler)


# --- general rules ------------------------------------------------------------------------


def test_an_unknown_word_is_an_error_and_never_starts_a_server(capsys: Captured) -> None:
    assert main(["sevre"]) == 2
    printed = capsys.readouterr()
    assert printed.err == 'loomcycle: error: unknown subcommand "sevre"\n'
    assert printed.out == ""


@pytest.mark.parametrize("word", ["help", "-h", "--help", "-help"])
def test_help_prints_the_usage_on_stdout(word: str, capsys: Captured) -> None:
    assert main([word]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(f"  {name} " in printed.out for name in COMMANDS)


@pytest.mark.parametrize("word", ["version", "-v", "--version", "-version"])
def test_the_version_is_one_line_that_scripts_parse(word: str, capsys: Captured) -> None:
    assert main([word]) == 0
    line = capsys.readouterr().out
    shape = r"loomcycle version=\S+ commit=([0-9a-f]{12}(-dirty)?|unknown) built=\S+ go=\S+\n"
    assert re.fullmatch(shape, line)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_shows_examples(name: str, capsys: Captured) -> None:
    assert main([name, "--help"]) == 0
    assert f"  loomcycle {'--' if name == 'serve' else name}" in capsys.readouterr().out
    assert main(["help", name]) == 0
    assert "Examples:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("group", "verb"),
    [
        ("agents", "list"),
        ("hash", "agent"),
        ("hash", "skill"),
        ("log", "run"),
        ("log", "session"),
        ("log", "tenant"),
        ("projections", "rebuild"),
        ("projections", "status"),
        ("projections", "verify"),
        ("replay", "verify"),
    ],
)
def test_every_verb_shows_examples(group: str, verb: str, capsys: Captured) -> None:
    assert main([group, verb, "--help"]) == 0
    assert f"loomcycle {group} {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_short_help_flag_prints_the_usage_on_stderr(name: str, capsys: Captured) -> None:
    assert main([name, "-h"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"Usage: loomcycle {name}")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_unknown_flag_prints_the_usage_on_stderr(name: str, capsys: Captured) -> None:
    assert main([name, "--no-such-flag"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("loomcycle: error: ")
    assert f"Usage: loomcycle {name}" in printed.err


@pytest.mark.parametrize("group", ["agents", "hash", "log", "projections", "replay"])
@pytest.mark.parametrize("rest", [[], ["no-such-verb"]])
def test_a_noun_needs_a_known_verb(group: str, rest: list[str], capsys: Captured) -> None:
    assert main([group, *rest]) == 2
    assert capsys.readouterr().err.startswith("loomcycle: error: ")


# --- validate, agents list, hash ----------------------------------------------------------


def test_validate_prints_the_report(config: Path, capsys: Captured) -> None:
    assert main(["validate", "loomcycle.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("loomcycle config: loomcycle.yaml\n\nStorage backend  : sqlite\n")
    assert "  triage                   provider=openai     model=gpt-4o-mini\n" in printed.out
    assert "  search                   transport=stdio\n" in printed.out
    assert printed.out.endswith("\nOK\n")
    assert printed.err == ""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("agents: {a: {tier: enormous}}", "agents.a.tier"),
        ("agents: [", "parse bad.yaml"),
        ("user_tiers: {}\nagents: {a: {tier: low}}", "agents.a"),
    ],
)
def test_a_bad_configuration_is_an_invocation_error(
    text: str, word: str, config: Path, capsys: Captured
) -> None:
    config.with_name("bad.yaml").write_text(text)
    assert main(["validate", "bad.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("loomcycle: error: ")
    assert word in printed.err


def test_a_missing_configuration_is_an_invocation_error(config: Path, capsys: Captured) -> None:
    assert main(["validate", "elsewhere.yaml"]) == 2
    assert "config file not found: elsewhere.yaml" in capsys.readouterr().err


def test_flags_stop_at_the_first_file(config: Path) -> None:
    assert main(["validate", "loomcycle.yaml", "--help"]) == 2


def test_validate_finds_a_base_url_that_is_none(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://localhost:abc")
    assert main(["validate", "loomcycle.yaml"]) == 2
    assert "OLLAMA_BASE_URL: must start with http:// or https://" in capsys.readouterr().err


def test_validate_takes_exactly_one_file(config: Path) -> None:
    assert main(["validate"]) == 2
    assert main(["validate", "loomcycle.yaml", "loomcycle.yaml"]) == 2


def test_agents_are_listed_as_text(config: Path, capsys: Captured) -> None:
    assert main(["agents", "list"]) == 0
    assert capsys.readouterr().out.startswith("triage\n  provider:")


@pytest.mark.parametrize("flags", [["--config", "loomcycle.yaml"], ["-config=loomcycle.yaml"]])
@pytest.mark.parametrize("as_json", ["--json", "-json"])
def test_agents_are_listed_as_json_with_either_kind_of_dash(
    flags: list[str], as_json: str, config: Path, capsys: Captured
) -> None:
    assert main(["agents", "list", *flags, as_json]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["triage", "writer"]
    assert rows[0]["tools"] == ["Read", "Context"]
    assert rows[1]["model"] == "m"


def test_hash_of_an_agent_file_is_the_published_vector(config: Path, capsys: Captured) -> None:
    file = config.with_name("agents")
    file.mkdir()
    (file / "greeter.md").write_text("Say <hi>.")
    assert main(["hash", "agent", "agents/greeter.md"]) == 0
    digest = "908e784192b9f313ea3c36e800b6906e241d7c418296af09288ddfca5b0562dd"
    assert capsys.readouterr().out == f"sha256:{digest}\n"


def test_hash_of_a_configured_agent_and_of_a_skill(config: Path, capsys: Captured) -> None:
    skill = config.with_name("skills") / "sum"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: sum\n---\nAdd up.")
    assert main(["hash", "agent", "--config", "loomcycle.yaml", "triage"]) == 0
    assert main(["hash", "skill", "skills/sum"]) == 0
    assert main(["hash", "skill", "skills/sum/SKILL.md"]) == 0
    agent, by_dir, by_file = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", agent)
    assert by_dir == by_file != agent


@pytest.mark.parametrize(
    "args",
    [
        ["agent"],
        ["agent", "missing.md"],
        ["agent", "--config", "loomcycle.yaml", "nobody"],
        ["agent", "--config", "missing.yaml", "triage"],
        ["agent", "a.md", "b.md"],
        ["skill", "loomcycle.yaml"],
        ["skill"],
    ],
)
def test_hash_of_something_that_is_not_there(args: list[str], config: Path) -> None:
    assert main(["hash", *args]) == 2


# --- commands that need something running -------------------------------------------------


def test_health_of_a_server_that_is_not_there(capsys: Captured) -> None:
    assert main(["health", "--target", "http://127.0.0.1:1/", "--timeout", "2s"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("loomcycle: error: http://127.0.0.1:1/healthz: ")


@pytest.mark.parametrize("duration", ["soon", "5", ""])
def test_a_timeout_is_a_duration(duration: str, capsys: Captured) -> None:
    assert main(["health", "--timeout", duration]) == 2
    assert "not a duration" in capsys.readouterr().err


def test_a_run_without_a_server_fails(capsys: Captured) -> None:
    assert main(["run", "a", "--prompt", "x", "--target", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/v1/runs: " in capsys.readouterr().err


@pytest.mark.parametrize("target", ["127.0.0.1:8787", "ftp://a", "http://", "http://[::", "x y"])
@pytest.mark.parametrize("command", [["health"], ["run", "a", "--prompt", "x"]])
def test_a_server_address_that_is_none(
    command: list[str], target: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*command, "--target", target]) == 2
    monkeypatch.setenv("LOOMCYCLE_BASE_URL", target)
    assert main(command) == 2
    assert f'server address "{target.rstrip("/")}"' in capsys.readouterr().err


def test_a_run_needs_an_agent_or_a_session(capsys: Captured) -> None:
    assert main(["run", "--prompt", "x"]) == 2
    assert "name an agent" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ["replay", "verify", "r_0000000000000000"],
        ["replay", "verify", "--all"],
        ["log", "tenant", ""],
        ["projections", "status"],
    ],
)
def test_a_directory_without_a_log_is_named_and_left_alone(
    args: list[str], config: Path, capsys: Captured
) -> None:
    assert main(args) == 2
    assert "data holds no log: set LOOMCYCLE_DATA_DIR" in capsys.readouterr().err
    assert not config.with_name("data").exists()


@pytest.mark.parametrize("args", [["verify"], ["verify", "r_0", "--all"]])
def test_replay_verifies_one_run_or_all(args: list[str], config: Path, capsys: Captured) -> None:
    assert main(["replay", *args]) == 2
    assert "name one run, or --all" in capsys.readouterr().err


# --- serve before it serves ---------------------------------------------------------------


def test_a_server_without_any_configuration_names_where_it_looked(
    config: Path, capsys: Captured
) -> None:
    config.unlink()
    assert main([]) == 1
    printed = capsys.readouterr()
    assert str(config) in printed.err
    assert str(config.parent / "home/.config/loomcycle/loomcycle.yaml") in printed.err
    assert "--config" in printed.err


def test_a_named_file_that_is_missing_stops_the_server(config: Path, capsys: Captured) -> None:
    assert main(["--config", "nowhere.yaml"]) == 1
    assert "loomcycle: config file not found: nowhere.yaml\n" in capsys.readouterr().err


def test_a_faulty_configuration_stops_the_server_with_every_problem(
    config: Path, capsys: Captured
) -> None:
    config.write_text("agents: {a: {tier: huge}}\nconcurrency: {max_concurrent_runs: 0}")
    assert main(["serve", "--config", str(config)]) == 1
    printed = capsys.readouterr().err
    assert re.search(r"\nconfig: \d problems:\n", printed)
    assert "agents.a.tier" in printed
    assert "concurrency.max_concurrent_runs" in printed
    assert "loomcycle build: version=" in printed.splitlines()[0]


@pytest.mark.parametrize("listen", ["localhost", "::1:80", "127.0.0.1:99999", "127.0.0.1:x"])
def test_a_listen_address_that_is_none(listen: str, config: Path, capsys: Captured) -> None:
    assert main(["serve", "--listen", listen]) == 2
    assert f"--listen: listen address '{listen}'" in capsys.readouterr().err


def test_a_listen_address_of_the_environment_that_is_none_is_a_failed_boot(
    config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMCYCLE_LISTEN_ADDR", "foo")
    assert main(["serve"]) == 1
    assert "LOOMCYCLE_LISTEN_ADDR: listen address 'foo'" in capsys.readouterr().err


def test_an_audit_file_that_cannot_be_made_is_a_failed_boot(
    config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMCYCLE_AUDIT_LOG_PATH", "nowhere/audit.jsonl")
    assert main(["serve"]) == 1
    reason = "LOOMCYCLE_AUDIT_LOG_PATH: cannot write nowhere/audit.jsonl: No such file or directory"
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("127.0.0.1:8787", "127.0.0.1", 8787, "http://127.0.0.1:8787"),
        (":80", "", 80, "http://127.0.0.1:80"),
        ("0.0.0.0:80", "0.0.0.0", 80, "http://127.0.0.1:80"),
        ("[::1]:80", "::1", 80, "http://[::1]:80"),
        ("[::]:80", "::", 80, "http://[::1]:80"),
        ("example.org:0", "example.org", 0, "http://example.org:0"),
    ],
)
def test_listen_addresses(text: str, host: str, port: int, url: str) -> None:
    assert parse_address(text) == Address(host, port)
    assert parse_address(str(parse_address(text))) == Address(host, port)
    assert parse_address(text).url == url


# --- texts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"code":"x","error":"busy"}', "busy"),
        ('{"error":"busy","message":"try later"}', "try later (busy)"),
        ('{"message":"try later"}', "try later"),
        ("404 page not found\n", "404 page not found"),
        ("x" * 300, "x" * 200),
        ("[1]", "[1]"),
        ("", "empty response"),
    ],
)
def test_what_is_shown_of_an_error_response(body: str, text: str) -> None:
    assert error_text(body) == text


def test_log_lines_carry_their_subsystem() -> None:
    assert subsystem("events.embedded") == "embedded"
    assert subsystem("loomcycle.tools.memory") == "memory"


def _record(name: str, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "", 0, message, args, None)


def test_a_flood_of_one_kind_is_cut_and_counted() -> None:
    now = [100.0]
    flood = Flood(lambda: now[0])
    passed = [flood.filter(_record("a", "lane %d down", i)) for i in range(10)]
    assert sum(passed) == Flood.BURST
    assert flood.filter(_record("a", "another thing"))
    assert all(flood.filter(_record(BOOT, "line %d", i)) for i in range(10))
    now[0] += Flood.WINDOW_S
    later = _record("a", "lane %d down", 7)
    assert flood.filter(later)
    assert later.getMessage() == "lane 7 down (7 more like this before)"


# --- what the documents promise -----------------------------------------------------------

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_documents_name_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:events|replay|projections|loomcycle|gateways)/[\w./-]+)`", document.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_commands_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`loomcycle ([a-z]+)", (ROOT / "README.md").read_text()))
    assert named - {"help"} <= set(COMMANDS)
    assert set(COMMANDS) - named <= {"health", "version", "hash"}


def test_targets_that_documents_name_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "".join(document.read_text() for document in DOCUMENTS)
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
    assert {"run", "test"} <= named
    assert [name for name in named if f"\n{name}:" not in makefile] == []


def test_the_readme_opens_with_how_to_run_and_test() -> None:
    first = (ROOT / "README.md").read_text().split("```")[1].splitlines()[1:]
    assert [line.split("#")[0].strip() for line in first] == ["make run", "make test"]
