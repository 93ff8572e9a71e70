"""How to start another process of this very program, wherever it was started from.

The current directory is not searched for modules: its ``events`` or ``replay`` may be somebody
else's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def own_command(*arguments: str) -> list[str]:
    """The command line of ``loomcycle ARGUMENTS``."""
    return [sys.executable, "-P", "-m", "loomcycle.cli", *arguments]


def own_environ(**changes: str) -> dict[str, str]:
    """Our environment with ``changes``, such that :func:`own_command` finds this code."""
    environ = {**os.environ, **changes}
    if (_ROOT / "pyproject.toml").exists():  # a checkout, perhaps not installed
        path = [str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
        environ["PYTHONPATH"] = os.pathsep.join(path)
    return environ
