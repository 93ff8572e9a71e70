"""`${NAME}` expansion on raw text, before it is parsed (config spec section 4).

Only names of a closed policy expand; every other token, secrets above all, stays as it is.
The same function expands stored MCP server definitions when they are dialled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

TOKEN: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

EXPANDABLE_NAMES: Final = frozenset(
    {"BRAVE_API_KEY", "GITHUB_TOKEN", "SLACK_BOT_TOKEN", "REDIS_URL"}
)

NEVER_EXPANDED: Final = frozenset(
    {
        "PG_DSN",
        "LOOMCYCLE_PG_DSN",
        "LOOMCYCLE_SQLMEM_PG_DSN",
        "LOOMCYCLE_AUTH_TOKEN",
        "LOOMCYCLE_OPERATOR_TOKEN_PEPPER",
        "LOOMCYCLE_MCP_UPSTREAM_TOKEN",
        "LOOMCYCLE_OTEL_EXPORTER_OTLP_HEADERS",
        "LOOMCYCLE_MASTER_KEY",
        "LOOMCYCLE_NATS_URL",
    }
)


def is_expandable(name: str) -> bool:
    """Whether the policy lets `${name}` be replaced."""
    if name in NEVER_EXPANDED:
        return False
    return name.startswith("LOOMCYCLE_") or name in EXPANDABLE_NAMES


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace each expandable token by its variable's value, once and not recursively.

    An unset variable gives the empty string; a value with a line break leaves the token.
    """

    def value_of(match: re.Match[str]) -> str:
        if not is_expandable(match[1]):
            return match[0]
        value = environ.get(match[1], "")
        return match[0] if "\r" in value or "\n" in value else value

    return TOKEN.sub(value_of, text)


def referenced_names(text: str) -> frozenset[str]:
    """The names of every token in the text, expandable or not."""
    return frozenset(TOKEN.findall(text))
