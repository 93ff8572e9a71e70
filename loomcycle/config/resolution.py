"""Which provider and model an agent asks for, from configuration alone (providers spec 9).

Pure functions. Availability of providers is not known here: callers try the candidates in
the order given.
"""

from __future__ import annotations

from loomcycle.config.agent_schema import AgentConfig, ProviderCandidate
from loomcycle.config.schema import Config, UserTierConfig
from loomcycle.config.vocabulary import CODE_PROVIDER, DEFAULT_PROVIDER_PRIORITY


class Unresolved(Exception):
    """An agent's provider or model cannot be told; `code` is stable, the text is for users."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def expand_alias(config: Config, candidate: ProviderCandidate) -> ProviderCandidate:
    """Replace an aliased model, one level; the alias's provider fills only an empty one."""
    alias = config.models.get(candidate.model)
    if alias is None:
        return candidate
    return ProviderCandidate(provider=candidate.provider or alias.provider, model=alias.model)


def resolve_pin(config: Config, agent: AgentConfig) -> tuple[str, str]:
    """The (provider, model) of an agent's pin, defaults filling the gaps.

    Raises Unresolved (`provider_unresolved`, `model_unresolved`) when something is missing.
    """
    if agent.provider == CODE_PROVIDER:
        return CODE_PROVIDER, agent.model or agent.name
    pin = expand_alias(config, ProviderCandidate(provider=agent.provider, model=agent.model))
    provider = pin.provider or config.defaults.provider
    model = pin.model or config.defaults.model
    if not provider:
        message = f'agent "{agent.name}": no provider resolved; set it or `defaults.provider`'
        raise Unresolved("provider_unresolved", message)
    if provider == CODE_PROVIDER:
        return provider, model or agent.name
    if not model:
        message = f'agent "{agent.name}": no model resolved; set it or `defaults.model`'
        raise Unresolved("model_unresolved", message)
    return provider, model


def provider_order(
    config: Config, agent: AgentConfig, user_tier: UserTierConfig | None = None
) -> tuple[str, ...]:
    """Providers in the order to try. An unset list restricts nothing.

    Raises Unresolved (`policy_refusal`) when the agent's and the tier's lists are disjoint.
    """
    granted = user_tier.provider_priority if user_tier else ()
    if agent.providers and granted:
        order = tuple(provider for provider in agent.providers if provider in granted)
        if not order:
            message = f'agent not available for user_tier: "{agent.name}" and the tier share none'
            raise Unresolved("policy_refusal", message)
        return order
    return agent.providers or granted or config.provider_priority or DEFAULT_PROVIDER_PRIORITY


def tier_candidates(
    config: Config, agent: AgentConfig, user_tier: UserTierConfig | None = None
) -> tuple[ProviderCandidate, ...]:
    """The candidates of the agent's tier in the order to try; provider order dominates.

    Raises Unresolved (`tier_unavailable`, `policy_refusal`).
    """
    tier = agent.tier
    if not tier:
        raise Unresolved("tier_unavailable", f'agent "{agent.name}" has no tier')
    overlay = user_tier.tiers if user_tier else {}
    listed = agent.models.get(tier) or overlay.get(tier) or config.tiers.get(tier) or ()
    if not listed:
        message = f"no provider available for requested tier: {tier} has no candidates"
        raise Unresolved("tier_unavailable", message)
    expanded = [expand_alias(config, candidate) for candidate in listed]
    order = provider_order(config, agent, user_tier)
    ordered = tuple(c for provider in order for c in expanded if c.provider == provider)
    if not ordered and user_tier is not None:
        message = f"agent not available for user_tier: no candidate of tier {tier} is granted"
        raise Unresolved("policy_refusal", message)
    return ordered
