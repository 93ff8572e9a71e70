"""Which providers a set of environment settings gives, and what the missing ones say."""

import subprocess
import sys

import pytest

from loomcycle.providers.base import Provider, ProviderNotConfigured
from loomcycle.providers.mock import MockProvider
from loomcycle.providers.ollama import OllamaProvider
from loomcycle.providers.registry import CONFIGURABLE_IDS, UnknownProvider, build_providers
from loomcycle.providers.transport import Endpoint, Transport

KEYS = {
    "ANTHROPIC_API_KEY": "k1",
    "OPENAI_API_KEY": "k2",
    "DEEPSEEK_API_KEY": "k3",
    "GEMINI_API_KEY": "k4",
    "OLLAMA_API_KEY": "k5",
}


def endpoint(environ: dict[str, str], provider_id: str) -> Endpoint:
    transport = vars(build_providers(environ).get(provider_id))["_transport"]
    assert isinstance(transport, Transport)
    return transport.endpoint


@pytest.mark.parametrize(
    ("provider_id", "text"),
    [
        ("anthropic", "anthropic provider not configured (set ANTHROPIC_API_KEY)"),
        ("openai", "openai provider not configured (set OPENAI_API_KEY)"),
        ("deepseek", "deepseek provider not configured (set DEEPSEEK_API_KEY)"),
        ("gemini", "gemini provider not configured (set GEMINI_API_KEY)"),
        ("ollama", "ollama provider not configured (set OLLAMA_API_KEY)"),
        ("mock", "mock provider not configured (set LOOMCYCLE_MOCK_ENABLED=1)"),
        ("mock-stable", "mock-stable provider not configured (set LOOMCYCLE_MOCK_ENABLED=1)"),
    ],
)
def test_a_missing_provider_names_the_variable_to_set(provider_id: str, text: str) -> None:
    registry = build_providers({})
    with pytest.raises(ProviderNotConfigured) as caught:
        registry.get(provider_id)
    assert str(caught.value) == text
    assert registry.missing()[provider_id] == text


def test_excluded_providers_say_what_is_not_set() -> None:
    environ = {"OPENAI_API_KEY": "k", "GEMINI_API_KEY": "k\n?", "OLLAMA_BASE_URL": "disabled"}
    excluded = build_providers({**environ, "DEEPSEEK_API_KEY": "k", "DEEPSEEK_BASE_URL": "x"})
    assert excluded.excluded() == {
        "anthropic": "ANTHROPIC_API_KEY not set",
        "deepseek": "DEEPSEEK_BASE_URL is not a URL",
        "gemini": "GEMINI_API_KEY cannot be sent as an HTTP header",
        "ollama": "OLLAMA_API_KEY not set",
        "ollama-local": "OLLAMA_BASE_URL not configured",
        "anthropic-oauth-dev": "anthropic-oauth-dev not registered",
        "mock": "LOOMCYCLE_MOCK_ENABLED not set",
        "mock-stable": "LOOMCYCLE_MOCK_ENABLED not set",
    }


def test_code_js_passes_the_check_only_when_enabled() -> None:
    with pytest.raises(ProviderNotConfigured) as caught:
        build_providers({}).check("code-js")
    assert str(caught.value).startswith(
        "code-js provider not configured: code agents are disabled ("
    )
    build_providers({"LOOMCYCLE_CODE_AGENTS_ENABLED": "1"}).check("code-js")


def test_the_oauth_variant_is_never_registered() -> None:
    registry = build_providers({"LOOMCYCLE_ANTHROPIC_OAUTH_DEV_ENABLED": "1", **KEYS})
    with pytest.raises(ProviderNotConfigured, match=r"^anthropic-oauth-dev not registered \("):
        registry.get("anthropic-oauth-dev")


def test_an_unknown_id_is_quoted() -> None:
    with pytest.raises(UnknownProvider) as caught:
        build_providers({}).get("nope")
    assert str(caught.value) == 'unknown provider "nope"'


@pytest.mark.parametrize("value", ["0", "true", "yes", ""])
def test_switches_are_on_only_when_1(value: str) -> None:
    registry = build_providers(
        {"LOOMCYCLE_MOCK_ENABLED": value, "LOOMCYCLE_CODE_AGENTS_ENABLED": value}
    )
    assert {"mock", "code-js"} <= registry.missing().keys()


def test_every_configurable_id_is_either_there_or_says_why_not() -> None:
    for environ in ({}, KEYS, {**KEYS, "LOOMCYCLE_MOCK_ENABLED": "1"}):
        registry = build_providers(environ)
        assert set(CONFIGURABLE_IDS) == {
            *registry.configured(),
            *(registry.missing().keys() - {"code-js"}),
        }
        assert not registry.configured().keys() & registry.missing().keys()


@pytest.mark.parametrize(
    ("provider_id", "url", "variable"),
    [
        ("anthropic", "https://api.anthropic.com", "ANTHROPIC_BASE_URL"),
        ("openai", "https://api.openai.com/v1", "OPENAI_BASE_URL"),
        ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_BASE_URL"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta", "GEMINI_BASE_URL"),
        ("ollama", "https://ollama.com", "OLLAMA_CLOUD_BASE_URL"),
        ("ollama-local", "http://localhost:11434", "OLLAMA_BASE_URL"),
    ],
)
def test_base_urls_have_defaults_and_can_be_set(provider_id: str, url: str, variable: str) -> None:
    assert endpoint(KEYS, provider_id).base_url == url
    assert endpoint({**KEYS, variable: ""}, provider_id).base_url == url
    assert endpoint({**KEYS, variable: "http://h:1/p//"}, provider_id).base_url == "http://h:1/p"
    registry = build_providers({**KEYS, variable: "h:1"})
    with pytest.raises(ProviderNotConfigured, match=f"{variable} must start with http"):
        registry.get(provider_id)


def test_a_local_ollama_can_be_turned_off() -> None:
    with pytest.raises(ProviderNotConfigured, match=r"^ollama-local provider not configured \("):
        build_providers({"OLLAMA_BASE_URL": "disabled"}).get("ollama-local")


@pytest.mark.parametrize(
    ("provider_id", "headers"),
    [
        ("anthropic", {"x-api-key": "k1", "anthropic-version": "2023-06-01"}),
        ("openai", {"Authorization": "Bearer k2"}),
        ("deepseek", {"Authorization": "Bearer k3"}),
        ("gemini", {"x-goog-api-key": "k4"}),
        ("ollama", {"Authorization": "Bearer k5"}),
        ("ollama-local", {}),
    ],
)
def test_authentication_headers(provider_id: str, headers: dict[str, str]) -> None:
    assert endpoint(KEYS, provider_id).headers == headers


def test_white_space_around_a_key_is_dropped_and_unsendable_keys_are_refused_unseen() -> None:
    assert endpoint({"OPENAI_API_KEY": " k\n"}, "openai").secret == "k"
    with pytest.raises(ProviderNotConfigured) as caught:
        build_providers({"OPENAI_API_KEY": "sk-sécret"}).get("openai")
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("bad", ["", "0", "-5", "soon"])
def test_timeouts_ignore_values_that_make_no_sense(bad: str) -> None:
    names = ("PROVIDER_HEADER", "PROVIDER_IDLE", "OLLAMA_LOCAL_HEADER", "OLLAMA_LOCAL_IDLE")
    environ = {**KEYS, **{f"LOOMCYCLE_{name}_TIMEOUT_MS": bad for name in names}}
    for provider_id in ("anthropic", "openai", "deepseek", "gemini", "ollama"):
        found = endpoint(environ, provider_id)
        assert (found.header_timeout, found.idle_timeout) == (60, 90)
    found = endpoint(environ, "ollama-local")
    assert (found.header_timeout, found.idle_timeout) == (300, 300)


def test_timeouts_can_be_set_and_the_local_ollama_has_its_own() -> None:
    environ = {
        **KEYS,
        "LOOMCYCLE_PROVIDER_HEADER_TIMEOUT_MS": "1500",
        "LOOMCYCLE_PROVIDER_IDLE_TIMEOUT_MS": "2500",
        "LOOMCYCLE_OLLAMA_LOCAL_HEADER_TIMEOUT_MS": "3500",
        "LOOMCYCLE_OLLAMA_LOCAL_IDLE_TIMEOUT_MS": "4500",
    }
    hosted, local = endpoint(environ, "ollama"), endpoint(environ, "ollama-local")
    assert (hosted.header_timeout, hosted.idle_timeout) == (1.5, 2.5)
    assert (local.header_timeout, local.idle_timeout) == (3.5, 4.5)


def test_each_ollama_has_its_own_window() -> None:
    registry = build_providers(
        {**KEYS, "LOOMCYCLE_OLLAMA_NUM_CTX": "8192", "LOOMCYCLE_OLLAMA_LOCAL_NUM_CTX": "-1"}
    )
    assert registry.get("ollama").capabilities.context_window == 8192
    assert registry.get("ollama-local").capabilities.context_window == 0
    assert isinstance(registry.get("ollama"), OllamaProvider)


@pytest.mark.parametrize(
    ("provider_id", "window", "flags"),
    [
        ("anthropic", 200_000, "native_cache thinking effort parallel_tools streaming"),
        ("openai", 128_000, "effort parallel_tools streaming"),
        ("deepseek", 128_000, "thinking effort parallel_tools streaming"),
        ("gemini", 2_000_000, "thinking effort parallel_tools streaming"),
        ("ollama", 0, "parallel_tools streaming"),
        ("ollama-local", 0, "parallel_tools streaming"),
        ("mock", 0, ""),
        ("mock-stable", 0, ""),
    ],
)
def test_capabilities(provider_id: str, window: int, flags: str) -> None:
    provider: Provider = build_providers({**KEYS, "LOOMCYCLE_MOCK_ENABLED": "1"}).get(provider_id)
    found = provider.capabilities
    assert provider.id == provider_id
    assert found.context_window == window
    names = ("native_cache", "thinking", "effort", "parallel_tools", "streaming")
    assert " ".join(name for name in names if getattr(found, name)) == flags


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (50, 25, 0.0, 0.0)),
        ({"LATENCY_MS": "0", "LATENCY_JITTER_MS": "-3"}, (0, 0, 0.0, 0.0)),
        ({"LATENCY_MS": "x", "429_RATE": "0.5", "500_RATE": "1"}, (50, 25, 0.5, 1.0)),
        ({"429_RATE": "1.5", "500_RATE": "nan"}, (50, 25, 0.0, 0.0)),
    ],
)
def test_mock_settings(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    named = {f"LOOMCYCLE_MOCK_{name}": value for name, value in environ.items()}
    registry = build_providers({"LOOMCYCLE_MOCK_ENABLED": "1", **named})
    failing, stable = registry.get("mock"), registry.get("mock-stable")
    assert isinstance(failing, MockProvider)
    assert isinstance(stable, MockProvider)
    found = vars(failing)["_settings"]
    assert (found.latency_ms, found.jitter_ms, found.rate_429, found.rate_500) == expected
    found = vars(stable)["_settings"]
    assert (found.rate_429, found.rate_500) == (0, 0)
    assert (found.latency_ms, found.jitter_ms) == expected[:2]


def test_building_providers_does_not_import_the_http_client() -> None:
    program = (
        "import sys; from loomcycle.providers.registry import build_providers; "
        f"build_providers({KEYS!r}); sys.exit('httpx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
