"""Structured output: whether a final answer fits the JSON Schema that the agent declares."""

from __future__ import annotations

import msgspec
from jsonschema import Draft202012Validator
from msgspec import Raw


def problem(schema: Raw, text: str) -> str:
    """Why ``text`` does not fit, with the place (JSON pointer); "" when it does."""
    try:
        value = msgspec.json.decode(text.strip())
    except msgspec.DecodeError as cause:
        return f"not JSON: {cause}"
    validator = Draft202012Validator(msgspec.json.decode(schema))
    error = next(
        iter(sorted(validator.iter_errors(value), key=lambda e: list(map(str, e.path)))), None
    )
    if error is None:
        return ""
    pointer = "".join(f"/{part}" for part in error.absolute_path)
    return f"{pointer or '/'}: {error.message}"


def repair_request(error: str) -> str:
    """What the model is told about an answer that does not fit."""
    return (
        f"Your answer does not fit the required JSON Schema ({error}). "
        "Answer again with JSON that fits it, and with nothing else."
    )
