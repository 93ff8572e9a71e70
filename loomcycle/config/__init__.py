"""Configuration: YAML layers, agent and skill files, secrets and environment variables.

Entry point `load`; everything else the package offers is re-exported here. What must not
break: the order of the load pipeline, the content hashes, and that no secret value reaches
an error, a warning or a note.
"""

from loomcycle.config.agent_schema import (
    AgentChannels,
    AgentConfig,
    AgentInterruption,
    CompactionConfig,
    ProviderCandidate,
    SamplingConfig,
)
from loomcycle.config.content_hash import content_sha256, mcp_content_sha256
from loomcycle.config.environment import variables_table
from loomcycle.config.hash_files import hash_agent_file, hash_configured_agent, hash_skill_file
from loomcycle.config.layers import discover, layer_files
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.loading import load
from loomcycle.config.principals import DeclaredPrincipal
from loomcycle.config.problems import ConfigError, ConfigNotFound, Problem
from loomcycle.config.reports import agents_listing, validate_report
from loomcycle.config.resolution import Unresolved, resolve_pin, tier_candidates
from loomcycle.config.schema import Config
from loomcycle.config.skills import Skill
from loomcycle.config.variable_row import Secret
from loomcycle.config.variables import Environment

__all__ = [
    "AgentChannels",
    "AgentConfig",
    "AgentInterruption",
    "CompactionConfig",
    "Config",
    "ConfigError",
    "ConfigNotFound",
    "DeclaredPrincipal",
    "Environment",
    "LoadedConfig",
    "Problem",
    "ProviderCandidate",
    "SamplingConfig",
    "Secret",
    "Skill",
    "Unresolved",
    "agents_listing",
    "content_sha256",
    "discover",
    "hash_agent_file",
    "hash_configured_agent",
    "hash_skill_file",
    "layer_files",
    "load",
    "mcp_content_sha256",
    "resolve_pin",
    "tier_candidates",
    "validate_report",
    "variables_table",
]
