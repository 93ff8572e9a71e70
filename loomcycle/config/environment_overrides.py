"""Lays the environment over the configuration and applies the defaults that zeros stand for.

Pure: takes a Config, returns a Config. The environment can only turn storage switches on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from loomcycle.config.schema import (
    Config,
    HostWidenPermission,
    StorageConfig,
    UserTierConfig,
    VolumeConfig,
)
from loomcycle.config.variables import Environment

_ZERO_MEANS: Final = {
    "sqlmem_statement_timeout_ms": 30_000,
    "sqlmem_max_rows": 10_000,
    "sqlmem_txn_timeout_ms": 30_000,
    "sqlmem_max_open_txns": 64,
    "sqlmem_max_txn_depth": 16,
    "sqlmem_gc_interval_ms": 3_600_000,
    "pg_max_open_conns": 32,
}
_STORAGE_ALIASES: Final = {"backend": "storage_backend"}

MAX_RETRIES: Final = 5
DEFAULT_FALLBACKS: Final = 3
DEFAULT_COOLDOWN_MS: Final = 30_000
COOLDOWN_LIMITS_MS: Final = (1_000, 600_000)


def apply_environment(config: Config, environment: Environment, cwd: Path) -> Config:
    """The configuration the runtime works with: environment applied, defaults filled in."""
    concurrency = config.concurrency
    if environment.max_concurrent_runs_per_user is not None:
        cap = environment.max_concurrent_runs_per_user
        concurrency = replace(concurrency, max_concurrent_runs_per_user=cap)
    owners = config.hooks.permit_host_widen.owners + environment.hooks_permit_host_widen_owners
    heartbeat = config.interruption.heartbeat_interval_ms or 30_000
    log = config.log
    if environment.log_prefix:
        log = replace(log, prefix=environment.log_prefix)
    return replace(
        config,
        concurrency=concurrency,
        storage=_storage(config.storage, environment),
        hooks=replace(config.hooks, permit_host_widen=HostWidenPermission(owners=owners)),
        interruption=replace(config.interruption, heartbeat_interval_ms=heartbeat),
        user_tiers={name: _user_tier(tier) for name, tier in config.user_tiers.items()},
        volumes={name: _volume(volume, cwd) for name, volume in config.volumes.items()},
        log=log,
    )


def _storage(storage: StorageConfig, environment: Environment) -> StorageConfig:
    values: dict[str, Any] = {}
    for field in StorageConfig.__struct_fields__:
        given = getattr(environment, _STORAGE_ALIASES.get(field, field))
        unset = given is None or given is False or given == "" or given == ()
        values[field] = getattr(storage, field) if unset else given
        if values[field] == 0 and field in _ZERO_MEANS:
            values[field] = _ZERO_MEANS[field]
    if not values["sqlmem_root"]:
        values["sqlmem_root"] = str(Path(environment.data_dir) / "sqlmem")
    if values["pg_min_idle_conns"] > values["pg_max_open_conns"]:
        values["pg_min_idle_conns"] = values["pg_max_open_conns"] // 4
    if values["sqlmem_audit_mode"] not in ("full", "metadata"):
        values["sqlmem_audit_mode"] = "full"
    return StorageConfig(**values)


def _user_tier(tier: UserTierConfig) -> UserTierConfig:
    low, high = COOLDOWN_LIMITS_MS
    cooldown = tier.rate_limit_cooldown_ms
    return replace(
        tier,
        max_fallback_attempts=tier.max_fallback_attempts or DEFAULT_FALLBACKS,
        retry_attempts=min(tier.retry_attempts, MAX_RETRIES),
        rate_limit_cooldown_ms=min(max(cooldown, low), high) if cooldown else DEFAULT_COOLDOWN_MS,
    )


def _volume(volume: VolumeConfig, cwd: Path) -> VolumeConfig:
    return replace(volume, path=str((cwd / volume.path).absolute())) if volume.path else volume
