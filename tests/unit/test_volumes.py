"""Behaviour of volumes.md sections 2 to 5."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.plan import VolumeBinding
from loomcycle.volumes import (
    Found,
    Located,
    VolumeError,
    bind,
    bind_child,
    choose,
    locate,
    locate_new,
    open_directory,
    open_file,
    walk,
)


class Declared(NamedTuple):
    path: str
    mode: Literal["rw", "ro"] = "rw"
    default: bool = False


B = VolumeBinding
STATIC = {
    "default": Declared("/srv/default"),
    "refs": Declared("/srv/refs", "ro"),
    "main": Declared("/srv/main", default=True),
}
UNNAMED = {"main": Declared("/srv/main", default=True), "refs": Declared("/srv/refs", "ro")}
DYNAMIC = {"scratch": Declared("/pool/scratch", default=True), "refs": Declared("/pool/refs")}


@pytest.mark.parametrize(
    ("declared", "static", "expected"),
    [
        ([], STATIC, (B("default", "/srv/default", "rw", True),)),
        ([], UNNAMED, None),
        ([], {}, None),
        (["refs"], STATIC, (B("refs", "/srv/refs", "ro"),)),
        (
            ["refs", "main"],
            STATIC,
            (B("refs", "/srv/refs", "ro"), B("main", "/srv/main", "rw", True)),
        ),
        (["default"], STATIC, (B("default", "/srv/default"),)),
        (["refs", "refs"], STATIC, (B("refs", "/srv/refs", "ro"),)),
        (["scratch"], STATIC, (B("scratch", "/pool/scratch"),)),
        (["gone", "refs"], STATIC, (B("refs", "/srv/refs", "ro"),)),
        (["gone"], STATIC, ()),
    ],
)
def test_what_a_top_level_run_is_bound_to(
    declared: list[str],
    static: dict[str, Declared],
    expected: tuple[VolumeBinding, ...] | None,
) -> None:
    assert bind(declared, static, DYNAMIC) == expected


@pytest.mark.parametrize(
    ("parent", "declared", "expected"),
    [
        (None, [], (B("default", "/srv/default", "rw", True),)),
        (None, ["refs"], (B("refs", "/srv/refs", "ro"),)),
        ((B("refs", "/else", "rw", True),), [], (B("refs", "/else", "rw", True),)),
        ((B("refs", "/else"),), ["refs", "main"], (B("refs", "/else", "ro"),)),
        ((B("main", "/else", "ro"),), ["main"], (B("main", "/else", "ro", True),)),
        ((B("main", "/else"),), ["refs"], ()),
        ((), [], ()),
        ((), ["refs"], ()),
    ],
)
def test_a_child_is_never_bound_to_more_than_its_parent(
    parent: tuple[VolumeBinding, ...] | None,
    declared: list[str],
    expected: tuple[VolumeBinding, ...],
) -> None:
    assert bind_child(parent, declared, STATIC) == expected


TWO = (B("a", "/a"), B("b", "/b", "ro"))
WITH_DEFAULT = (B("a", "/a"), B("b", "/b", "ro", True))
SHORT_LIVED = (B("tmp", "/e/tmp"), B("a", "/e/a"))


@pytest.mark.parametrize(
    ("bindings", "requested", "path"),
    [
        (TWO, "b", "/b"),
        (WITH_DEFAULT, "", "/b"),
        (WITH_DEFAULT, "a", "/e/a"),
        ((B("a", "/a"),), "", "/a"),
        (None, "tmp", "/e/tmp"),
        ((), "tmp", "/e/tmp"),
    ],
)
def test_the_volume_of_a_call(
    bindings: tuple[VolumeBinding, ...] | None, requested: str, path: str
) -> None:
    assert choose(bindings, requested, ephemeral=SHORT_LIVED).path == path


@pytest.mark.parametrize(
    ("bindings", "requested", "text"),
    [
        (TWO, "x", 'not bound to volume "x"; available: a, b'),
        (TWO, "", "no volume specified and no default binding; specify one of: a, b"),
        (None, "", "no filesystem volume available"),
        (None, "x", "no filesystem volume available"),
        ((), "", "no filesystem volume is available to this agent"),
        ((), "x", "no filesystem volume is available to this agent"),
    ],
)
def test_a_call_without_a_volume_is_told_why(
    bindings: tuple[VolumeBinding, ...] | None, requested: str, text: str
) -> None:
    with pytest.raises(VolumeError) as refused:
        choose(bindings, requested, ephemeral=SHORT_LIVED)
    assert text in str(refused.value)


def test_writing_needs_a_writable_volume() -> None:
    assert choose(TWO, "a", writes=True).name == "a"
    with pytest.raises(VolumeError, match='volume "b" is read-only'):
        choose(TWO, "b", writes=True)


# Paths


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``work`` is a volume's root; its neighbours must stay out of reach."""
    work = tmp_path / "work"
    (work / "sub" / "deep").mkdir(parents=True)
    (work / "file").write_text("inside")
    (work / "sub" / "file").write_text("inside sub")
    (work / "a..b").write_text("dots")
    (work / "~").write_text("tilde")
    (tmp_path / "work2").mkdir()
    (tmp_path / "work2" / "file").write_text("outside")
    (tmp_path / "secret").write_text("outside")
    (work / "to-file").symlink_to("sub/file")
    (work / "to-sub").symlink_to(work / "sub")
    (work / "to-secret").symlink_to(tmp_path / "secret")
    (work / "to-parent").symlink_to("..")
    (work / "to-self").symlink_to("to-self")
    (tmp_path / "alias").symlink_to(work)
    return work


def read(binding: VolumeBinding, path: str) -> str:
    with open(open_file(locate(binding, path))) as file:
        return file.read()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("file", "inside"),
        ("./sub/../file", "inside"),
        ("{work}/file", "inside"),
        ("{alias}/file", "inside"),
        ("sub//file", "inside sub"),
        ("a..b", "dots"),
        ("~", "tilde"),
        ("to-file", "inside sub"),
        ("to-sub/file", "inside sub"),
        ("//{work}/file", "inside"),
    ],
)
@pytest.mark.parametrize("root", ["work", "alias"])
def test_paths_inside_a_volume(place: Path, path: str, content: str, root: str) -> None:
    binding = B("v", str(place.parent / root))
    spelled = path.format(work=place, alias=place.parent / "alias")
    assert read(binding, spelled) == content


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "../missing",
        "sub/../../secret",
        "{outer}/secret",
        "{outer}/missing",
        "../work2/file",
        "{outer}/work2/file",
        "/",
        "/etc/passwd",
    ],
)
def test_a_path_that_leads_outside_escapes(place: Path, path: str) -> None:
    spelled = path.format(outer=place.parent)
    with pytest.raises(VolumeError) as refused:
        locate(B("v", str(place)), spelled)
    assert str(refused.value) == f'path "{spelled}" escapes sandbox "{place}"'


@pytest.mark.parametrize(
    ("path", "resolved"),
    [("to-secret", "secret"), ("to-parent", ""), ("to-parent/work2/file", "work2/file")],
)
def test_a_link_that_leads_outside_escapes(place: Path, path: str, resolved: str) -> None:
    target = str(place.parent / resolved) if resolved else str(place.parent)
    with pytest.raises(VolumeError) as refused:
        locate(B("v", str(place)), path)
    assert str(refused.value) == (
        f'path "{path}" (resolved to "{target}") escapes sandbox "{place}"'
    )


def test_a_path_is_never_taken_from_the_process_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    with pytest.raises(FileNotFoundError):
        locate(B("v", str(place)), "secret")


@pytest.mark.parametrize("path", ["missing", "~/x", "$HOME/x", "file/x", "to-self"])
def test_what_does_not_exist_inside_is_a_system_error(place: Path, path: str) -> None:
    with pytest.raises(OSError, match=r"No such file|Not a directory|Too many levels"):
        locate(B("v", str(place)), path)


def test_a_nul_character_is_refused(place: Path) -> None:
    with pytest.raises(VolumeError, match="NUL"):
        locate(B("v", str(place)), "a\0b")


def test_a_missing_or_plain_file_root_is_an_error(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locate(B("v", str(place / "gone")), ".")
    with pytest.raises(VolumeError, match="not a directory"):
        locate(B("v", str(place / "file")), ".")


def test_the_root_itself_can_be_located(place: Path) -> None:
    assert locate(B("v", str(place)), ".") == Located(str(place), ())
    assert locate(B("v", str(place)), "") == Located(str(place), ())


def test_a_new_file_needs_only_its_parent(place: Path) -> None:
    binding = B("v", str(place))
    assert locate_new(binding, "to-sub/new").path == str(place / "sub" / "new")
    assert locate_new(binding, "to-secret").path == str(place / "to-secret")
    with pytest.raises(FileNotFoundError):
        locate_new(binding, "missing/new")
    for path in ("to-parent/new", "../new", f"{place.parent}/new"):
        with pytest.raises(VolumeError, match=f'path "{path}".* escapes sandbox'):
            locate_new(binding, path)
    for path in (".", "sub/", str(place)):
        with pytest.raises(VolumeError, match="is a directory"):
            locate_new(binding, path)


def test_a_file_swapped_for_a_link_after_the_check_is_not_followed(place: Path) -> None:
    located = locate(B("v", str(place)), "file")
    (place / "file").unlink()
    (place / "file").symlink_to(place.parent / "secret")
    with pytest.raises(OSError, match="Too many levels"):
        open_file(located)


def test_a_directory_swapped_for_a_link_after_the_check_is_not_followed(place: Path) -> None:
    located = locate(B("v", str(place)), "sub/file")
    shutil.rmtree(place / "sub")
    (place / "sub").symlink_to(place.parent / "work2")
    with pytest.raises(OSError, match=r"Too many levels|Not a directory"):
        open_file(located)


def test_opening_a_named_pipe_does_not_wait(place: Path) -> None:
    os.mkfifo(place / "pipe")
    os.close(open_file(locate(B("v", str(place)), "pipe")))


def everything(top: Located) -> list[Found]:
    return list(walk(top, enter=lambda _: True, accept=lambda _: True, checkpoint=lambda: None))


def test_a_walk_goes_by_whole_paths_and_enters_no_link(tmp_path: Path) -> None:
    for name in ("a/z", "a.txt", "a/b/c", "B"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("a")
    paths = [found.path for found in everything(Located(str(tmp_path), ()))]
    assert paths == sorted(paths) == ["B", "a.txt", "a/b/c", "a/z", "link"]


def test_a_walk_does_not_hold_descriptors(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "file").write_text("")
    before = len(os.listdir("/dev/fd"))
    most = 0

    def count() -> None:
        nonlocal most
        most = max(most, len(os.listdir("/dev/fd")))

    found = list(
        walk(
            Located(str(tmp_path), ()),
            enter=lambda _: True,
            accept=lambda _: True,
            checkpoint=count,
        )
    )
    assert [item.path for item in found] == ["d/" * 300 + "file"]
    assert most <= before + 4
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(open_and_close(tmp_path))


def open_and_close(directory: Path) -> int:
    descriptor = open_directory(Located(str(directory), ()))
    os.close(descriptor)
    return descriptor


_names = st.sampled_from(["a", "b", "c", "..", ".", "", "secret", "work", "work2"])
_paths = st.lists(_names, min_size=1, max_size=6).map("/".join)
_nodes = st.lists(st.tuples(st.sampled_from(["dir", "file", "link"]), _paths, _paths), max_size=12)


@given(_nodes, st.lists(st.tuples(st.booleans(), _paths), min_size=1, max_size=6))
def test_nothing_outside_is_ever_read(
    nodes: list[tuple[str, str, str]], requests: list[tuple[bool, str]]
) -> None:
    """Random trees of directories, files and links (also to the outside), random requests."""
    with tempfile.TemporaryDirectory() as base:
        outer = Path(os.path.realpath(base))
        root = outer / "work"
        for directory in (root, outer / "work2", outer / "a"):
            directory.mkdir()
            for name in ("secret", "b"):
                (directory / name).write_text(f"{directory.name}")
        (outer / "secret").write_text("outer")
        for kind, path, target in nodes:
            _make(root, kind, path, target)
        binding = B("v", str(root))
        for absolute, path in requests:
            _check(root, binding, f"{root}/{path}" if absolute else path)
        for found in everything(Located(str(root), ())):
            _check(root, binding, found.path)


def _make(root: Path, kind: str, path: str, target: str) -> None:
    where = os.path.normpath(root / path)
    if not where.startswith(f"{root}/") or os.path.lexists(where):
        return
    parent = os.path.realpath(os.path.dirname(where))
    if parent != str(root) and not parent.startswith(f"{root}/"):
        return
    try:
        match kind:
            case "dir":
                os.mkdir(where)
            case "file":
                Path(where).write_text("work")
            case "link":
                os.symlink(target or ".", where)
    except OSError:
        return


def _check(root: Path, binding: VolumeBinding, path: str) -> None:
    try:
        descriptor = open_file(locate(binding, path))
    except (VolumeError, OSError):
        return
    try:
        if os.path.isdir("/proc/self/fd"):
            opened = os.readlink(f"/proc/self/fd/{descriptor}")
            assert opened == str(root) or opened.startswith(f"{root}/")
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            assert os.read(descriptor, 100) == b"work"
    finally:
        os.close(descriptor)
