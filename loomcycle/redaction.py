"""Masking of secrets on the way into the log: exact known values, then shapes of secrets.

Specification: secrets.md section 3. Tier A masks values of the process environment and of the
run's own credentials; tier B masks what merely looks like a secret. A :class:`Redactor` is
immutable and may be shared between threads. Nothing here may log, or show a value in a repr.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import ahocorasick
import re2

from loomcycle.exact_json import encode_tree, parse_exactly

SECRET_NAME_SUFFIXES = (
    "_KEY",
    "_TOKEN",
    "_SECRET",
    "_AUTH",
    "_PASSWORD",
    "_CREDENTIAL",
    "_CREDENTIALS",
    "_DSN",
    "_PEPPER",
    "_BEARER",
    "_HEADERS",
)
MIN_ENVIRONMENT_BYTES = 8
MIN_CREDENTIAL_BYTES = 4
CREDENTIAL_PLACEHOLDER = "[redacted:credential]"
MAX_WORD, MAX_WORDS = 100, 1000
"""Characters of a word, and words, that a :class:`Redactor` remembers as clean."""

# Values end where a placeholder begins, so a mask is never masked again.
_VALUE = r"""(?P<value>[^\s"',}\[\]\\]+)"""
_QUOTE = r"""(?:\\*["'])?"""


class Mask(NamedTuple):
    """One replacement: what the text shows now, and what stood there."""

    placeholder: str
    secret_value: str

    def __repr__(self) -> str:
        return f"Mask({self.placeholder!r}, <hidden>)"


class _Shape(NamedTuple):
    pattern: re.Pattern[str]
    placeholder: str


def _shape(pattern: str, placeholder: str) -> _Shape:
    return _Shape(re.compile(pattern, re.ASCII), placeholder)


_SHAPES = (
    _shape(
        rf"(?i:authorization){_QUOTE}[ \t]*:[ \t]*{_QUOTE}(?i:token|bearer)[ \t]+{_VALUE}",
        "[redacted]",
    ),
    _shape(r"\b(?P<value>sk-[A-Za-z0-9][A-Za-z0-9_-]{15,})\b", "[redacted-key]"),
    _shape(r"(?P<value>AKIA[0-9A-Z]{16})", "[redacted-aws-key]"),
    _shape(r"(?P<value>xox[baprs]-[A-Za-z0-9-]{10,})", "[redacted-slack]"),
    _shape(r"(?P<value>ghp_[A-Za-z0-9]{36,})", "[redacted-token]"),
    _shape(
        r"\b(?i:api_key|api-key|apikey|secret|token|password)\b"
        rf"{_QUOTE}[ \t]*[:=][ \t]*{_QUOTE}{_VALUE}",
        "[redacted]",
    ),
)
_SHAPE_TRIGGERS = (
    rb"(?i:authorization|api_key|api-key|apikey|secret|token|password)|sk-|AKIA|xox|ghp_"
)


class _Span(NamedTuple):
    """Characters ``start:end`` of a text; ``mask`` None keeps them (they are a placeholder)."""

    start: int
    end: int
    mask: Mask | None


class _Layer:
    """A set of exact values in one automaton, and a cheap test whether any may occur."""

    def __init__(self, values: Mapping[str, str], placeholders: Iterable[str] = ()) -> None:
        self.empty = not values
        self.automaton = ahocorasick.Automaton()
        for value, placeholder in values.items():
            self.automaton.add_word(value, Mask(placeholder, value))
        for placeholder in placeholders:
            self.automaton.add_word(placeholder, Mask(placeholder, placeholder))
        self.automaton.make_automaton()
        self.longest = max((len(word) for word in self.automaton), default=0)
        self.may_occur = _any_of(tuple(values))


class Redactor:
    """Masks known values, and with ``exact_only=False`` also the shapes of tier B.

    Journals take both tiers; STATE, CHANNELS and DEFS take ``exact_only=True``. Overlapping
    values are masked leftmost first, then longest. Placeholders already in a text are never
    touched, which makes every method idempotent. (What it remembers changes no answer.)
    """

    def __init__(self, layers: Sequence[_Layer], *, shapes: bool) -> None:
        self._layers = tuple(layers)
        self._shapes = shapes
        self._clean_words: set[str] = set()
        self._initials = frozenset(word[0] for layer in layers for word in layer.automaton)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Redactor:
        """Build once at startup from the process environment.

        ``LOOMCYCLE_REDACT_SECRETS=0`` turns both tiers off for environment secrets; the
        credentials added by :meth:`for_run` are masked all the same (secrets.md section 5).
        """
        enabled = environ.get("LOOMCYCLE_REDACT_SECRETS") != "0"
        values: dict[str, str] = {}
        for name in sorted(environ) if enabled else ():
            if name.upper().endswith(SECRET_NAME_SUFFIXES):
                for value in _secret_parts(name.upper(), environ[name]):
                    _add_spellings(values, value, _placeholder(name), MIN_ENVIRONMENT_BYTES)
        known = {*values.values(), *(shape.placeholder for shape in _SHAPES)}
        return cls([_Layer(values, known | {CREDENTIAL_PLACEHOLDER})], shapes=enabled)

    def for_run(self, credentials: Mapping[str, str]) -> Redactor:
        """A redactor that also masks these values (4 bytes and longer); their names are not used.

        Give the run's credentials and, under any name, its bearer.
        """
        values: dict[str, str] = {}
        for value in credentials.values():
            _add_spellings(values, value, CREDENTIAL_PLACEHOLDER, MIN_CREDENTIAL_BYTES)
        if not values:
            return self
        return Redactor([*self._layers, _Layer(values)], shapes=self._shapes)

    def redact(self, text: str, *, exact_only: bool = False) -> tuple[str, tuple[Mask, ...]]:
        """Return the masked text, and the masks in the order in which they stand in it."""
        shapes = self._shapes and not exact_only
        exact = self._values_may_occur(text)
        if not exact and not (shapes and _shapes_may_occur(text)):
            return text, ()
        placed: list[tuple[int, Mask]] = []
        if exact:
            text, placed = _substitute(text, self._exact_spans(text), placed)
        if shapes:
            text, placed = _mask_shapes(text, placed)
        return text, tuple(mask for _, mask in placed)

    def is_clean_word(self, word: str) -> bool:
        """Whether a short text that comes again and again (a model's name) holds no known value.

        What does not is remembered. False is a guess; :meth:`redact` knows.
        """
        if word in self._clean_words:
            return True
        if self._values_may_occur(word):
            return False
        if len(word) <= MAX_WORD and len(self._clean_words) < MAX_WORDS:
            self._clean_words.add(word)
        return True

    def redact_json(
        self, data: bytes, *, exact_only: bool = False
    ) -> tuple[bytes, tuple[Mask, ...]]:
        """Mask the string leaves of a JSON document, and exact values in its object keys.

        Numbers stay as spelled. A document with nothing to mask comes back byte for byte. A
        changed one is written with sorted keys and no white space. Bytes that are not JSON are
        only searched for exact values. Never raises for any input.
        """
        text = data.decode("utf-8", "surrogateescape")
        hidden = "\\u" in text or "\\/" in text
        if not hidden and not self._may_change(text, exact_only):
            return data, ()
        try:
            return self._redact_tree(data, text, exact_only, hidden)
        except (ValueError, RecursionError):
            masked, masks = self.redact(text, exact_only=True)
            return (masked.encode("utf-8", "surrogateescape") if masks else data), masks

    def _redact_tree(
        self, data: bytes, text: str, exact_only: bool, hidden: bool
    ) -> tuple[bytes, tuple[Mask, ...]]:
        overwritten: list[Any] = []
        tree = parse_exactly(text, overwritten)
        masks: list[Mask] = []
        lost: list[Mask] = []
        if hidden or self._values_may_occur(text):
            tree = self._mask_keys(tree, masks)
            self._mask_keys(overwritten, lost)
        tree = self._mask_leaves(tree, masks, exact_only)
        self._mask_leaves(overwritten, lost, exact_only)
        if not masks and not lost:
            return data, ()
        return encode_tree(tree), tuple(masks)

    def _mask_leaves(self, node: Any, masks: list[Mask], exact_only: bool) -> Any:
        if isinstance(node, str):
            masked, found = self.redact(node, exact_only=exact_only)
            masks += found
            return masked
        if isinstance(node, dict):
            return {key: self._mask_leaves(node[key], masks, exact_only) for key in sorted(node)}
        if isinstance(node, list):
            return [self._mask_leaves(item, masks, exact_only) for item in node]
        return node

    def _mask_keys(self, node: Any, masks: list[Mask]) -> Any:
        """Two keys of an object that come out equal are told apart by a number."""
        if isinstance(node, list):
            return [self._mask_keys(item, masks) for item in node]
        if not isinstance(node, dict):
            return node
        masked: dict[str, Any] = {}
        for key in sorted(node):
            shown, found = self.redact(key, exact_only=True)
            masks += found
            masked[_unused(shown, masked)] = self._mask_keys(node[key], masks)
        return masked

    def _may_change(self, text: str, exact_only: bool) -> bool:
        return self._values_may_occur(text) or (
            self._shapes and not exact_only and _shapes_may_occur(text)
        )

    def _values_may_occur(self, text: str) -> bool:
        return any(layer.may_occur(text) for layer in self._layers)

    def _exact_spans(self, text: str) -> list[_Span]:
        """Disjoint spans in ascending order: values to mask, and placeholders to keep."""
        kept: list[_Span] = []
        candidates: list[_Span] = []
        for layer in self._layers:
            for last, mask in layer.automaton.iter(text):
                start = last + 1 - len(mask.secret_value)
                if mask.placeholder == mask.secret_value:
                    kept.append(_Span(start, last + 1, None))
                else:
                    candidates.append(_Span(start, last + 1, mask))
        candidates.sort(key=lambda span: (span.start, -span.end))
        chosen: list[_Span] = []
        masked_to = nearest = 0
        for span in candidates:
            while nearest < len(kept) and kept[nearest].end <= span.start:
                nearest += 1
            in_placeholder = nearest < len(kept) and kept[nearest].start < span.end
            if span.start >= masked_to and not in_placeholder:
                chosen.append(span)
                masked_to = span.end
        return sorted(kept + chosen, key=lambda span: span.start)

    def _undecided_from(self, text: str) -> int:
        """Start of the longest ending of ``text`` that begins a value or a placeholder."""
        if all(layer.empty for layer in self._layers):
            return len(text)
        longest = max(layer.longest for layer in self._layers)
        for start in range(max(0, len(text) - longest), len(text)):
            if text[start] not in self._initials:
                continue
            ending = text[start:]
            if any(layer.automaton.longest_prefix(ending) == len(ending) for layer in self._layers):
                return start
        return len(text)


class DeltaGuard:
    """Exact-value masking of a text that arrives in pieces.

    An ending that may be the beginning of a known value is held back until it is decided. The
    outputs of all :meth:`feed` calls and of :meth:`flush`, joined, equal
    ``redact(joined input, exact_only=True)`` for any division into pieces.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, delta: str) -> str:
        """Return what may be shown now (perhaps nothing)."""
        text = self._held + delta
        cut = self._redactor._undecided_from(text)
        if cut == len(text) and not self._redactor._values_may_occur(text):
            self._held = ""
            return text
        spans = self._redactor._exact_spans(text)
        for span in spans:
            if span.start < cut < span.end:
                cut = span.start
        self._held = text[cut:]
        shown, _ = _substitute(text[:cut], [span for span in spans if span.end <= cut], [])
        return shown

    def flush(self) -> str:
        """Return the rest; the guard is then ready for the next text."""
        text, self._held = self._held, ""
        return self._redactor.redact(text, exact_only=True)[0]


def _unused(key: str, taken: Container[str]) -> str:
    """``key``, with the first free number from 2 on where it is taken."""
    numbered = (f"{key} ({number})" for number in count(2))
    return next(name for name in chain((key,), numbered) if name not in taken)


def _placeholder(name: str) -> str:
    """``[redacted:NAME]``, unless the name itself would be masked or break the marker."""
    placeholder = f"[redacted:{name}]"
    odd = re.search(r"[\[\]\s\"'\\]", name) is not None
    return CREDENTIAL_PLACEHOLDER if odd or _mask_shapes(placeholder, [])[1] else placeholder


def _secret_parts(name: str, value: str) -> list[str]:
    """The value, and those parts of a connection string or header list that leak on their own."""
    parts = [value]
    if name.endswith("_DSN"):
        try:
            password = urlsplit(value).password or ""
        except ValueError:
            password = ""
        parts += [password, unquote(password)]
    if name.endswith("_HEADERS"):
        parts += [entry.partition("=")[2] for entry in value.split(",")]
    return parts


def _add_spellings(values: dict[str, str], value: str, placeholder: str, min_bytes: int) -> None:
    """Add the value without surrounding white space, also as it is written inside JSON text."""
    value = value.strip()
    if len(value.encode("utf-8", "surrogatepass")) < min_bytes:
        return
    values.setdefault(value, placeholder)
    values.setdefault(json.dumps(value, ensure_ascii=False)[1:-1], placeholder)


def _any_of(values: Sequence[str]) -> Callable[[str], bool]:
    """A test that is never wrong when it says no; its cost hardly grows with the values."""
    if len(values) <= 16:
        return lambda text: any(value in text for value in values)
    starts = {value.encode("utf-8", "surrogatepass")[:8] for value in values}
    return _bytes_search(b"|".join(re2.escape(start) for start in sorted(starts)))


def _bytes_search(pattern: bytes) -> Callable[[str], bool]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = True
    search = re2.compile(pattern, options).search
    return lambda text: search(text.encode("utf-8", "surrogatepass")) is not None


_shapes_may_occur = _bytes_search(_SHAPE_TRIGGERS)


def _mask_shapes(text: str, placed: list[tuple[int, Mask]]) -> tuple[str, list[tuple[int, Mask]]]:
    """Apply the shapes in their order, again while one of them uncovers another's match."""
    while True:
        before = len(placed)
        for shape in _SHAPES:
            spans = [
                _Span(*match.span("value"), Mask(shape.placeholder, match["value"]))
                for match in shape.pattern.finditer(text)
            ]
            text, placed = _substitute(text, spans, placed)
        if len(placed) == before:
            return text, placed


def _substitute(
    text: str, spans: Sequence[_Span], placed: list[tuple[int, Mask]]
) -> tuple[str, list[tuple[int, Mask]]]:
    """Replace disjoint ascending spans; ``placed`` lists earlier masks by their position."""
    if not spans:
        return text, placed
    pieces: list[str] = []
    moved: list[tuple[int, Mask]] = []
    earlier = iter([*placed, (len(text) + 1, None)])
    position, mask_before = next(earlier)
    copied = written = 0
    for span in spans:
        if span.mask is None:
            continue
        while mask_before is not None and position < span.start:
            moved.append((position + written - copied, mask_before))
            position, mask_before = next(earlier)
        pieces += (text[copied : span.start], span.mask.placeholder)
        moved.append((written + span.start - copied, span.mask))
        written += span.start - copied + len(span.mask.placeholder)
        copied = span.end
    while mask_before is not None:
        moved.append((position + written - copied, mask_before))
        position, mask_before = next(earlier)
    pieces.append(text[copied:])
    return "".join(pieces), moved
