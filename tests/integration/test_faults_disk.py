"""A damaged file under nats-server: what it drops is noticed, named, and not done again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.bench.deployment import Deployment, Server, wait_for
from tests.chaos.scene import command, complete, deployment

pytestmark = pytest.mark.integration


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path) as made:
        yield made


def flip(data: Path, text: bytes) -> None:
    """One bit in the middle of the first stored commit that holds ``text``."""
    for block in sorted(data.glob("nats/**/streams/*RUNS-*/msgs/*.blk")):
        content = bytearray(block.read_bytes())
        at = content.find(text)
        if at >= 0:
            content[at + len(text) // 2] ^= 1
            block.write_bytes(content)
            return
    raise AssertionError(f"{text!r} is not in the log")


def seen(server: Server, run_id: str) -> bool:
    url = f"{server.url}/v1/agents/a_{run_id.removeprefix('r_')}"
    return httpx.get(url, timeout=30).status_code == 200


def test_a_flipped_bit_on_disk_is_named_and_nothing_goes_on_before_somebody_decides(
    made: Deployment,
) -> None:
    server = made.start()
    runs = [complete(server) for _ in range(30)]
    assert seen(server, runs[-1])
    made.kill_everything()
    flip(made.data, f'"session":"s_{runs[0].removeprefix("r_")}"'.encode())
    server = made.launch()
    server.wait_healthy()
    wait_for(lambda: "missing from the log" in httpx.get(f"{server.url}/readyz").text, "the loss")
    assert httpx.get(f"{server.url}/readyz").status_code == 503
    start = httpx.post(f"{server.url}/v1/runs", json={"agent": "plain", "prompt": "x"}, timeout=30)
    assert start.status_code == 503
    assert "sequence" in start.text
    proof = command(made, "replay", "verify", "--all")
    assert proof.returncode == 1
    assert "is missing: the views have seen it" in proof.stdout
