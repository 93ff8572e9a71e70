"""Base URLs of vendors: what can be one, and where another is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from loomcycle.config import ConfigError, load
from loomcycle.config.base_urls import WANTED, is_base_url
from loomcycle.providers.base import ProviderNotConfigured
from loomcycle.providers.registry import build_providers

GOOD = [
    "http://localhost:11434",
    "https://api.example/v1",
    "http://user:word@10.0.0.1:1/a/b",
    "http://my_host:65535",
    "http://[::1]:8080/v1",
    "https://grüße.example",
]
BAD = [
    "localhost:11434",
    "ftp://host",
    "http://",
    "http://:80",
    "http://localhost:abc",
    "http://localhost:99999",
    "http://localhost:-1",
    "http://[::1",
    "http://a..b",
    "http://" + "a" * 64,
    "http://ho st",
    "http://host\n/v1",
    "http://host/v1?key=x",
    "http://host/v1#x",
]
VARIABLES = [
    "ANTHROPIC_BASE_URL",
    "OPENAI_BASE_URL",
    "DEEPSEEK_BASE_URL",
    "VOYAGE_BASE_URL",
    "GEMINI_BASE_URL",
    "OLLAMA_BASE_URL",
    "OLLAMA_CLOUD_BASE_URL",
]


@pytest.mark.parametrize("url", GOOD)
def test_base_urls(url: str) -> None:
    assert is_base_url(url)


@pytest.mark.parametrize("url", BAD)
def test_no_base_urls(url: str) -> None:
    assert not is_base_url(url)
    registry = build_providers({"OLLAMA_BASE_URL": url})
    with pytest.raises(ProviderNotConfigured, match="OLLAMA_BASE_URL must start with http"):
        registry.get("ollama-local")


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_bad_base_url_is_a_problem_of_the_configuration_and_never_shown(
    variable: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        load([], {variable: "http://user:se/cret@host:abc"}, tmp_path)
    (problem,) = error.value.problems
    assert (problem.path, problem.code, problem.message) == (variable, "syntax", WANTED)
    assert load([], {variable: " http://127.0.0.1:9/v1/ "}, tmp_path)


def test_the_word_that_turns_a_local_ollama_off_is_no_url(tmp_path: Path) -> None:
    assert load([], {"OLLAMA_BASE_URL": "disabled"}, tmp_path).environment.ollama_base_url == ""
