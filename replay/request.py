"""The model request of a state, and its canonical hash. Requests are derived, never stored."""

from __future__ import annotations

from replay.conversation import ModelRequest
from replay.hashing import request_hash
from replay.state import State


def model_request(state: State, max_tokens: int = 0) -> ModelRequest:
    """What the model is asked next. ``messages`` is the state's own list: do not change it.

    ``max_tokens``: how long a budget lets the answer be, 0 for as long as the agent's may be.
    """
    plan = state.plan
    return ModelRequest(
        provider=state.provider,
        model=state.asked_model,
        system=state.system,
        messages=state.messages,
        tools=plan.tools,
        max_tokens=max_tokens or plan.max_tokens,
        effort=state.effort,
        sampling=plan.sampling,
    )


def hash_of(state: State, request: ModelRequest) -> str:
    """The hash that ``model.answered`` records for ``request``."""
    return request_hash(request, state.rolling.over(state.messages))
