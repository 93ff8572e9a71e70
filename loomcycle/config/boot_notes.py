"""Lines printed at boot about features that are off or open (config spec section 11).

Pure function of what was loaded; sweepers and listeners report themselves elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loomcycle.config.expansion import is_expandable
from loomcycle.config.principals import DeclaredPrincipal
from loomcycle.config.schema import Config
from loomcycle.config.trigger_schema import WebhookConfig
from loomcycle.config.variables import Environment


def boot_notes(
    config: Config,
    environment: Environment,
    environ: Mapping[str, str],
    principals: Sequence[DeclaredPrincipal],
) -> Iterator[str]:
    """Notes and warnings in the order they are printed; ``principals`` are the usable ones."""
    if cap := config.concurrency.max_concurrent_runs_per_user:
        yield f"concurrency: at most {cap} run(s) per user"
    if config.user_tiers:
        names = sorted(config.user_tiers, key=lambda name: (name != "default", name))
        yield f"user tiers: {', '.join(names)}"
    if not config.volumes:
        yield "volumes: none declared; file and shell tools will refuse"
    if not environment.http_host_allowlist:
        yield "tools: HTTP and WebFetch refuse; LOOMCYCLE_HTTP_HOST_ALLOWLIST is empty"
    if not environment.brave_api_key:
        yield "tools: WebSearch is off; BRAVE_API_KEY is not set"
    yield from _shell_notes(environment)
    for name, agent in sorted(config.agents.items()):
        if not agent.allowed_tools:
            yield f'agent "{name}": has no tools'
    if config.storage.backend == "sqlite" and config.storage.sqlmem_pg_dsn:
        yield "storage: sqlmem_pg_dsn is ignored with backend sqlite"
    if not environment.auth_token and not principals:
        yield (
            "WARNING: LOOMCYCLE_AUTH_TOKEN is not set and no principal can log in: /v1 is open to"
            " everybody who can reach it"
        )
    if environment.audit_log_path:
        yield (
            "audit: nothing is written to LOOMCYCLE_AUDIT_LOG_PATH: it would record changes of"
            " operator tokens and statements of SQL memory, and this version has neither"
        )
    if environment.webhooks_enabled:
        for name, webhook in sorted(config.webhooks.items()):
            yield from _webhook_notes(name, webhook, environment, environ)


def _shell_notes(environment: Environment) -> Iterator[str]:
    if environment.bash_enabled:
        yield "WARNING: Bash is on: agents that have it run commands on this host"
    else:
        yield "tools: Bash is off (LOOMCYCLE_BASH_ENABLED)"
    if not environment.bashbox_enabled:
        yield "tools: Bashbox is off (LOOMCYCLE_BASHBOX_ENABLED)"
    elif environment.bashbox_fallback_commands:
        names = ", ".join(environment.bashbox_fallback_commands)
        yield f"WARNING: Bashbox runs these commands on this host: {names}"


def _webhook_notes(
    name: str, webhook: WebhookConfig, environment: Environment, environ: Mapping[str, str]
) -> Iterator[str]:
    prefix = f'webhooks: WARNING: "{name}"'
    if not webhook.enabled:
        yield f"{prefix} is disabled"
        return
    auth = webhook.auth
    match auth.kind:
        case "none":
            if not environment.webhooks_allow_unauthenticated:
                switch = "LOOMCYCLE_WEBHOOKS_ALLOW_UNAUTHENTICATED"
                yield f"{prefix} has auth kind none and {switch} is off"
            return
        case "bearer":
            field, variable = "bearer_token_env", auth.bearer_token_env
        case _:
            field, variable = "signing_secret_env", auth.signing_secret_env
    listed = (*environment.webhooks_env_allowlist, *environment.scheduler_env_allowlist)
    if not variable:
        yield f"{prefix} names no {field}: every delivery will be refused"
    elif not (is_expandable(variable) or variable in listed):
        yield f"{prefix} may not read {variable}; add it to LOOMCYCLE_WEBHOOKS_ENV_ALLOWLIST"
    elif not environ.get(variable):
        yield f"{prefix}: {variable} is empty: every delivery will be refused"
