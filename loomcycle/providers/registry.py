"""The providers of a deployment, built from environment settings (providers.md sections 2, 3, 7).

Missing keys never fail start-up: asking for such a provider raises, and the text names the
variable to set. Building costs no I/O; HTTP clients come to life at the first call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from loomcycle.config.base_urls import WANTED, is_base_url
from loomcycle.providers.anthropic import AnthropicProvider
from loomcycle.providers.base import Provider, ProviderNotConfigured
from loomcycle.providers.deepseek import DEEPSEEK
from loomcycle.providers.framing import NdjsonFraming
from loomcycle.providers.gemini import GeminiProvider
from loomcycle.providers.mock import MockProvider, MockSettings
from loomcycle.providers.ollama import OllamaProvider
from loomcycle.providers.openai import OPENAI, OpenAIProvider
from loomcycle.providers.ratelimit import HeaderWait, retry_after, retry_after_or_reset
from loomcycle.providers.transport import Endpoint, Sleep, Transport

CONFIGURABLE_IDS = (
    "anthropic",
    "openai",
    "deepseek",
    "gemini",
    "ollama",
    "ollama-local",
    "anthropic-oauth-dev",
    "mock",
    "mock-stable",
)
"""Ids that lists in a configuration may name; ``code-js`` can only be pinned."""

CODE_JS = "code-js"

_OAUTH_DEV = (
    "anthropic-oauth-dev not registered (personal-subscription sign-in is not available; "
    "set ANTHROPIC_API_KEY and use provider anthropic)"
)
_CODE_JS_OFF = (
    "code-js provider not configured: code agents are disabled "
    "(set LOOMCYCLE_CODE_AGENTS_ENABLED=1)"
)


class UnknownProvider(ProviderNotConfigured):
    """No provider has this id."""


class Registry:
    """Provider instances by id, and for each of the others the reason why it is missing.

    ``missing`` are texts for users, ``reasons`` the short ones of the availability matrix.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        missing: Mapping[str, str],
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._missing = dict(missing)
        self._reasons = dict(reasons or {})

    def get(self, provider_id: str) -> Provider:
        """The provider, or :class:`ProviderNotConfigured` (:class:`UnknownProvider`)."""
        provider = self._providers.get(provider_id)
        if provider is not None:
            return provider
        if provider_id in self._missing:
            raise ProviderNotConfigured(self._missing[provider_id])
        raise UnknownProvider(f'unknown provider "{provider_id}"')

    def check(self, provider_id: str) -> None:
        """Raise as :meth:`get` does; an enabled ``code-js``, which has no driver, passes."""
        if provider_id == CODE_JS and CODE_JS not in self._missing:
            return
        self.get(provider_id)

    def configured(self) -> dict[str, Provider]:
        """Providers that can be called."""
        return dict(self._providers)

    def missing(self) -> dict[str, str]:
        """Known ids that cannot be called, each with the text that :meth:`get` raises."""
        return dict(self._missing)

    def excluded(self) -> dict[str, str]:
        """Ids that a tier may name but that cannot be called, each with what is not set."""
        return {
            name: self._reasons.get(name, self._missing[name])
            for name in CONFIGURABLE_IDS
            if name in self._missing and name not in self._providers
        }

    async def close(self) -> None:
        """Close every connection pool."""
        await asyncio.gather(*(provider.close() for provider in self._providers.values()))


def build_providers(
    environ: Mapping[str, str],
    *,
    rng: random.Random | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Registry:
    """Providers for these environment settings.

    ``rng`` serves the mock (default: seeded by the system). ``sleep`` makes every pause that a
    driver takes on purpose (after HTTP 429, mock latency).
    """
    builder = _Builder(environ, rng or random.Random(), sleep)
    builder.add_hosted()
    builder.add_ollama_local()
    builder.add_mock()
    builder.missing["anthropic-oauth-dev"] = _OAUTH_DEV
    builder.reasons["anthropic-oauth-dev"] = "anthropic-oauth-dev not registered"
    if environ.get("LOOMCYCLE_CODE_AGENTS_ENABLED") != "1":
        builder.missing[CODE_JS] = _CODE_JS_OFF
    return Registry(builder.providers, builder.missing, builder.reasons)


class _Builder:
    def __init__(self, environ: Mapping[str, str], rng: random.Random, sleep: Sleep) -> None:
        self.providers: dict[str, Provider] = {}
        self.missing: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self._environ = environ
        self._rng = rng
        self._sleep = sleep
        self._header_timeout = self._millis("LOOMCYCLE_PROVIDER_HEADER_TIMEOUT_MS", 60_000)
        self._idle_timeout = self._millis("LOOMCYCLE_PROVIDER_IDLE_TIMEOUT_MS", 90_000)

    def add_hosted(self) -> None:
        if (key := self._key("anthropic", "ANTHROPIC_API_KEY")) and (
            url := self._url("anthropic", "ANTHROPIC_BASE_URL", "https://api.anthropic.com")
        ):
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
            endpoint = self._endpoint("anthropic", url, headers, key, retry_after)
            self._add(AnthropicProvider(self._transport(endpoint)))
        if (key := self._key("openai", "OPENAI_API_KEY")) and (
            url := self._url("openai", "OPENAI_BASE_URL", "https://api.openai.com/v1")
        ):
            self._add(OpenAIProvider(self._openai_transport(url, key), OPENAI))
        if (key := self._key("deepseek", "DEEPSEEK_API_KEY")) and (
            url := self._url("deepseek", "DEEPSEEK_BASE_URL", "https://api.deepseek.com/v1")
        ):
            self._add(OpenAIProvider(self._openai_transport(url, key), DEEPSEEK))
        gemini_url = "https://generativelanguage.googleapis.com/v1beta"
        if (key := self._key("gemini", "GEMINI_API_KEY")) and (
            url := self._url("gemini", "GEMINI_BASE_URL", gemini_url)
        ):
            endpoint = self._endpoint(
                "gemini", url, {"x-goog-api-key": key}, key, retry_after_or_reset
            )
            self._add(GeminiProvider(self._transport(endpoint)))
        if (key := self._key("ollama", "OLLAMA_API_KEY")) and (
            url := self._url("ollama", "OLLAMA_CLOUD_BASE_URL", "https://ollama.com")
        ):
            self._add_ollama("ollama", url, key, self._header_timeout, self._idle_timeout)

    def add_ollama_local(self) -> None:
        variable = "OLLAMA_BASE_URL"
        if self._environ.get(variable, "").strip() == "disabled":
            self.missing["ollama-local"] = (
                "ollama-local provider not configured (OLLAMA_BASE_URL is disabled)"
            )
            self.reasons["ollama-local"] = "OLLAMA_BASE_URL not configured"
        elif url := self._url("ollama-local", variable, "http://localhost:11434"):
            header = self._millis("LOOMCYCLE_OLLAMA_LOCAL_HEADER_TIMEOUT_MS", 300_000)
            idle = self._millis("LOOMCYCLE_OLLAMA_LOCAL_IDLE_TIMEOUT_MS", 300_000)
            self._add_ollama("ollama-local", url, "", header, idle)

    def add_mock(self) -> None:
        if self._environ.get("LOOMCYCLE_MOCK_ENABLED") != "1":
            for name in ("mock", "mock-stable"):
                self.missing[name] = (
                    f"{name} provider not configured (set LOOMCYCLE_MOCK_ENABLED=1)"
                )
                self.reasons[name] = "LOOMCYCLE_MOCK_ENABLED not set"
            return
        latency = max(0, self._integer("LOOMCYCLE_MOCK_LATENCY_MS", 50))
        jitter = max(0, self._integer("LOOMCYCLE_MOCK_LATENCY_JITTER_MS", 25))
        stable = MockSettings(latency_ms=latency, jitter_ms=jitter)
        failing = MockSettings(
            latency_ms=latency,
            jitter_ms=jitter,
            rate_429=self._rate("LOOMCYCLE_MOCK_429_RATE"),
            rate_500=self._rate("LOOMCYCLE_MOCK_500_RATE"),
        )
        self._add(MockProvider("mock", failing, rng=self._rng, sleep=self._sleep))
        self._add(MockProvider("mock-stable", stable, rng=self._rng, sleep=self._sleep))

    def _add(self, provider: Provider) -> None:
        self.providers[provider.id] = provider

    def _add_ollama(self, name: str, url: str, key: str, header: float, idle: float) -> None:
        endpoint = Endpoint(
            name=name,
            base_url=url,
            headers=_bearer(key),
            secret=key,
            accept="application/x-ndjson",
            framing=NdjsonFraming,
            header_timeout=header,
            idle_timeout=idle,
        )
        local = "LOCAL_" if name == "ollama-local" else ""
        window = max(0, self._integer(f"LOOMCYCLE_OLLAMA_{local}NUM_CTX", 0))
        self._add(OllamaProvider(name, self._transport(endpoint), num_ctx=window))

    def _openai_transport(self, url: str, key: str) -> Transport:
        endpoint = self._endpoint("openai", url, _bearer(key), key, retry_after_or_reset)
        return self._transport(endpoint)

    def _endpoint(
        self,
        name: str,
        url: str,
        headers: dict[str, str],
        key: str,
        header_wait: HeaderWait,
    ) -> Endpoint:
        return Endpoint(
            name=name,
            base_url=url,
            headers=headers,
            secret=key,
            header_wait=header_wait,
            header_timeout=self._header_timeout,
            idle_timeout=self._idle_timeout,
        )

    def _transport(self, endpoint: Endpoint) -> Transport:
        return Transport(endpoint, sleep=self._sleep)

    def _key(self, provider_id: str, variable: str) -> str:
        """The key, or "" with the reason noted (unset, or not sendable as an HTTP header)."""
        key = self._environ.get(variable, "").strip()
        if not key:
            self.missing[provider_id] = f"{provider_id} provider not configured (set {variable})"
            self.reasons[provider_id] = f"{variable} not set"
        elif not (key.isascii() and key.isprintable()):
            self.missing[provider_id] = (
                f"{provider_id} provider not configured "
                f"({variable} holds characters that an HTTP header cannot carry)"
            )
            self.reasons[provider_id] = f"{variable} cannot be sent as an HTTP header"
            return ""
        return key

    def _url(self, provider_id: str, variable: str, default: str) -> str:
        url = self._environ.get(variable, "").strip().rstrip("/") or default
        if is_base_url(url):
            return url
        self.missing[provider_id] = f"{provider_id} provider not configured ({variable} {WANTED})"
        self.reasons[provider_id] = f"{variable} is not a URL"
        return ""

    def _integer(self, variable: str, default: int) -> int:
        try:
            return int(self._environ.get(variable, ""))
        except ValueError:
            return default

    def _millis(self, variable: str, default: int) -> float:
        """Seconds from a variable in milliseconds; zero and negative values are ignored."""
        value = self._integer(variable, default)
        return (value if value > 0 else default) / 1000

    def _rate(self, variable: str) -> float:
        try:
            value = float(self._environ.get(variable, "0"))
        except ValueError:
            return 0.0
        return value if 0 <= value <= 1 else 0.0


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
