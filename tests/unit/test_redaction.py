"""Behaviour of secrets.md section 3, row by row, and the properties that the log relies on."""

from __future__ import annotations

import itertools
import json
import random
import string
import time

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loomcycle.redaction import DeltaGuard, Mask, Redactor

SECRET = "s3cr3t-value-one"


def redactor(**environ: str) -> Redactor:
    return Redactor.from_environment(environ)


def masked(text: str, exact_only: bool = False, **environ: str) -> str:
    return redactor(**environ).redact(text, exact_only=exact_only)[0]


@pytest.mark.parametrize(
    "name",
    [
        "A_KEY",
        "A_TOKEN",
        "A_SECRET",
        "A_AUTH",
        "A_PASSWORD",
        "A_CREDENTIAL",
        "A_CREDENTIALS",
        "A_DSN",
        "A_PEPPER",
        "A_BEARER",
        "A_HEADERS",
        "a_key",
        "Mixed_Token",
    ],
)
def test_a_variable_counts_by_its_suffix_in_any_case(name: str) -> None:
    assert redactor(**{name: SECRET}).redact(f"x{SECRET}y")[0] == f"x[redacted:{name}]y"


@pytest.mark.parametrize("name", ["KEY", "A_KEYS", "TOKEN", "PATH", "A_URL", "KEY_A"])
def test_other_variables_do_not_count(name: str) -> None:
    assert redactor(**{name: SECRET}).redact(SECRET)[0] == SECRET


@pytest.mark.parametrize(
    ("value", "counts"),
    [("1234567", False), ("12345678", True), ("éééé", True), ("   1234567   ", False)],
)
def test_a_value_counts_from_eight_bytes_on(value: str, counts: bool) -> None:
    assert (masked(f"<{value}>", A_KEY=value) != f"<{value}>") is counts


def test_every_occurrence_is_masked() -> None:
    assert masked(f"{SECRET}{SECRET} {SECRET}", A_KEY=SECRET) == (
        "[redacted:A_KEY][redacted:A_KEY] [redacted:A_KEY]"
    )


def test_a_value_inside_another_leaves_no_fragment() -> None:
    inner, outer = "middle-part", "left-middle-part-right"
    assert masked(f"{outer} {inner}", A_KEY=inner, B_KEY=outer) == (
        "[redacted:B_KEY] [redacted:A_KEY]"
    )


def test_the_longer_of_two_values_with_one_beginning_wins() -> None:
    text = masked("left-part-right left-part", A_KEY="left-part", B_KEY="left-part-right")
    assert text == "[redacted:B_KEY] [redacted:A_KEY]"


def test_the_leftmost_of_overlapping_values_wins() -> None:
    assert masked("abcdefghijkl", A_KEY="cdefghijkl", B_KEY="abcdefgh") == "[redacted:B_KEY]ijkl"


def test_two_names_of_one_value_give_either_name() -> None:
    assert masked(SECRET, A_KEY=SECRET, B_KEY=SECRET) == "[redacted:A_KEY]"


def test_the_white_space_around_a_value_is_no_part_of_it() -> None:
    assert masked(f"{SECRET}!", A_KEY=f"{SECRET}\n") == "[redacted:A_KEY]!"


def test_the_password_of_a_connection_string_is_masked_on_its_own() -> None:
    dsn = "postgres://app:hunter2%2Dhunter2@db/app"
    got = masked(f"{dsn} hunter2%2Dhunter2 hunter2-hunter2", exact_only=True, PG_DSN=dsn)
    assert got == "[redacted:PG_DSN] [redacted:PG_DSN] [redacted:PG_DSN]"


def test_the_values_of_a_header_list_are_masked_on_their_own() -> None:
    headers = "x-team=blue,x-auth=abcdef123456"
    assert masked("abcdef123456 blue", OTEL_HEADERS=headers) == "[redacted:OTEL_HEADERS] blue"


def test_a_value_is_also_found_as_json_text_spells_it() -> None:
    value = 'first line\nsecond "line"'
    assert masked(json.dumps({"pem": value}), A_KEY=value) == '{"pem": "[redacted:A_KEY]"}'


def test_text_beyond_the_basic_plane_does_not_shift_masks() -> None:
    assert masked(f"🎉é{SECRET}🎉", A_KEY=SECRET) == "🎉é[redacted:A_KEY]🎉"


def test_a_name_that_would_be_masked_itself_is_not_shown() -> None:
    name = "AKIAABCDEFGHIJKLMNOP_KEY"
    assert redactor(**{name: SECRET}).redact(SECRET)[0] == "[redacted:credential]"


def test_a_value_that_equals_its_name_is_masked_once() -> None:
    text = masked("MY_TOKEN", MY_TOKEN="MY_TOKEN")
    assert text == masked(text, MY_TOKEN="MY_TOKEN") == "[redacted:MY_TOKEN]"


def test_credentials_of_the_run_are_masked_from_four_bytes_on() -> None:
    run = redactor(A_KEY=SECRET).for_run(
        {"default": "bearer-0123456789", "pin": "1234", "short": "123", "none": ""}
    )
    text, masks = run.redact(f"bearer-0123456789 1234 123 {SECRET}")
    assert text == "[redacted:credential] [redacted:credential] 123 [redacted:A_KEY]"
    assert [mask.secret_value for mask in masks] == ["bearer-0123456789", "1234", SECRET]


def test_a_longer_credential_wins_over_an_environment_value_inside_it() -> None:
    run = redactor(A_KEY=SECRET).for_run({"default": f"Bearer/{SECRET}/x"})
    assert run.redact(f"Bearer/{SECRET}/x", exact_only=True)[0] == "[redacted:credential]"


def test_the_switch_turns_off_all_but_the_credentials_of_the_run() -> None:
    off = redactor(A_KEY=SECRET, LOOMCYCLE_REDACT_SECRETS="0").for_run(
        {"default": "bearer-0123456789"}
    )
    text = f"{SECRET} token=abc AKIAABCDEFGHIJKLMNOP bearer-0123456789"
    assert off.redact(text)[0] == text.replace("bearer-0123456789", "[redacted:credential]")


def test_only_zero_turns_redaction_off() -> None:
    assert masked("token=abc", LOOMCYCLE_REDACT_SECRETS="false") == "token=[redacted]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer [redacted]"),
        ("authorization: TOKEN abc", "authorization: TOKEN [redacted]"),
        ("Authorization:Bearer abc", "Authorization:Bearer [redacted]"),
        ('"Authorization": "Bearer abc"', '"Authorization": "Bearer [redacted]"'),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic dXNlcjpwYXNz"),
        ("use sk-abcdefghijklmnop now", "use [redacted-key] now"),
        ("sk-ant-api03_abcdefghij-k", "[redacted-key]"),
        ("sk-abcdefghijklmno", "sk-abcdefghijklmno"),
        ("task-abcdefghijklmnopqrst", "task-abcdefghijklmnopqrst"),
        ("sk--bcdefghijklmnopqrst", "sk--bcdefghijklmnopqrst"),
        ("AKIAABCDEFGHIJKLMNOP", "[redacted-aws-key]"),
        ("AKIAABCDEFGHIJKLMNO", "AKIAABCDEFGHIJKLMNO"),
        ("akiaabcdefghijklmnop", "akiaabcdefghijklmnop"),
        ("xoxb-1234567890", "[redacted-slack]"),
        ("xoxr-12345-abcde", "[redacted-slack]"),
        ("xoxz-1234567890", "xoxz-1234567890"),
        ("xoxb-123456789", "xoxb-123456789"),
        ("ghp_" + "a" * 36, "[redacted-token]"),
        ("ghp_" + "a" * 40, "[redacted-token]"),
        ("ghp_" + "a" * 35, "ghp_" + "a" * 35),
        ("api_key=abc", "api_key=[redacted]"),
        ("api-key: abc", "api-key: [redacted]"),
        ("apikey=abc", "apikey=[redacted]"),
        ("X-Api-Key: x", "X-Api-Key: [redacted]"),
        ("SECRET=abc", "SECRET=[redacted]"),
        ('{"token":"abc"}', '{"token":"[redacted]"}'),
        ('{\\"token\\":\\"abc\\"}', '{\\"token\\":\\"[redacted]\\"}'),
        ("{'password': 'abc'}", "{'password': '[redacted]'}"),
        ("password=abc,next=1", "password=[redacted],next=1"),
        ("password = abc def", "password = [redacted] def"),
        ("MY_TOKEN=x", "MY_TOKEN=x"),
        ("access_token: x", "access_token: x"),
        ("tokens: 12", "tokens: 12"),
        ("token:", "token:"),
        ("token: [1]", "token: [1]"),
        ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
    ],
)
def test_shapes_of_secrets_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
    assert masked(text, exact_only=True) == text


def test_an_exact_value_is_not_masked_again_by_a_shape() -> None:
    text = f"Authorization: Bearer {SECRET}, token={SECRET}"
    assert masked(text, A_KEY=SECRET) == (
        "Authorization: Bearer [redacted:A_KEY], token=[redacted:A_KEY]"
    )


def test_a_shape_that_another_mask_uncovers_is_masked_too() -> None:
    text = "AKIAABCDEFGHIJKLMNOPsk-abcdefghijklmnop"
    assert masked(text) == "[redacted-aws-key][redacted-key]"


def test_masks_are_reported_in_the_order_of_the_text() -> None:
    text = f"token=one {SECRET} AKIAABCDEFGHIJKLMNOP password=two {SECRET}"
    shown, masks = redactor(A_KEY=SECRET).redact(text)
    assert shown == (
        "token=[redacted] [redacted:A_KEY] [redacted-aws-key] password=[redacted] [redacted:A_KEY]"
    )
    assert masks == (
        Mask("[redacted]", "one"),
        Mask("[redacted:A_KEY]", SECRET),
        Mask("[redacted-aws-key]", "AKIAABCDEFGHIJKLMNOP"),
        Mask("[redacted]", "two"),
        Mask("[redacted:A_KEY]", SECRET),
    )


def test_a_mask_does_not_show_its_value_when_printed() -> None:
    assert SECRET not in repr(Mask("[redacted:A_KEY]", SECRET))


# JSON


def json_masked(document: str, exact_only: bool = False) -> str:
    run = redactor(A_KEY=SECRET)
    return run.redact_json(document.encode(), exact_only=exact_only)[0].decode()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (f'{{"b": "{SECRET}", "a": [1, null]}}', '{"a":[1,null],"b":"[redacted:A_KEY]"}'),
        (f'{{"{SECRET}": "x"}}', '{"[redacted:A_KEY]":"x"}'),
        (f'[{{"a {SECRET}": {{"{SECRET}": 1.0}}}}]',
         '[{"a [redacted:A_KEY]":{"[redacted:A_KEY]":1.0}}]'),
        (f'{{"{SECRET}": 1, "[redacted:A_KEY]": 2}}',
         '{"[redacted:A_KEY]":2,"[redacted:A_KEY] (2)":1}'),
        ('{"' + "".join(f"\\u{ord(c):04x}" for c in SECRET) + '": 1}', '{"[redacted:A_KEY]":1}'),
        (f'{{"a": {{"{SECRET}": 1}}, "a": 1}}', '{"a":1}'),
        ('{"token=abc": 1}', '{"token=abc": 1}'),
        ('{"token=abc": "token=abc"}', '{"token=abc":"token=[redacted]"}'),
        (f'"{SECRET}"', '"[redacted:A_KEY]"'),
        (f'["{SECRET}", 12345678901234567890, 1.0, 1e400, -0, 1E+2]',
         '["[redacted:A_KEY]",12345678901234567890,1.0,1e400,-0,1E+2]'),
        ('"' + "".join(f"\\u{ord(c):04x}" for c in SECRET) + '"', '"[redacted:A_KEY]"'),
        ('{"b" : 1,  "a": "\\u0041"}', '{"b" : 1,  "a": "\\u0041"}'),
        ('{"token": "abc"}', '{"token": "abc"}'),
        ('{"cmd": "curl -H token=abc"}', '{"cmd":"curl -H token=[redacted]"}'),
        ('{"z": {"y": "token=abc", "b": "c\\/d"}}', '{"z":{"b":"c/d","y":"token=[redacted]"}}'),
        (f'{{"a": "{SECRET}", "a": 1}}', '{"a":1}'),
        ('{"a": 2, "a": 1}', '{"a": 2, "a": 1}'),
        ("not json, token=abc", "not json, token=abc"),
        (f"not json, {SECRET}", "not json, [redacted:A_KEY]"),
        (f'["{SECRET}", NaN]', '["[redacted:A_KEY]", NaN]'),
        (f'["\\ud800", "{SECRET}"]', '["?","[redacted:A_KEY]"]'),
        ("", ""),
    ],
)  # fmt: skip
def test_json_documents(document: str, expected: str) -> None:
    assert json_masked(document) == expected


def test_a_key_that_is_a_secret_is_reported_as_a_mask() -> None:
    _, masks = redactor(A_KEY=SECRET).redact_json(f'{{"{SECRET}": 1}}'.encode())
    assert masks == (Mask("[redacted:A_KEY]", SECRET),)


def test_keys_of_several_credentials_stay_several() -> None:
    run = redactor().for_run({"a": "first-one", "b": "second-one", "c": "third-one"})
    document = b'{"third-one": 3, "first-one": 1, "second-one": 2}'
    once, _ = run.redact_json(document, exact_only=True)
    credential = "[redacted:credential]"
    assert json.loads(once) == {credential: 1, f"{credential} (2)": 2, f"{credential} (3)": 3}
    assert run.redact_json(once) == (once, ())


def test_a_word_is_clean_when_no_known_value_is_in_it_however_often_it_is_asked() -> None:
    run = redactor(A_KEY=SECRET)
    for _ in range(2):
        assert run.is_clean_word("gpt-fake-1")
        assert not run.is_clean_word(f"gpt-{SECRET}")
        assert run.is_clean_word("x" * 10_000)
    for number in range(5000):
        assert run.is_clean_word(f"model-{number}")
    assert not run.is_clean_word(SECRET)


def test_shapes_are_left_alone_in_json_when_only_exact_values_count() -> None:
    assert json_masked('{"cmd": "token=abc"}', exact_only=True) == '{"cmd": "token=abc"}'


def test_bytes_that_are_not_utf8_lose_only_the_secret() -> None:
    run = redactor(A_KEY=SECRET)
    assert run.redact_json(b"\xff " + SECRET.encode())[0] == b"\xff [redacted:A_KEY]"
    assert run.redact_json(b"\xff token=abc") == (b"\xff token=abc", ())


def test_a_document_nested_too_deeply_is_still_searched_for_exact_values() -> None:
    document = "[" * 100_000 + f'"{SECRET}"' + "]" * 100_000
    assert json_masked(document) == document.replace(SECRET, "[redacted:A_KEY]")


def test_masks_of_a_document_come_in_the_order_of_its_output() -> None:
    _, masks = redactor(A_KEY=SECRET).redact_json(f'{{"b": "{SECRET}", "a": "token=x"}}'.encode())
    assert [mask.secret_value for mask in masks] == ["x", SECRET]


# Properties

# Few characters, and pieces of placeholders, so that values overlap, nest and touch masks.
_pieces = st.sampled_from(
    ["a", "b", "ab", "-", " ", "\n", '"', "é", "🎉", "[", "]", "[redacted:", "A_KEY]", "[redacted]",
     "token=", "sk-", "AKIA", "ABCDEFGHIJKLMNOP", "Authorization: Bearer ", "aaaaaaaa"]
)  # fmt: skip
_texts = st.lists(_pieces, max_size=24).map("".join)
_values = st.lists(_texts.filter(lambda text: len(text) >= 4), max_size=5)


def _build(environment: list[str], credentials: list[str]) -> Redactor:
    names = [f"{letter}_KEY" for letter in string.ascii_uppercase]
    return Redactor.from_environment(dict(zip(names, environment, strict=False))).for_run(
        {str(number): value for number, value in enumerate(credentials)}
    )


def _with_values(draw: st.DrawFn) -> tuple[Redactor, str]:
    environment, credentials = draw(_values), draw(_values)
    known = [*environment, *credentials] or ["a"]
    parts = draw(st.lists(st.one_of(_pieces, st.sampled_from(known)), max_size=20))
    return _build(environment, credentials), "".join(parts)


_cases = st.composite(_with_values)()


@given(_cases, st.booleans())
@example(
    (_build(["abcdefgh[", "bbbbbbbbb"], []), "abcdefghbbbbbbbbb"),
    True,
)
def test_redacting_twice_changes_nothing_more(case: tuple[Redactor, str], exact: bool) -> None:
    run, text = case
    once, _ = run.redact(text, exact_only=exact)
    assert run.redact(once, exact_only=exact) == (once, ())


@given(_cases)
def test_the_journal_form_is_stable_under_the_exact_tier(case: tuple[Redactor, str]) -> None:
    run, text = case
    once, _ = run.redact(text)
    assert run.redact(once, exact_only=True)[0] == once


@given(_cases, st.booleans())
@example((_build(["[redacted:"], []), "[redacted:A_KEY][redacted:"), False)
def test_the_text_can_be_restored_from_the_masks(case: tuple[Redactor, str], exact: bool) -> None:
    run, text = case
    shown, masks = run.redact(text, exact_only=exact)
    assert _restores(shown, list(masks), text)


def _restores(shown: str, masks: list[Mask], text: str) -> bool:
    """Whether ``shown`` is ``text`` once each mask, in order, is put back at some placeholder;
    those that stood in the text already are passed over by trying each position."""
    if not masks:
        return shown == text
    mask = masks[0]
    for at in range(len(shown)):
        value_ends = at + len(mask.secret_value)
        if shown.startswith(mask.placeholder, at) and text[at:value_ends] == mask.secret_value:
            rest = shown[at + len(mask.placeholder) :]
            if _restores(rest, masks[1:], text[value_ends:]):
                return True
        if shown[at] != text[at : at + 1]:
            return False
    return False


@given(_cases, st.lists(st.integers(0, 200)))
def test_pieces_of_a_stream_join_to_the_redaction_of_the_whole(
    case: tuple[Redactor, str], cuts: list[int]
) -> None:
    run, text = case
    guard = DeltaGuard(run)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown = [guard.feed(text[a:b]) for a, b in itertools.pairwise(edges)]
    assert "".join(shown) + guard.flush() == run.redact(text, exact_only=True)[0]


@given(_cases)
def test_a_stream_of_single_characters_shows_the_same(case: tuple[Redactor, str]) -> None:
    run, text = case
    guard = DeltaGuard(run)
    shown = "".join(guard.feed(character) for character in text) + guard.flush()
    assert shown == run.redact(text, exact_only=True)[0]


def test_only_the_beginning_of_a_secret_is_held_back() -> None:
    guard = DeltaGuard(redactor(A_KEY=SECRET))
    assert guard.feed(f"hello {SECRET[:5]}") == "hello "
    assert guard.feed("!") == f"{SECRET[:5]}!"
    assert guard.feed(SECRET[:5]) == ""
    assert guard.feed(f"{SECRET[5:]} bye") == "[redacted:A_KEY] bye"
    assert guard.flush() == ""


def test_a_secret_that_never_completes_is_shown_at_the_end() -> None:
    guard = DeltaGuard(redactor(A_KEY=SECRET))
    assert guard.feed(SECRET[:-1]) == ""
    assert guard.flush() == SECRET[:-1]


_json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8), st.sampled_from([SECRET, f"x{SECRET}", "token=abc", "\\/"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=4), st.just(SECRET)), inner, max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip


def _all_masked(run: Redactor, node: object) -> object:
    match node:
        case str():
            return run.redact(node)[0]
        case list():
            return [_all_masked(run, item) for item in node]
        case dict():
            return {
                run.redact(key, exact_only=True)[0]: _all_masked(run, value)
                for key, value in node.items()
            }
        case _:
            return node


@given(_json_values, st.booleans())
def test_json_keeps_everything_but_its_strings_and_keys(value: object, ascii_only: bool) -> None:
    run = redactor(A_KEY=SECRET)
    document = json.dumps(value, ensure_ascii=ascii_only).encode()
    got, masks = run.redact_json(document)
    expected = _all_masked(run, value)
    assert json.loads(got) == expected
    if expected == value:
        assert (got, masks) == (document, ())
    else:
        assert masks
        assert got == msgspec.json.encode(json.loads(got), order="deterministic") or any(
            character in b"eE." for character in got
        )
    assert run.redact_json(got) == (got, ())


def test_clean_text_costs_little_whatever_the_number_of_secrets() -> None:
    """500 clean bytes against 200 secrets and one credential: about 4 us on the machine that this
    was written on (two searches, each 2 us; 8 us for the automaton alone). The limit of 15 us is
    asserted on the fastest of many rounds, so that a busy machine does not fail the test.
    """
    source = random.Random(1)
    environ = {
        f"N{number}_KEY": "".join(source.choices(string.ascii_letters + string.digits, k=40))
        for number in range(200)
    }
    run = redactor(**environ).for_run({"default": "bearer-0123456789abcdef"})
    text = ("The quick brown fox jumps over the lazy dog, and then some. " * 9)[:500]
    rounds = []
    for _ in range(200):
        started = time.perf_counter()
        for _ in range(10):
            run.redact(text)
        rounds.append((time.perf_counter() - started) / 10)
    assert min(rounds) < 15e-6


@pytest.mark.parametrize(
    "text",
    ["sk-" * 40_000, "sk-a" + "-" * 100_000, "token" * 30_000, "xoxb-" * 30_000, "\\" * 100_000],
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    started = time.perf_counter()
    redactor().redact(text)
    assert time.perf_counter() - started < 2
