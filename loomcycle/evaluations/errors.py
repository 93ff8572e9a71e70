"""Why an evaluation was not stored or read. Texts are shown to agents."""

from __future__ import annotations


class EvaluationsUnavailable(Exception):
    """The log or the view did not answer in time; ``reason`` says what is known."""

    code = "unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
