"""Declarations of other systems the runtime talks to: MCP servers, A2A cards and peers, OpenAPI.

Declarations only (config spec section 7, a2a spec A1, mcp spec B1 and B9).
"""

from __future__ import annotations

from msgspec import Struct

from loomcycle.config.vocabulary import NonNegative


class McpServerConfig(Struct, frozen=True, kw_only=True):
    """An MCP server whose tools agents may use; `allowed_tools` empty exposes all of them."""

    transport: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    pool_size: NonNegative = 0
    allowed_tools: tuple[str, ...] = ()


class LocalApiConfig(Struct, frozen=True, kw_only=True):
    """An OpenAPI document exposed as tools; `spec` is relative to the last config file."""

    spec: str = ""
    base_url: str = ""
    tool_name_prefix: str = ""


class CardProvider(Struct, frozen=True, kw_only=True):
    """The organisation named on an agent card."""

    organization: str = ""
    url: str = ""


class CardCapabilities(Struct, frozen=True, kw_only=True):
    """Optional protocol features an agent card announces."""

    streaming: bool = False
    push_notifications: bool = False
    extended_agent_card: bool = False


class ExposedAgent(Struct, frozen=True, kw_only=True):
    """An agent offered to remote peers as one skill."""

    agent_name: str = ""
    skill_id: str = ""
    skill_name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()


class SecurityScheme(Struct, frozen=True, kw_only=True):
    """A way for peers to authenticate: kind `http`, `apiKey`, `oauth2` or `mtls`."""

    kind: str = ""
    scheme: str = ""


class A2AServerCardConfig(Struct, frozen=True, kw_only=True):
    """An agent card this server can publish."""

    name: str = ""
    description: str = ""
    provider: CardProvider = CardProvider()
    capabilities: CardCapabilities = CardCapabilities()
    exposed_agents: tuple[ExposedAgent, ...] = ()
    security_schemes: tuple[SecurityScheme, ...] = ()
    sign_with_key_env: str = ""


class PeerAuth(Struct, frozen=True, kw_only=True):
    """How to authenticate at a peer; the reference names a per-run credential."""

    scheme: str = ""
    bearer_credential_ref: str = ""


class ExpectedSkill(Struct, frozen=True, kw_only=True):
    """A skill a peer should offer."""

    id: str = ""
    required: bool = False


class A2AAgentConfig(Struct, frozen=True, kw_only=True):
    """A remote A2A peer, reached by its card's URL or by endpoint and binding."""

    agent_card_url: str = ""
    endpoint: str = ""
    binding: str = ""
    auth: PeerAuth = PeerAuth()
    expected_skills: tuple[ExpectedSkill, ...] = ()
    verify_signed_card: bool = False
