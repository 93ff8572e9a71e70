"""Loading the configuration for a command: which files, and how errors become exit codes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from loomcycle.cli.errors import BadInvocation
from loomcycle.config.layers import layer_files
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.loading import load
from loomcycle.config.problems import ConfigError, ConfigNotFound


def check_script(source: str) -> str | None:
    """Syntax error of a JavaScript agent; the interpreter is imported at the first use."""
    from replay.codejs import check

    return check(source)


def load_layers(configs: Sequence[Path]) -> LoadedConfig:
    """The configuration of a server. Raises ConfigError, ConfigNotFound."""
    cwd = Path.cwd()
    return load(layer_files(configs, os.environ, cwd), os.environ, cwd, check_script=check_script)


def load_file(config: Path) -> LoadedConfig:
    """Exactly one file, no layers. Raises BadInvocation."""
    try:
        return load([config], os.environ, Path.cwd(), check_script=check_script)
    except (ConfigError, ConfigNotFound) as error:
        raise BadInvocation(str(error)) from None


def load_if_any(configs: Sequence[Path]) -> LoadedConfig:
    """What a server would load; an empty configuration when there is no file and none is named.

    Raises BadInvocation.
    """
    cwd = Path.cwd()
    try:
        files = layer_files(configs, os.environ, cwd)
    except ConfigNotFound:
        files = []
    try:
        return load(files, os.environ, cwd, check_script=check_script)
    except (ConfigError, ConfigNotFound) as error:
        raise BadInvocation(str(error)) from None
