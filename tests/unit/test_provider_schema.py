"""Tool schemas as vendors accept them (providers.md 5)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomcycle.providers import schema


def anthropic(value: Any) -> Any:
    return json.loads(bytes(schema.for_anthropic(json.dumps(value).encode())))


def gemini(value: Any) -> Any:
    return json.loads(bytes(schema.for_gemini(json.dumps(value).encode())))


STRING, INTEGER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    "text",
    [
        '{ "type":"object", "properties": {"a":{"oneOf":[{"type":"string"}]}} }',
        '{"$ref":"#/$defs/X","$defs":{"X":{"type":"object"}},"additionalProperties":false}',
        '{"oneOf":[]}',
        '{"oneOf":"x"}',
        "{}",
        "null",
        "[1, 2]",
        "{not json",
        "",
        "[" * 5000,
    ],
)
def test_anthropic_passes_a_schema_without_root_combinator_byte_for_byte(text: str) -> None:
    assert bytes(schema.for_anthropic(text.encode())) == text.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            {"oneOf": [{"properties": {"a": STRING}, "required": ["a"]},
                       {"properties": {"b": INTEGER}, "required": ["b", "a"]}]},
            {"properties": {"a": STRING, "b": INTEGER}, "required": ["a", "b"], "type": "object"},
            id="variants unite and required is their union in order",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": STRING},
             "anyOf": [{"properties": {"a": INTEGER}, "title": "t"}, {"title": "u"}]},
            {"type": "object", "properties": {"a": STRING}, "title": "t"},
            id="what is there wins",
        ),
        pytest.param(
            {"$defs": {"X": {"properties": {"a": STRING}}}, "allOf": [{"$ref": "#/$defs/X"}]},
            {"$defs": {"X": {"properties": {"a": STRING}}}, "properties": {"a": STRING},
             "type": "object"},
            id="a reference into $defs is inlined",
        ),
        pytest.param(
            {"definitions": {"X": {"$ref": "#/definitions/Y"}, "Y": {"title": "y"}},
             "oneOf": [{"$ref": "#/definitions/X"}]},
            {"definitions": {"X": {"$ref": "#/definitions/Y"}, "Y": {"title": "y"}},
             "title": "y", "type": "object"},
            id="a chain of references is followed",
        ),
        pytest.param(
            {"type": "object", "oneOf": [{"$ref": "#/$defs/Nowhere"}, {"$ref": "http://x/y"}, 7]},
            {"type": "object"},
            id="dangling references and junk variants do nothing",
        ),
        pytest.param(
            {"$defs": {"X": {"$ref": "#/$defs/X"}}, "oneOf": [{"$ref": "#/$defs/X"}]},
            {"$defs": {"X": {"$ref": "#/$defs/X"}}, "type": "object"},
            id="a reference to itself does nothing",
        ),
        pytest.param(
            {"type": "object", "oneOf": [{"type": "array", "items": STRING, "required": ["z"],
                                          "properties": {"z": STRING}, "title": "t"}]},
            {"type": "object", "title": "t"},
            id="a variant of another type brings no properties, items or required",
        ),
        pytest.param(
            {"oneOf": [{"properties": {"a": {"anyOf": [STRING, INTEGER]}}}],
             "additionalProperties": False},
            {"properties": {"a": {"anyOf": [STRING, INTEGER]}}, "additionalProperties": False,
             "type": "object"},
            id="nested unions and additionalProperties stay",
        ),
        pytest.param(
            {"oneOf": [{"title": "a"}], "anyOf": [{"description": "b"}]},
            {"title": "a", "description": "b", "type": "object"},
            id="no combinator is left at the root",
        ),
        pytest.param(
            {"anyOf": [{"oneOf": [{"title": "a"}]}], "$defs": {"X": {"allOf": [{"title": "b"}]}},
             "oneOf": [{"$ref": "#/$defs/X"}]},
            {"$defs": {"X": {"allOf": [{"title": "b"}]}}, "title": "a", "type": "object"},
            id="a combinator that a variant brings is merged too",
        ),
    ],
)  # fmt: skip
def test_anthropic_merges_a_combinator_at_the_root(before: Any, after: Any) -> None:
    assert anthropic(before) == after


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", "3", "{bad", '{"a":' * 5000])
def test_gemini_passes_malformed_and_empty_schemas_unchanged(text: str) -> None:
    assert bytes(schema.for_gemini(text.encode())) == text.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            {"$schema": "s", "$id": "i", "type": "object", "additionalProperties": False,
             "properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}}},
            {"type": "object", "properties": {"a": {"type": "object"}}},
            id="keywords that Gemini refuses are removed at every depth",
        ),
        pytest.param(
            {"$defs": {"X": STRING}, "properties": {"a": {"$ref": "#/$defs/X"},
                                                    "b": [{"$ref": "#/$defs/X"}]}},
            {"properties": {"a": STRING, "b": [STRING]}},
            id="references are inlined everywhere",
        ),
        pytest.param(
            {"properties": {"a": {"definitions": {"Y": INTEGER}},
                            "b": {"$ref": "#/definitions/Y", "description": "d"}}},
            {"properties": {"a": {}, "b": {"description": "d", "type": "integer"}}},
            id="definitions are found anywhere",
        ),
        pytest.param(
            {"$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
             "$ref": "#/$defs/N"},
            {"type": "object", "properties": {"next": {}}},
            id="a cycle ends in an empty schema",
        ),
        pytest.param(
            {"properties": {"a": {"$ref": "#/$defs/Gone"}}}, {"properties": {"a": {}}},
            id="an unresolved reference is an empty schema",
        ),
        pytest.param(
            {"anyOf": [{"title": "any"}], "oneOf": [{"title": "one"}], "allOf": [{"title": "all"}]},
            {"title": "all"},
            id="allOf is folded before oneOf before anyOf",
        ),
        pytest.param(
            {"properties": {"a": {"anyOf": [STRING, {"type": "null"}], "description": "d"}}},
            {"properties": {"a": {"description": "d", "type": "string"}}},
            id="an optional keeps its first type",
        ),
        pytest.param(
            {"properties": {"definitions": STRING, "additionalProperties": STRING, "$id": STRING}},
            {"properties": {"definitions": STRING, "additionalProperties": STRING, "$id": STRING}},
            id="a property may be named like a keyword",
        ),
        pytest.param(
            {"type": "object", "default": {"$ref": "x", "$id": 1}, "enum": [{"oneOf": []}]},
            {"type": "object", "default": {"$ref": "x", "$id": 1}, "enum": [{"oneOf": []}]},
            id="data is not schema",
        ),
        pytest.param({"oneOf": [], "title": "t"}, {"title": "t"}, id="an empty combinator goes"),
    ],
)  # fmt: skip
def test_gemini_reduces_recursively(before: Any, after: Any) -> None:
    assert gemini(before) == after


def test_a_schema_that_multiplies_when_inlined_stays_small() -> None:
    levels = {
        f"L{n}": {"properties": {k: {"$ref": f"#/$defs/L{n + 1}"} for k in "abcdefgh"}}
        for n in range(12)
    }
    bomb = json.dumps({"$defs": levels, "$ref": "#/$defs/L0"}).encode()
    assert len(bytes(schema.for_gemini(bomb))) < 2_000_000


names = st.sampled_from(["a", "b", "c"])
reference = st.builds(
    lambda keyword, name: {"$ref": f"#/{keyword}/{name}"},
    st.sampled_from(["$defs", "definitions"]),
    names,
)
leaf: st.SearchStrategy[Any] = st.one_of(st.just(STRING), st.just(INTEGER), reference, st.just({}))


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string"]),
            "properties": st.dictionaries(names, inner, max_size=3),
            "items": inner,
            "required": st.lists(names, max_size=3),
            "oneOf": some,
            "anyOf": some,
            "allOf": some,
            "$defs": st.dictionaries(names, inner, max_size=3),
            "definitions": st.dictionaries(names, inner, max_size=3),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "enum": st.lists(st.integers(), max_size=2),
        },
    )


schemas = st.recursive(leaf, _nest, max_leaves=25)


def keywords(value: Any) -> set[str]:
    """Keywords at schema positions (names of properties are none)."""
    if isinstance(value, list):
        return {word for item in value for word in keywords(item)}
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for key, inner in value.items():
        nested = list(inner.values()) if key == "properties" and isinstance(inner, dict) else inner
        found |= keywords(nested)
    return found


@settings(max_examples=300)
@given(schemas)
def test_gemini_output_has_no_reference_no_combinator_and_no_definitions(value: Any) -> None:
    forbidden = {"$ref", "$defs", "definitions", "additionalProperties", "oneOf", "anyOf", "allOf"}
    assert not keywords(gemini(value)) & forbidden


@given(schemas)
def test_gemini_reduction_is_stable(value: Any) -> None:
    once = gemini(value)
    assert gemini(once) == once


@given(schemas)
def test_anthropic_output_has_no_combinator_at_its_root(value: Any) -> None:
    merged = anthropic(value)
    assert not any(merged.get(key) for key in ("oneOf", "anyOf", "allOf"))


@given(schemas)
def test_sanitising_does_not_change_its_input(value: Any) -> None:
    data = json.dumps(value).encode()
    before = bytes(data)
    schema.for_gemini(data)
    schema.for_anthropic(data)
    assert data == before


def test_each_inlining_is_a_copy_of_its_own() -> None:
    value = {
        "$defs": {"X": {"properties": {"k": STRING}}},
        "properties": {
            "a": {"$ref": "#/$defs/X", "properties": {"extra": INTEGER}},
            "b": {"$ref": "#/$defs/X"},
        },
    }
    assert gemini(value)["properties"]["b"] == {"properties": {"k": STRING}}
