"""``make run`` and ``make demo``, without make: the first thing that anybody sees must work."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def demo(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("LOOMCYCLE_")}
    environ.pop("ANTHROPIC_API_KEY", None)
    environ.pop("OPENAI_API_KEY", None)
    return subprocess.Popen(
        [sys.executable, "-m", "loomcycle.demo.run", *arguments],
        cwd=directory,
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Something to look at."""
    (tmp_path / "README.md").write_text("# Toy\n\nA toy of three files.\n")
    (tmp_path / "toy.py").write_text("def play():\n    pass  # TODO\n")
    (tmp_path / "data.yaml").write_text("a: 1\n")
    return tmp_path


def test_the_demo_runs_an_agent_and_proves_its_journal(project: Path) -> None:
    process = demo(project)
    output = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 0, output
    assert '→ Read {"path": "README.md"}' in output
    assert "A toy of three files." in output
    assert re.search(r"r_[0-9a-f]{16}: proven: \d+ commits, .* equal\n", output)
    assert sorted(path.name for path in project.iterdir()) == ["README.md", "data.yaml", "toy.py"]


def test_the_demo_keeps_serving_until_told_to_stop(project: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:  # the usual port may be in use, by us or by somebody else
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        except OSError:
            pass
        process = demo(project, "--keep-serving", "--data", str(tmp_path / "kept"))
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(ANSI.sub("", line))
            if lines[-1].startswith("Serving on "):
                break
        output = "".join(lines)
        url = re.search(r"Serving on (http://127\.0\.0\.1:\d+);", output)
        assert url is not None, output
        assert not url[1].endswith(":8787")
        assert f"curl -N {url[1]}/v1/runs" in output
        assert httpx.get(f"{url[1]}/healthz", trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url[1]}/healthz", trust_env=False)
    assert (
        (tmp_path / "kept" / "server.log").read_text().splitlines()[-1].endswith("shutting down…")
    )


def test_a_directory_that_is_none_is_told(project: Path) -> None:
    process = demo(project, "--dir", "elsewhere")
    assert "elsewhere is not a directory" in process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 2
