"""What all file tools share: work beside the event loop that ends when its call is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from loomcycle.tools.base import ToolOutput
from loomcycle.tools.files import InvalidCall, Stopped, open_regular, printable, run_file_tool
from loomcycle.volumes import Located, VolumeError

_anything = msgspec.json.Decoder()


async def run(work: Callable[[object, Callable[[], None]], str]) -> ToolOutput:
    return await run_file_tool(_anything, b"{}", work)


async def test_cancelling_a_call_ends_its_thread_at_the_next_checkpoint() -> None:
    started, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def endless(request: object, checkpoint: Callable[[], None]) -> str:
        loop.call_soon_threadsafe(started.set)
        try:
            while True:
                checkpoint()
        except Stopped:
            ended.set()
            raise

    call = asyncio.create_task(run(endless))
    await started.wait()
    assert not ended.is_set()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(ended.wait, 10)


async def test_work_does_not_run_on_the_loop() -> None:
    output = await run(lambda request, checkpoint: str(threading.get_ident()))
    assert output.text != str(threading.get_ident())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidCall("pattern is required"), "pattern is required"),
        (VolumeError("no volume"), "no volume"),
        (FileNotFoundError(2, "No such file or directory", "/v/x"),
         "open /v/x: no such file or directory"),
        (OSError(5, "Input/output error"), "input/output error"),
    ],
)  # fmt: skip
async def test_failures_become_error_results(error: Exception, text: str) -> None:
    def fail(request: object, checkpoint: Callable[[], None]) -> str:
        raise error

    assert await run(fail) == ToolOutput(text, is_error=True)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with open_regular(Located(str(tmp_path), ("f",))) as file:
        assert file.read() == b"x"
    with pytest.raises(IsADirectoryError):
        open_regular(Located(str(tmp_path), ()))


def test_text_that_utf8_cannot_hold_is_replaced() -> None:
    assert printable("é\udce9") == "é\ufffd"
