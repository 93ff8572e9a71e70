"""Agent files, skills, prompts, hashes, model resolution and CLI texts: config spec 7.1 to 9."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from loomcycle.config import (
    AgentChannels,
    AgentConfig,
    AgentInterruption,
    CompactionConfig,
    ConfigError,
    ConfigNotFound,
    LoadedConfig,
    ProviderCandidate,
    SamplingConfig,
    Skill,
    Unresolved,
    agents_listing,
    content_sha256,
    hash_agent_file,
    hash_configured_agent,
    hash_skill_file,
    load,
    mcp_content_sha256,
    resolve_pin,
    tier_candidates,
    validate_report,
)

ROOTS = {"LOOMCYCLE_AGENTS_ROOT": "agents", "LOOMCYCLE_SKILLS_ROOT": "skills"}


class Project:
    """A directory with a configuration, agent files and skills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "agents").mkdir()
        (root / "skills").mkdir()
        self.yaml("")

    def yaml(self, text: str) -> None:
        (self.root / "c.yaml").write_text("defaults: {provider: mock, model: m}\n" + text)

    def agent(self, name: str, text: str) -> Path:
        file = self.root / "agents" / f"{name}.md"
        file.write_bytes(text.encode())
        return file

    def skill(self, name: str, text: str) -> Path:
        directory = self.root / "skills" / name
        directory.mkdir(exist_ok=True)
        (directory / "SKILL.md").write_text(text)
        return directory

    def load(self, environ: Mapping[str, str] | None = None) -> LoadedConfig:
        return load([Path("c.yaml")], {**ROOTS, **(environ or {})}, self.root)

    def one(self, name: str) -> AgentConfig:
        return self.load().config.agents[name]

    def problems(self, environ: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
        with pytest.raises(ConfigError) as error:
            self.load(environ)
        return [(problem.path, problem.code) for problem in error.value.problems]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Just a prompt.\n", "Just a prompt.\n"),
        ("---\nmodel: x\n---\nBody\n\n", "Body\n\n"),
        ("---\r\nmodel: x\r\n---\r\nOne\r\nTwo\r\n", "One\nTwo\n"),
        ("---\nmodel: x\n---", ""),
        ("---\n---\nBody", "Body"),
        ("--- \nnot frontmatter\n", "--- \nnot frontmatter\n"),
        ("---\nmodel: x\n---\nBody\n---\nmore", "Body\n---\nmore"),
    ],
)
def test_the_body_of_an_agent_file_is_its_prompt(text: str, prompt: str, project: Project) -> None:
    project.agent("a", text)
    assert project.one("a").system_prompt == prompt


def test_only_md_files_directly_in_the_root_are_agents(project: Project) -> None:
    project.agent("a", "x")
    (project.root / "agents" / "notes.txt").write_text("x")
    (project.root / "agents" / "sub.md").mkdir()
    (project.root / "agents" / "sub").mkdir()
    (project.root / "agents" / "sub" / "b.md").write_text("x")
    loaded = project.load()
    assert list(loaded.config.agents) == ["a"]
    assert loaded.agent_files == {"a": project.root / "agents" / "a.md"}


@pytest.mark.parametrize(
    ("frontmatter", "tools"),
    [
        ("tools: 'Read, Grep,'", ("Read", "Grep")),
        ("tools: [Read, Grep]", ("Read", "Grep")),
        ("tools: [Read]\nallowed_tools: [Write]", ("Write",)),
        ("tools: [Read]\nallowed_tools: []", ("Read",)),
        ("model: x", ()),
    ],
)
def test_tools_come_from_either_key_and_allowed_tools_wins(
    frontmatter: str, tools: tuple[str, ...], project: Project
) -> None:
    project.agent("a", f"---\n{frontmatter}\n---\n")
    assert project.one("a").allowed_tools == (*tools, "Context")


@pytest.mark.parametrize(
    ("text", "path", "code"),
    [
        ("---\nmodel: x\n", "agents.a", "syntax"),
        ("---\n- x\n---\n", "agents.a", "syntax"),
        ("---\nmodel: [\n---\n", "agents.a", "syntax"),
        ("---\nname: b\n---\n", "agents.a.name", "conflict"),
        ("---\ntools: {Read: true}\n---\n", "agents.a.tools", "wrong_type"),
        ("---\ntools: [1]\n---\n", "agents.a.tools", "wrong_type"),
        ("---\nsystem_prompt_file: p.txt\n---\nBody", "agents.a.system_prompt_file", "conflict"),
        ("---\ntier: low\nmodel: m\n---\n", "agents.a.tier", "conflict"),
    ],
)
def test_a_faulty_agent_file_is_refused(text: str, path: str, code: str, project: Project) -> None:
    project.agent("a", text)
    assert project.problems() == [(path, code)]


def test_a_fault_in_frontmatter_is_placed_in_its_file_and_line(project: Project) -> None:
    file = project.agent("a", "---\nmodel: x\nmax_tokens: many\n---\n")
    with pytest.raises(ConfigError, match="max_tokens") as error:
        project.load()
    assert str(error.value).endswith(f"({file}:3)")


def test_frontmatter_that_is_not_read_is_warned_of(project: Project) -> None:
    project.agent("a", "---\nsampling: {temperature: 1}\nmodle: x\ncolor: red\n---\n")
    warnings = "\n".join(project.load().warnings)
    assert "agents.a.sampling: not read from frontmatter" in warnings
    assert 'agents.a.modle: unknown key, ignored (did you mean "model"?)' in warnings
    assert "agents.a.color: unknown key, ignored (" in warnings
    assert project.one("a").sampling == SamplingConfig()


FILE_AGENT = """---
name: a
description: from file
tools: [Read]
model: file-model
effort: low
max_tokens: 100
skills: []
memory_scopes: [user]
memory_quota_bytes: 9
channels: {publish: [c1], subscribe: [c1]}
agent_def_scopes: [self]
interruption: {enabled: true, max_pending: 3}
---
File prompt"""


def overridden(project: Project, yaml: str) -> AgentConfig:
    project.agent("a", FILE_AGENT)
    project.yaml(
        "channels: {c1: {scope: user}, c2: {scope: user}}\n"
        f"volumes: {{v: {{path: .}}}}\nagents: {{a: {yaml}}}\n"
    )
    return project.one("a")


def test_yaml_overrides_an_agent_file_field_by_field(project: Project) -> None:
    agent = overridden(project, "{max_tokens: 7, allowed_tools: [Write], memory_scopes: []}")
    assert (agent.max_tokens, agent.effort, agent.model) == (7, "low", "file-model")
    assert agent.allowed_tools == ("Write", "Context")
    assert agent.memory_scopes == ()
    assert agent.system_prompt == "File prompt"
    assert agent.description == "from file"


def test_zero_scalars_null_and_description_in_yaml_leave_the_file_alone(project: Project) -> None:
    agent = overridden(
        project, "{max_tokens: 0, model: '', effort: ~, description: other, memory_scopes: ~}"
    )
    assert (agent.max_tokens, agent.model, agent.effort) == (100, "file-model", "low")
    assert (agent.description, agent.memory_scopes) == ("from file", ("user",))


def test_an_empty_yaml_entry_keeps_the_whole_file(project: Project) -> None:
    assert overridden(project, "~").max_tokens == 100


def test_channel_lists_override_separately_and_interruption_as_a_whole(project: Project) -> None:
    agent = overridden(project, "{channels: {publish: [c2]}, interruption: {max_pending: 1}}")
    assert agent.channels == AgentChannels(publish=("c2",), subscribe=("c1",))
    assert agent.interruption == AgentInterruption(enabled=False, max_pending=1)


def test_either_prompt_key_in_yaml_replaces_both(project: Project) -> None:
    (project.root / "p.txt").write_bytes(b"verbatim \r\n")
    assert overridden(project, "{system_prompt: YAML}").system_prompt == "YAML"
    agent = overridden(project, "{system_prompt_file: p.txt}")
    assert (agent.system_prompt, agent.system_prompt_file) == ("verbatim \r\n", "p.txt")


def test_fields_a_file_cannot_carry_apply_from_yaml(project: Project) -> None:
    agent = overridden(
        project,
        "{unbounded_iterations: true, run_timeout_seconds: 5, sampling: {temperature: 0},"
        " compaction: {keep_first: false}, volumes: [v], schedule_def_scopes: [any],"
        " a2a_server_card_def_scopes: [any], a2a_agent_def_scopes: [self], history_scope: self,"
        " disable_context: true, retry_attempts: 0, sql_scopes: [run]}",
    )
    assert agent.unbounded_iterations is True
    assert agent.run_timeout_seconds == 5
    assert agent.sampling == SamplingConfig(temperature=0)
    assert agent.compaction == CompactionConfig(keep_first=False)
    assert agent.volumes == ("v",)
    assert agent.schedule_def_scopes == agent.a2a_server_card_def_scopes == ("any",)
    assert agent.a2a_agent_def_scopes == ("self",)
    assert (agent.history_scope, agent.retry_attempts) == ("self", 0)
    assert agent.allowed_tools == ("Read",)
    assert agent.sql_scopes == ("run",)


def test_prompt_files_are_relative_to_the_last_config_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.txt").write_text(name)
        (tmp_path / name / "c.yaml").write_text(
            "agents: {a: {model: m, system_prompt_file: p.txt}}"
        )
    loaded = load([Path("one/c.yaml"), Path("two/c.yaml")], {}, tmp_path)
    assert loaded.config.agents["a"].system_prompt == "two"


@pytest.mark.parametrize(
    ("agent", "tools"),
    [
        ("{}", ("Context",)),
        ("{allowed_tools: [Read]}", ("Read", "Context")),
        ("{allowed_tools: [context]}", ("context",)),
        ("{allowed_tools: [Context, Read]}", ("Context", "Read")),
        ("{allowed_tools: [Read], disable_context: true}", ("Read",)),
        ("{allowed_tools: ['*']}", ("*", "Context")),
    ],
)
def test_context_is_added_unless_listed_or_disabled(
    agent: str, tools: tuple[str, ...], project: Project
) -> None:
    project.yaml(f"agents: {{a: {agent}}}")
    assert project.one("a").allowed_tools == tools


def test_skill_bodies_are_appended_in_list_order(project: Project) -> None:
    project.skill("one", "---\nname: one\nallowed-tools: [Read, mcp__s__get]\n---\nFirst.\n")
    project.skill("two", "Second.")
    (project.root / "skills" / "empty").mkdir()
    (project.root / "skills" / "file.txt").write_text("x")
    project.yaml(
        "agents:\n"
        "  a: {system_prompt: Base, skills: [two, one], allowed_tools: [Read, mcp__s__*]}\n"
        "  b: {skills: [one], allowed_tools: ['*']}\n"
    )
    loaded = project.load()
    a, b = loaded.config.agents["a"], loaded.config.agents["b"]
    assert a.system_prompt == "Base\n\n---\n\nSecond.\n\n---\n\nFirst.\n"
    assert a.base_system_prompt == "Base"
    assert (b.system_prompt, b.base_system_prompt) == ("First.\n", "")
    assert sorted(loaded.skills) == ["one", "two"]


@pytest.mark.parametrize(
    ("skill_tools", "agent_tools", "accepted"),
    [
        ("[Read]", "[Read]", True),
        ("[mcp__s__get]", "['mcp__s__*']", True),
        ("['mcp__s__*']", "['mcp__*']", True),
        ("['mcp__s__*']", "[mcp__s__get]", False),
        ("[Read]", "[read]", False),
        ("[Context]", "[Read]", False),
    ],
)
def test_a_skill_never_widens_an_agent(
    skill_tools: str, agent_tools: str, accepted: bool, project: Project
) -> None:
    project.skill("s", f"---\nallowed-tools: {skill_tools}\n---\nx")
    project.yaml(f"agents: {{a: {{skills: [s], allowed_tools: {agent_tools}}}}}")
    if accepted:
        project.load()
    else:
        assert project.problems() == [("agents.a.skills[0]", "conflict")]


def test_unknown_and_misnamed_skills_are_refused(project: Project) -> None:
    project.skill("writing", "---\nname: other\n---\nx")
    project.yaml("agents: {a: {skills: [writng]}}")
    assert project.problems() == [
        ("skills.writing.name", "conflict"),
        ("agents.a.skills[0]", "unknown_name"),
    ]
    with pytest.raises(ConfigError, match=r'unknown skill "writng" under .*skills.*"writing"'):
        project.load()


def test_javascript_agents_are_checked_when_the_server_starts(project: Project) -> None:
    project.yaml("agents: {inline: {provider: code-js, code: BROKEN}, file: {provider: code-js}}")
    environ = {"LOOMCYCLE_CODE_AGENTS_ENABLED": "1"}

    def check(source: str) -> str | None:
        return "unexpected token" if source == "BROKEN" else None

    with pytest.raises(ConfigError) as error:
        load([Path("c.yaml")], environ, project.root, check_script=check)
    assert [(problem.path, problem.code) for problem in error.value.problems] == [
        ("agents.inline.code", "syntax"),
        ("agents.file.code", "missing"),
    ]
    assert "no index.js at" in str(error.value)
    program = project.root / "agent_code" / "file" / "index.js"
    program.parent.mkdir(parents=True)
    program.write_text("function run() {}")
    project.yaml("agents: {file: {provider: code-js}}")
    load([Path("c.yaml")], environ, project.root, check_script=check)
    assert project.problems() == [("agents.file.provider", "unsupported")]


@pytest.mark.parametrize("name", ["a/b", "..", "a\\\\b"])
def test_a_javascript_agent_cannot_reach_outside_its_root(name: str, project: Project) -> None:
    project.yaml(f'agents: {{"{name}": {{provider: code-js}}}}')
    ((_, code),) = project.problems({"LOOMCYCLE_CODE_AGENTS_ENABLED": "1"})
    assert code == "unsupported"


def candidates(*names: str) -> tuple[ProviderCandidate, ...]:
    pairs = (name.split("/") for name in names)
    return tuple(ProviderCandidate(provider=p, model=m) for p, m in pairs)


@pytest.mark.parametrize(
    ("definition", "digest"),
    [
        (AgentConfig(), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        (AgentConfig(name="x"), "0229d37e33daae149bf40543a5ce1db4459d10f830d5139279aa2bfd5f6485a1"),
        (
            AgentConfig(
                name="researcher",
                system_prompt="be thorough",
                allowed_tools=("WebFetch", "Read"),
                max_tokens=8192,
            ),
            "9c6a6098efbad0bdde2cd0c777a70d97b204125c37004b3f80a7f5734cde2c03",
        ),
        (
            AgentConfig(
                name="researcher",
                models={
                    "low": candidates("deepseek/deepseek-chat"),
                    "high": candidates("anthropic/claude-opus-4-5", "openai/gpt-5-2025-08-07"),
                },
            ),
            "c23827d24ac610aa96718ea32a8e3c22783c3beb1ad3cc0830165ba82f9fc701",
        ),
        (
            AgentConfig(name="greeter", system_prompt="Say <hi>.\r\n \t"),
            "908e784192b9f313ea3c36e800b6906e241d7c418296af09288ddfca5b0562dd",
        ),
        (
            AgentConfig(name="x", sampling=SamplingConfig(temperature=0.2, top_k=40)),
            "7aa766f2bb769bf62d9b74626d21bec06781860b3c9dbf7c7133929cb92d4981",
        ),
        (
            AgentConfig(name="t", sampling=SamplingConfig(temperature=0)),
            "83ebc49f4713102fed8785ff4acd36d450d8f924524a4653a99320087679d321",
        ),
        (
            AgentConfig(
                name="x", allowed_tools=("Read",), channels=AgentChannels(publish=("out",))
            ),
            "cb34d8ef7afcb00a2779eb88f3b5b0a1ea30461c660707abe52da9a53b75d372",
        ),
        (
            Skill(name="s1", body='Use <b> & "go".'),
            "3c2f71ccad5d9973b31fb1b220eaca7118a1248e928f3f090ba4ea62eb5dbc93",
        ),
    ],
)
def test_content_hashes_match_the_published_vectors(
    definition: AgentConfig | Skill, digest: str
) -> None:
    assert content_sha256(definition) == f"sha256:{digest}"


def test_the_hash_of_an_mcp_server_matches_the_published_vector() -> None:
    digest = mcp_content_sha256(
        name="n8n-mailgun",
        transport="streamable-http",
        url="https://n8n.example.com/mcp/abc",
        headers={"Authorization": "Bearer ${LOOMCYCLE_N8N_TOKEN}"},
        description="n8n workflow exposing Mailgun send via MCP Server Trigger",
    )
    assert digest == "sha256:7da12c1e79db6d6e5e5dd323f121a1be1606ef454b3a9dc91b101880ac663e2a"


def test_settings_outside_the_closed_field_set_do_not_change_the_hash() -> None:
    agent = AgentConfig(
        name="x",
        history_scope="any",
        sql_scopes=("run",),
        retry_attempts=2,
        disable_context=True,
        agent_def_scopes=("any",),
        output_schema={"type": "object"},
        max_tokens_total=5,
    )
    assert content_sha256(agent) == content_sha256(AgentConfig(name="x"))


def test_the_hash_of_a_file_and_of_the_loaded_agent_follow_their_own_rules(
    project: Project,
) -> None:
    file = project.agent("a", "---\ndescription: d\ntools: [Read]\nskills: [s]\n---\nPrompt\n")
    project.skill("s", "Body")
    as_written = AgentConfig(
        name="a",
        description="d",
        allowed_tools=("Read",),
        skills=("s",),
        system_prompt="Prompt\n",
    )
    as_loaded = AgentConfig(
        name="a",
        allowed_tools=("Read", "Context"),
        skills=("s",),
        system_prompt="Prompt\n\n\n---\n\nBody",
    )
    assert hash_agent_file(file) == content_sha256(as_written)
    assert hash_configured_agent(project.load(), "a") == content_sha256(as_loaded)
    skill = content_sha256(Skill(name="s", body="Body"))
    assert hash_skill_file(project.root / "skills" / "s") == skill
    assert hash_skill_file(project.root / "skills" / "s" / "SKILL.md") == skill


def test_hashing_refuses_missing_unknown_and_broken(project: Project) -> None:
    file = project.agent("a", "x")
    with pytest.raises(ConfigNotFound):
        hash_agent_file(project.root / "agents" / "z.md")
    with pytest.raises(ConfigNotFound):
        hash_skill_file(project.root / "skills" / "z")
    with pytest.raises(ConfigError, match=r"SKILL\.md"):
        hash_skill_file(file)
    with pytest.raises(ConfigError, match='no agent "z"'):
        hash_configured_agent(project.load(), "z")
    project.agent("broken", "---\nmodel: x\n")
    with pytest.raises(ConfigError, match="broken"):
        hash_agent_file(file)


MODELS = """
models: {fast: {provider: openai, model: gpt-4o-mini}, loop: {model: fast}}
tiers: {low: [fast, {provider: anthropic, model: haiku}, {provider: openai, model: mini}]}
provider_priority: [anthropic, openai]
user_tiers:
  default: {}
  paid: {provider_priority: [openai]}
  local: {provider_priority: [ollama-local]}
agents:
  alias: {model: fast}
  alias_other: {provider: deepseek, model: fast}
  once: {model: loop}
  only_provider: {provider: gemini}
  code: {provider: code-js}
  tiered: {tier: low}
  narrowed: {tier: low, providers: [openai]}
  own: {tier: low, models: {low: [{provider: mock, model: x}, fast]}, providers: [openai, mock]}
  empty: {tier: high}
"""


@pytest.fixture
def models(project: Project) -> LoadedConfig:
    project.yaml(MODELS)
    (project.root / "agent_code" / "code").mkdir(parents=True)
    (project.root / "agent_code" / "code" / "index.js").write_text("")
    return project.load({"LOOMCYCLE_CODE_AGENTS_ENABLED": "1"})


@pytest.mark.parametrize(
    ("name", "pin"),
    [
        ("alias", ("openai", "gpt-4o-mini")),
        ("alias_other", ("deepseek", "gpt-4o-mini")),
        ("once", ("mock", "fast")),
        ("only_provider", ("gemini", "m")),
        ("code", ("code-js", "code")),
        ("tiered", ("mock", "m")),
    ],
)
def test_a_pin_resolves_alias_first_then_defaults(
    name: str, pin: tuple[str, str], models: LoadedConfig
) -> None:
    assert resolve_pin(models.config, models.config.agents[name]) == pin


@pytest.mark.parametrize(
    ("name", "tier", "order"),
    [
        ("tiered", None, ("anthropic/haiku", "openai/gpt-4o-mini", "openai/mini")),
        ("tiered", "paid", ("openai/gpt-4o-mini", "openai/mini")),
        ("narrowed", "default", ("openai/gpt-4o-mini", "openai/mini")),
        ("own", None, ("openai/gpt-4o-mini", "mock/x")),
    ],
)
def test_candidates_are_ordered_by_provider_priority_first(
    name: str, tier: str | None, order: tuple[str, ...], models: LoadedConfig
) -> None:
    user_tier = models.config.user_tiers[tier] if tier else None
    agent = models.config.agents[name]
    assert tier_candidates(models.config, agent, user_tier) == candidates(*order)


@pytest.mark.parametrize(
    ("name", "tier", "code"),
    [
        ("narrowed", "local", "policy_refusal"),
        ("tiered", "local", "policy_refusal"),
        ("empty", None, "tier_unavailable"),
    ],
)
def test_a_tier_without_candidates_is_refused_with_a_code(
    name: str, tier: str | None, code: str, models: LoadedConfig
) -> None:
    user_tier = models.config.user_tiers[tier] if tier else None
    with pytest.raises(Unresolved) as error:
        tier_candidates(models.config, models.config.agents[name], user_tier)
    assert error.value.code == code


def test_validate_prints_the_summary(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "models: {fast: {provider: openai, model: gpt-4o-mini}}\n"
        "agents: {triage: {model: fast}}\n"
        "mcp_servers: {search: {transport: stdio, command: x}}\n"
    )
    assert validate_report(load([Path("x.yaml")], {}, tmp_path)) == (
        "loomcycle config: x.yaml\n"
        "\n"
        "Storage backend  : sqlite\n"
        "Listen address   : 127.0.0.1:8787\n"
        "Auth token set   : false\n"
        "Concurrency      : max=8 queue=16 timeout=30s\n"
        "\n"
        "Agents           : 1\n"
        "  triage                   provider=openai     model=gpt-4o-mini\n"
        "MCP servers      : 1\n"
        "  search                   transport=stdio\n"
        "\n"
        "OK\n"
    )


def test_validate_masks_the_database_password(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("storage: {backend: postgres, pg_automigrate: true}\n")
    environ = {"LOOMCYCLE_PG_DSN": "postgres://user:p%40ss@db:5432/x?password=other"}
    report = validate_report(load([Path("x.yaml")], environ, tmp_path))
    assert "Postgres DSN     : postgres://user:***@db:5432/x?password=***\n" in report
    assert "Auto-migrate     : true\n" in report
    assert "Agents           : (none)\n\nOK\n" in report


def test_validate_refuses_an_agent_whose_pin_does_not_resolve(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("agents: {a: {tier: low}, b: {model: m}}")
    with pytest.raises(ConfigError, match="no provider resolved") as error:
        validate_report(load([Path("x.yaml")], {}, tmp_path))
    assert [problem.path for problem in error.value.problems] == ["agents.a", "agents.b"]


def test_agents_are_listed_as_text_and_as_json(project: Project) -> None:
    assert agents_listing(project.load()) == "(no agents configured)\n"
    assert agents_listing(project.load(), as_json=True) == "[]\n"
    (project.root / "p.txt").write_text("x")
    project.agent("z", "Prompt")
    project.yaml("agents: {b: {system_prompt_file: p.txt, max_tokens: 5}, a: {system_prompt: x}}")
    loaded = project.load()
    text = agents_listing(loaded)
    assert [line for line in text.splitlines() if line and line[0] != " "] == ["a", "b", "z"]
    assert "  system_prompt: p.txt\n" in text
    assert "  system_prompt: (inline)\n" in text
    assert f"  system_prompt: {project.root / 'agents' / 'z.md'}\n" in text
    rows = json.loads(agents_listing(loaded, as_json=True))
    assert rows[1] == {
        "name": "b",
        "provider": "mock",
        "model": "m",
        "max_tokens": 5,
        "system_prompt_file": "p.txt",
        "tools": ["Context"],
        "skills": [],
    }
