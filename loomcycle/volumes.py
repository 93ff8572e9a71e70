"""Volumes: which host directories a run may reach, and how one path inside them is opened.

Specification: volumes.md sections 2 to 5. Tools reach files only through this module. A path is
resolved, checked and then opened component by component without following any link, so a swap
between check and use cannot lead outside. Nothing here may fall back to the process directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from events.plan import VolumeBinding

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRAVERSE = _DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

DEFAULT_VOLUME = "default"


class VolumeError(Exception):
    """A refused volume or path; the message is the tool's error text."""


class DeclaredVolume(Protocol):
    """A volume as configuration or a definition declares it."""

    @property
    def path(self) -> str: ...

    @property
    def mode(self) -> Literal["rw", "ro"]: ...

    @property
    def default(self) -> bool: ...


class Located(NamedTuple):
    """A place inside a volume: the volume's resolved root, and plain components below it."""

    root: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        return os.path.join(self.root, *self.parts)


class Found(NamedTuple):
    """A non-directory met by :func:`walk`; ``path`` is relative, ``mtime_ns`` the entry's own."""

    path: str
    is_link: bool
    mtime_ns: int


def bind(
    declared: Sequence[str],
    static: Mapping[str, DeclaredVolume],
    dynamic: Mapping[str, DeclaredVolume] | None = None,
) -> tuple[VolumeBinding, ...] | None:
    """The bindings of a top-level run: None = inactive, ``()`` = active but empty.

    ``dynamic`` holds the tenant's volumes over the shared ones; a static name wins, and a
    dynamic binding is never the default. Names that resolve to nothing are dropped.
    """
    if not declared:
        volume = static.get(DEFAULT_VOLUME)
        if volume is None:
            return None
        return (VolumeBinding(DEFAULT_VOLUME, volume.path, volume.mode, True),)
    bindings = []
    for name in dict.fromkeys(declared):
        if (volume := static.get(name)) is not None:
            bindings.append(VolumeBinding(name, volume.path, volume.mode, volume.default))
        elif dynamic is not None and (volume := dynamic.get(name)) is not None:
            bindings.append(VolumeBinding(name, volume.path, volume.mode))
    return tuple(bindings)


def bind_child(
    parent: tuple[VolumeBinding, ...] | None,
    declared: Sequence[str],
    static: Mapping[str, DeclaredVolume],
    dynamic: Mapping[str, DeclaredVolume] | None = None,
) -> tuple[VolumeBinding, ...] | None:
    """The bindings of a sub-agent: never more volumes, nor more access, than its parent has."""
    if parent is None:
        return bind(declared, static, dynamic)
    if not declared:
        return parent
    own = {binding.name: binding for binding in bind(declared, static, dynamic) or ()}
    inherited = {binding.name: binding for binding in parent}
    return tuple(
        VolumeBinding(
            name,
            inherited[name].path,
            "ro" if "ro" in (inherited[name].mode, binding.mode) else "rw",
            binding.default,
        )
        for name, binding in own.items()
        if name in inherited
    )


def choose(
    bindings: Sequence[VolumeBinding] | None,
    requested: str = "",
    *,
    writes: bool = False,
    ephemeral: Sequence[VolumeBinding] = (),
) -> VolumeBinding:
    """The one volume that a call works in; raises :class:`VolumeError`.

    ``requested`` is the tool's ``volume`` argument. Ephemeral volumes are reached by name only.
    """
    binding = _choose(bindings, requested, ephemeral)
    if writes and binding.mode == "ro":
        raise VolumeError(f'volume "{binding.name}" is read-only')
    return binding


def _choose(
    bindings: Sequence[VolumeBinding] | None, requested: str, ephemeral: Sequence[VolumeBinding]
) -> VolumeBinding:
    if requested:
        for binding in (*ephemeral, *(bindings or ())):
            if binding.name == requested:
                return binding
    if bindings is None:
        raise VolumeError(
            "no filesystem volume available: this agent binds no volume and none is named "
            f'"{DEFAULT_VOLUME}"; the operator declares volumes under volumes:'
        )
    if not bindings:
        raise VolumeError("no filesystem volume is available to this agent")
    names = ", ".join(binding.name for binding in bindings)
    if requested:
        raise VolumeError(f'not bound to volume "{requested}"; available: {names}')
    for binding in bindings:
        if binding.default:
            return binding
    if len(bindings) == 1:
        return bindings[0]
    raise VolumeError(f"no volume specified and no default binding; specify one of: {names}")


def locate(binding: VolumeBinding, requested: str) -> Located:
    """Find an existing file or directory of a volume, following links that stay inside.

    Raises :class:`VolumeError` for a path that leads outside and :class:`OSError` for one that
    does not exist. Whether a path outside exists is not told.
    """
    root, asked, inside = _anchor(binding, requested)
    return Located(root, _resolve(requested, root, asked, inside))


def locate_new(binding: VolumeBinding, requested: str) -> Located:
    """Find a place to create or replace a file: its parent must exist, links in it are followed.

    The last component is not resolved; a link there is to be replaced, not followed.
    """
    root, asked, inside = _anchor(binding, requested)
    if asked == root or requested.endswith(("/", "/.")):
        raise VolumeError(f'path "{requested}" is a directory')
    parent, name = os.path.split(asked)
    return Located(root, (*_resolve(requested, root, parent, inside), name))


def open_file(place: Located) -> int:
    """Open for reading and return the descriptor; raises :class:`OSError`. Never blocks."""
    return _open_beneath(place, _READ)


def open_directory(place: Located) -> int:
    """Open a directory for listing and return the descriptor; raises :class:`OSError`."""
    return _open_beneath(place, os.O_RDONLY | _DIRECTORY)


def walk(
    top: Located,
    *,
    enter: Callable[[str], bool],
    accept: Callable[[str], bool],
    checkpoint: Callable[[], None],
) -> Iterator[Found]:
    """Yield the accepted non-directories below ``top`` in ascending order of their paths.

    Paths are relative to ``top``. Linked directories are not entered, unreadable ones are
    passed over. ``enter`` decides per directory, ``accept`` per file; ``checkpoint`` is called
    for each entry and may raise to stop the walk.
    """
    pending: list[Found | str] = [""]
    while pending:
        item = pending.pop()
        if isinstance(item, Found):
            yield item
            continue
        checkpoint()
        parts = tuple(item.split("/")) if item else ()
        try:
            descriptor = open_directory(Located(top.root, top.parts + parts))
        except OSError:
            continue
        try:
            pending += _listing(descriptor, item, enter, accept, checkpoint)
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _listing(
    descriptor: int,
    directory: str,
    enter: Callable[[str], bool],
    accept: Callable[[str], bool],
    checkpoint: Callable[[], None],
) -> list[Found | str]:
    """The wanted entries, last path first; a directory sorts as its name followed by "/"."""
    entries: list[tuple[str, Found | str]] = []
    with os.scandir(descriptor) as scan:
        for entry in scan:
            checkpoint()
            path = f"{directory}/{entry.name}" if directory else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if enter(path):
                        entries.append((f"{entry.name}/", path))
                elif accept(path):
                    modified = entry.stat(follow_symlinks=False).st_mtime_ns
                    entries.append((entry.name, Found(path, entry.is_symlink(), modified)))
            except OSError:
                continue
    entries.sort(key=lambda named: named[0], reverse=True)
    return [item for _, item in entries]


def _anchor(binding: VolumeBinding, requested: str) -> tuple[str, str, bool]:
    """(resolved root, absolute normalised path, whether it lies in the root as written)."""
    if "\0" in requested:
        raise VolumeError("path must not contain a NUL character")
    root = os.path.realpath(binding.path, strict=True)
    if not os.path.isdir(root):
        raise VolumeError(f'root of volume "{binding.name}" is not a directory: {root}')
    asked = "/" + os.path.normpath(os.path.join(root, requested)).lstrip("/")
    declared = os.path.abspath(binding.path)
    inside = any(_parts_below(base, asked) is not None for base in (root, declared))
    return root, asked, inside


def _resolve(requested: str, root: str, asked: str, inside: bool) -> tuple[str, ...]:
    if not inside and not os.path.isabs(requested):
        raise _escape(requested, root)
    try:
        resolved = os.path.realpath(asked, strict=True)
    except OSError:
        if not inside:
            raise _escape(requested, root) from None
        raise
    parts = _parts_below(root, resolved)
    if parts is None:
        raise _escape(requested, root, resolved if inside else None)
    return parts


def _parts_below(root: str, path: str) -> tuple[str, ...] | None:
    if path == root:
        return ()
    prefix = root if root.endswith("/") else f"{root}/"
    return tuple(path[len(prefix) :].split("/")) if path.startswith(prefix) else None


def _escape(requested: str, root: str, resolved: str | None = None) -> VolumeError:
    via = f' (resolved to "{resolved}")' if resolved is not None else ""
    return VolumeError(f'path "{requested}"{via} escapes sandbox "{root}"')


def _open_beneath(place: Located, flags: int) -> int:
    if not place.parts:
        return os.open(place.root, flags)
    descriptor = os.open(place.root, _TRAVERSE)
    try:
        for name in place.parts[:-1]:
            below = os.open(name, _TRAVERSE, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        return os.open(place.parts[-1], flags, dir_fd=descriptor)
    finally:
        os.close(descriptor)
