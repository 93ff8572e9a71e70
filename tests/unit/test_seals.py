"""The master key and what it seals."""

from __future__ import annotations

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from events.log import SealError
from events.seals import Sealer, load_master_key

KEY = bytes(range(32))


def test_a_key_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    key = load_master_key(tmp_path / "data")
    assert len(key) == 32
    assert load_master_key(tmp_path / "data") == key
    file = tmp_path / "data" / "master.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.name for p in file.parent.iterdir()] == ["master.key"]


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_master_key(tmp_path), range(32)))
    assert len(keys) == 1


@pytest.mark.parametrize("text", [KEY.hex(), KEY.hex().upper(), base64.b64encode(KEY).decode()])
def test_a_given_key_wins_over_the_file(tmp_path: Path, text: str) -> None:
    load_master_key(tmp_path)
    assert load_master_key(tmp_path, text) == KEY


@pytest.mark.parametrize("text", ["short", KEY.hex()[:-2], "pass phrase", "=" * 44])
def test_a_malformed_key_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(SealError, match="LOOMCYCLE_MASTER_KEY") as caught:
        load_master_key(tmp_path, text)
    assert text not in str(caught.value)


def test_every_seal_of_one_value_is_different_and_names_its_key() -> None:
    sealer = Sealer(KEY)
    one, other = sealer.seal("c", b"value"), sealer.seal("c", b"value")
    assert one != other
    assert bytes.fromhex(sealer.key_id) in one
    assert sealer.open("c", one) == sealer.open("c", other) == b"value"


def test_any_changed_byte_is_noticed() -> None:
    sealer = Sealer(KEY)
    sealed = sealer.seal("c", b"value")
    for index in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[index] ^= 1
        with pytest.raises(SealError):
            sealer.open("c", bytes(damaged))
    for length in range(len(sealed)):
        with pytest.raises(SealError):
            sealer.open("c", sealed[:length])


def test_the_key_id_does_not_depend_on_the_process_and_differs_by_key() -> None:
    assert Sealer(KEY).key_id == Sealer(KEY).key_id
    assert Sealer(KEY).key_id != Sealer(KEY[::-1]).key_id
