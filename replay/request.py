"""The model request of a state, and its canonical hash. Requests are derived, never stored."""

from __future__ import annotations

from replay.conversation import ModelRequest
from replay.hashing import request_hash
from replay.state import State


def model_request(state: State) -> ModelRequest:
    """What the model is asked next. ``messages`` is the state's own list: do not change it."""
    plan = state.plan
    return ModelRequest(
        provider=state.provider,
        model=state.asked_model,
        system=state.system,
        messages=state.messages,
        tools=plan.tools,
        max_tokens=plan.max_tokens,
        effort=state.effort,
        sampling=plan.sampling,
    )


def hash_of(state: State, request: ModelRequest) -> str:
    """The hash that ``model.answered`` records for ``request``."""
    return request_hash(request, state.rolling.over(state.messages))
