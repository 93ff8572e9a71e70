"""Which build this is: version, commit and build time, as far as the installation tells.

The commit comes from the installer's record (PEP 610) or from the git checkout the package lies
in; what nobody knows is ``unknown``.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from loomcycle import __version__

UNKNOWN = "unknown"
_ROOT = Path(__file__).resolve().parents[1]


class Build(NamedTuple):
    version: str
    commit: str
    built: str


@cache
def this_build() -> Build:
    """``commit``: 12 hex digits, ``-dirty`` appended for a changed checkout."""
    return Build(__version__, _installed_commit() or _checkout_commit() or UNKNOWN, UNKNOWN)


def _checkout_commit() -> str:
    if not (_ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--abbrev=12", "--dirty"]
    command += ["--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _installed_commit() -> str:
    if (_ROOT / "pyproject.toml").exists():
        return ""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = distribution("loomcycle-runtime").read_text("direct_url.json")
        return str(json.loads(record or "{}")["vcs_info"]["commit_id"])[:12]
    except (PackageNotFoundError, ValueError, KeyError):
        return ""
