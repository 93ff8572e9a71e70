"""The chain of a whole journal, checked apart from its fold."""

from __future__ import annotations

from collections.abc import Iterable

from events.commit import Chain, Commit


def check_chain(run: str, commits: Iterable[Commit]) -> Chain:
    """Check a journal from its first commit; returns the chain's end. Raises BrokenChain."""
    chain = Chain(run)
    for commit in commits:
        chain.check(commit)
    return chain
