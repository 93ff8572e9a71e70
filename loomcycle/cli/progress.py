"""A progress bar on stderr for what takes longer than a second; nothing without a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0


class Bar:
    """``with Bar("folding") as bar: bar.at(done, total)``. ``total`` 0 means not known yet."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, done: int, total: int) -> None:
        """``done`` of ``total`` steps are behind us. Callable from any thread."""
        if self._progress is None and not self._show():
            return
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)

    def _show(self) -> bool:
        if not sys.stderr.isatty() or time.monotonic() - self._began < PATIENCE_S:
            return False
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(self._title, total=None)
        self._progress.start()
        return True
