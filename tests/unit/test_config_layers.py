"""Layering, expansion, discovery and the YAML tree: config spec sections 2 to 4."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.config import ConfigError, ConfigNotFound, discover, layer_files, load
from loomcycle.config.expansion import NEVER_EXPANDED, expand
from loomcycle.config.problems import FieldPath, Place
from loomcycle.config.tree import Node, Scalar, TreeError, merge, parse

HERE = Place(Path("a.yaml"), 1)
THERE = Place(Path("b.yaml"), 1)
KEYS = st.sampled_from(["a", "b", "c", "d"])
LEAVES = st.one_of(st.integers(0, 3), st.booleans(), st.none(), st.sampled_from(["x", "y"]))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.dictionaries(KEYS, inner), st.lists(inner, max_size=2)),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(KEYS, TREES)
DEEP = st.dictionaries(KEYS, st.dictionaries(KEYS, LEAVES))


def node(value: Any, place: Place = HERE) -> Node:
    match value:
        case dict():
            return Node({key: node(item, place) for key, item in value.items()}, place)
        case list():
            return Node([node(item, place) for item in value], place)
        case _:
            return Node(Scalar(value, str(value)), place)


def reordered(value: Any) -> Any:
    match value:
        case dict():
            return {key: reordered(value[key]) for key in reversed(value)}
        case list():
            return [reordered(item) for item in value]
        case _:
            return value


def merged(*layers: Any) -> Any:
    result = node(layers[0])
    for layer in layers[1:]:
        result = merge(result, node(layer))
    return result.plain()


@given(MAPPINGS)
def test_merging_a_layer_with_itself_or_with_nothing_changes_nothing(tree: Any) -> None:
    heard: list[FieldPath] = []
    same = merge(node(tree), node(tree), lambda path, _: heard.append(path))
    assert same.plain() == merged({}, tree) == merged(tree, {}) == tree
    assert heard == []


@given(MAPPINGS, MAPPINGS)
def test_the_order_of_keys_does_not_matter(base: Any, over: Any) -> None:
    assert merged(base, over) == merged(reordered(base), reordered(over))


@given(MAPPINGS, MAPPINGS)
def test_every_value_of_the_later_layer_is_in_the_result(base: Any, over: Any) -> None:
    def contained(part: Any, whole: Any) -> bool:
        if isinstance(part, dict):
            return isinstance(whole, dict) and all(
                key in whole and contained(item, whole[key]) for key, item in part.items()
            )
        return bool(part == whole)

    assert contained(over, merged(base, over))


@given(DEEP, DEEP, DEEP)
def test_merging_is_associative_where_shapes_agree(a: Any, b: Any, c: Any) -> None:
    left = merge(merge(node(a), node(b)), node(c)).plain()
    assert left == merge(node(a), merge(node(b), node(c))).plain()


@given(MAPPINGS, MAPPINGS)
def test_a_new_key_is_no_override(base: Any, over: Any) -> None:
    heard: list[FieldPath] = []
    merge(node(base), node(over, THERE), lambda path, _: heard.append(path))
    for path in heard:
        present: Any = base
        for part in path:
            assert part in present
            present = present[part]


@pytest.mark.parametrize(
    ("base", "over", "result", "overrides"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 5}}, {"a": {"x": 5, "y": 2}}, ["a.x"]),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, ["a"]),
        ({"a": {"x": 1}}, {"a": 7}, {"a": 7}, ["a"]),
        ({"a": 1}, {"a": None}, {"a": None}, ["a"]),
        ({"a": 1}, {"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, {"a": True}, ["a"]),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, []),
    ],
)
def test_mappings_merge_and_everything_else_replaces(
    base: Any, over: Any, result: Any, overrides: list[str]
) -> None:
    heard: list[str] = []
    whole = merge(node(base), node(over), lambda path, _: heard.append(".".join(map(str, path))))
    assert (whole.plain(), heard) == (result, overrides)


def test_layers_are_reported_and_later_files_win(tmp_path: Path) -> None:
    base, over, empty = (tmp_path / name for name in ("base.yaml", "over.yaml", "empty.yaml"))
    base.write_text("concurrency: {max_concurrent_runs: 8, max_queue_depth: 17}\n")
    over.write_text("concurrency: {max_concurrent_runs: 50}\n")
    empty.write_text("# nothing here\n")
    loaded = load([base, empty, over], {}, tmp_path)
    assert loaded.config.concurrency.max_concurrent_runs == 50
    assert loaded.config.concurrency.max_queue_depth == 17
    assert loaded.warnings == (
        "config layer override: concurrency.max_concurrent_runs"
        f" (set by {over}, overriding an earlier layer)",
    )
    assert loaded.notes[0].startswith("config: layering 3 files (last wins): ")


def test_strict_mode_turns_overrides_into_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: {model: x}\n")
    (tmp_path / "b.yaml").write_text("defaults: {model: y}\n")
    with pytest.raises(ConfigError, match=r"1 cross-layer override\(s\) with") as error:
        load([Path("a.yaml"), Path("b.yaml")], {"LOOMCYCLE_CONFIG_STRICT": "1"}, tmp_path)
    assert error.value.problems[0].code == "override"


def test_the_layers_of_the_environment_come_before_the_given_ones(tmp_path: Path) -> None:
    environ = {"LOOMCYCLE_CONFIG_FILES": " a.yaml ::b.yaml"}
    assert layer_files([Path("c.yaml")], environ, tmp_path) == [
        Path("a.yaml"),
        Path("b.yaml"),
        Path("c.yaml"),
    ]


def test_discovery_takes_the_first_that_exists_and_lists_what_it_probed(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    with pytest.raises(ConfigNotFound, match="--config") as error:
        discover(environ, tmp_path)
    assert [path.parent.name for path in error.value.probed] == [
        tmp_path.name,
        "loomcycle",
        "loomcycle",
    ]
    for path in reversed(error.value.probed):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        assert layer_files([], environ, tmp_path) == [path]


def test_who_has_no_configuration_is_told_of_an_example_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotFound) as error:
        discover({}, tmp_path)
    found = re.search(r"(/\S+) is an example$", str(error.value))
    assert found is not None
    assert "agents:" in Path(found[1]).read_text()


def test_xdg_is_probed_only_when_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotFound) as error:
        discover({"HOME": "/nonexistent"}, tmp_path)
    assert len(error.value.probed) == 2


def test_a_named_file_that_is_missing_is_not_replaced_by_discovery(tmp_path: Path) -> None:
    (tmp_path / "loomcycle.yaml").write_text("")
    with pytest.raises(ConfigNotFound, match=r"config file not found: nope\.yaml"):
        load([Path("nope.yaml")], {}, tmp_path)


def test_a_server_can_start_with_no_file_at_all(tmp_path: Path) -> None:
    loaded = load([], {}, tmp_path)
    assert loaded.files == ()
    assert loaded.base_dir == tmp_path
    assert loaded.config.concurrency.max_concurrent_runs == 8


@pytest.mark.parametrize(
    ("text", "environ", "result"),
    [
        ("a: ${LOOMCYCLE_X}", {"LOOMCYCLE_X": "1"}, "a: 1"),
        ("a: ${LOOMCYCLE_X}", {}, "a: "),
        ("${GITHUB_TOKEN}", {"GITHUB_TOKEN": "t"}, "t"),
        ("${ANTHROPIC_API_KEY}", {"ANTHROPIC_API_KEY": "k"}, "${ANTHROPIC_API_KEY}"),
        ("$LOOMCYCLE_X ${a.b}", {"LOOMCYCLE_X": "1"}, "$LOOMCYCLE_X ${a.b}"),
        ("${LOOMCYCLE_X:-d}", {"LOOMCYCLE_X": "1"}, "${LOOMCYCLE_X:-d}"),
        ("${LOOMCYCLE_X}", {"LOOMCYCLE_X": "1\n2"}, "${LOOMCYCLE_X}"),
        ("${LOOMCYCLE_X}", {"LOOMCYCLE_X": "1\r2"}, "${LOOMCYCLE_X}"),
        ("${run.user_bearer:-${LOOMCYCLE_X}}", {"LOOMCYCLE_X": "f"}, "${run.user_bearer:-f}"),
        ("${LOOMCYCLE_X}", {"LOOMCYCLE_X": "${LOOMCYCLE_X}"}, "${LOOMCYCLE_X}"),
        ("${1A}${}${ LOOMCYCLE_X}", {"LOOMCYCLE_X": "1"}, "${1A}${}${ LOOMCYCLE_X}"),
    ],
)
def test_expansion_follows_the_policy(text: str, environ: dict[str, str], result: str) -> None:
    assert expand(text, environ) == result


@pytest.mark.parametrize("name", sorted(NEVER_EXPANDED))
def test_infrastructure_secrets_never_expand(name: str) -> None:
    assert expand(f"${{{name}}}", {name: "secret"}) == f"${{{name}}}"


@given(st.text(st.sampled_from("${}LOOMCYCLE_X.:- \n"), max_size=60))
def test_text_without_allowed_names_is_untouched(text: str) -> None:
    if "${LOOMCYCLE_" not in text:
        assert expand(text, {"LOOMCYCLE_X": "v", "L": "w"}) == text


@given(st.text(st.characters(exclude_characters="\r\n$"), max_size=20), st.text(max_size=20))
def test_a_value_is_inserted_as_it_is(value: str, around: str) -> None:
    around = around.replace("$", "")
    text = f"{around}${{LOOMCYCLE_X}}{around}"
    assert expand(text, {"LOOMCYCLE_X": value}) == around + value + around


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\na: 2\n", 'key "a" appears twice', 2),
        ("a: [1, 2\n", "did not find expected", None),
        ("a: &x [*x]\n", "contains it", 1),
        ("a: !thing 1\n", "unknown tag", 1),
        ("? [1]\n: 2\n", "plain word", 1),
        ("a: 1\n---\nb: 2\n", "single document|another document", None),
    ],
)
def test_malformed_yaml_says_where_without_quoting_it(
    text: str, message: str, line: int | None
) -> None:
    with pytest.raises(TreeError, match=message) as error:
        parse(text, Path("x.yaml"))
    assert line is None or error.value.line == line


def test_anchors_and_merge_keys_work_and_own_keys_win() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: *b}\nthree: *b\n"
    tree = parse(text, Path("x.yaml"))
    assert tree is not None
    assert tree.plain() == {
        "base": {"x": 1, "y": 2},
        "one": {"x": 1, "y": 3},
        "two": {"x": 1, "y": 2},
        "three": {"x": 1, "y": 2},
    }


def test_all_broken_layers_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text("- list\n")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ConfigError) as error:
        load([Path("a.yaml"), Path("b.yaml"), Path("c.yaml")], {}, tmp_path)
    assert [problem.code for problem in error.value.problems] == ["syntax", "syntax", "unreadable"]
    assert str(error.value).startswith("3 problems:\n")


def test_expansion_happens_before_parsing_so_values_get_types(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("concurrency: {max_concurrent_runs: ${LOOMCYCLE_N}}\n")
    loaded = load([Path("c.yaml")], {"LOOMCYCLE_N": "12"}, tmp_path)
    assert loaded.config.concurrency.max_concurrent_runs == 12
