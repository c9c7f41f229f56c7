"""Two texts of one sign are real ones: XXH64 of eight bytes can be undone, and a sign leaves out
one bit of 64.
"""

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featstore
from featstore.base.errors import OperatorError
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.unit_statistics import Gathering
from featstore.spec.parse import load_spec
from featstore.statistics.sketches import SAMPLE_ROWS
from tests.native.oracles.xxh64 import xxh64_bytes, xxh64_long
from tests.parquet_files import put_parquet

MODULUS = 1 << 64
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SLOT = 101
SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {"text": "string", "texts": "list<string>", "day": "string"},
    "slots": [
        {"slot": SLOT, "name": "plain", "op": "hash", "of": "text"},
        {"slot": 102, "name": "elsewhere", "op": "hash", "of": "text"},
        {"slot": 103, "name": "crossed", "op": "cross", "of": ["text", "day"]},
        {
            "slot": 104,
            "name": "many",
            "op": "hash",
            "of": "texts",
            "share_slot": SLOT,
            "max_len": 2,
        },
    ],
}


def rotated_back(word: int, bits: int) -> int:
    return (word >> bits | word << (64 - bits)) % MODULUS


def undo_shift(word: int, bits: int) -> int:
    found = word
    for _ in range(64 // bits):
        found = word ^ found >> bits
    return found


def undo(hashed: int, seed: int) -> int:
    """The one word of eight bytes that has this XXH64."""
    found = undo_shift(hashed, 32) * pow(P3, -1, MODULUS) % MODULUS
    found = undo_shift(found, 29) * pow(P2, -1, MODULUS) % MODULUS
    found = rotated_back((undo_shift(found, 33) - P4) * pow(P1, -1, MODULUS) % MODULUS, 27)
    mixed = found ^ (seed + P5 + 8) % MODULUS
    return rotated_back(mixed * pow(P1, -1, MODULUS) % MODULUS, 31) * pow(P2, -1, MODULUS) % MODULUS


def twins_of(slot: int) -> tuple[str, str]:
    """Two texts that have one sign in a slot: their chained hashes differ in the bit that signs
    leave out.
    """
    seed = xxh64_bytes(slot.to_bytes(4, "little"), 42)
    for number in itertools.count():
        text = f"{number:08d}"
        chained = xxh64_long(xxh64_bytes(text.encode(), 42), seed)
        try:
            return text, undo(undo(chained ^ 1 << 63, seed), 42).to_bytes(8, "little").decode()
        except UnicodeDecodeError:
            continue
    raise AssertionError


TWINS = twins_of(SLOT)


def write_raw(path: Path, texts: list[str]) -> None:
    put_parquet(
        path,
        {
            "text": texts,
            "texts": [[text, "other"] for text in texts],
            "day": ["1"] * len(texts),
        },
        row_group_size=1000,
    )


def profiled(tmp_path: Path, spec: dict[str, Any], **days: list[str]) -> Any:
    for day, texts in days.items():
        write_raw(tmp_path / "raw" / f"dt={day}" / "a.parquet", texts)
    table = str(tmp_path / "table")
    featstore.extract(load_spec(spec), str(tmp_path / "raw"), table, partition_from_path=["dt"])
    return featstore.open_table(table).profile(stored=True)


def collisions(profile: Any) -> dict[str, int]:
    return {name: profile[name]["num_sign_collisions"] for name in profile.slots}


def test_the_twins_are_two_texts_of_one_sign() -> None:
    assert TWINS[0] != TWINS[1]
    extractor = Extractor(load_spec(SPEC))
    one, other = (extractor.one({"text": text, "texts": [text], "day": "1"}) for text in TWINS)
    assert one["plain"] == other["plain"]
    assert one["elsewhere"] != other["elsewhere"]


def test_two_values_of_one_sign_are_seen_in_the_slots_where_they_collide(tmp_path: Path) -> None:
    found = profiled(tmp_path, SPEC, one=[*TWINS, *TWINS, "a", "b"])
    assert collisions(found) == {"plain": 1, "elsewhere": 0, "crossed": 0, "many": 1}
    assert [found[name]["num_signs_checked"] for name in found.slots] == [3, 4, 4, 4]
    [row] = [line for line in str(found).splitlines() if line.startswith("plain ")]
    assert "1 of 3" in row
    assert (
        featstore.open_table(tmp_path / "table").profile()["plain"]["num_sign_collisions"] is None
    )


def test_two_values_of_one_sign_are_seen_in_different_days(tmp_path: Path) -> None:
    assert (
        collisions(profiled(tmp_path, SPEC, one=[TWINS[0], "a"], two=[TWINS[1], "b"]))["plain"] == 1
    )


def test_a_large_file_is_compared_in_its_sample(tmp_path: Path) -> None:
    texts = [TWINS[row % 2] if row % 4 < 2 else f"u{row}" for row in range(4 * SAMPLE_ROWS)]
    found = profiled(tmp_path, SPEC, one=texts)
    assert collisions(found) == {"plain": 1, "elsewhere": 0, "crossed": 0, "many": 1}
    assert SAMPLE_ROWS / 2 < found["plain"]["num_signs_checked"] < 2 * SAMPLE_ROWS


def test_the_rows_of_files_of_other_types_are_compared_with_each_other() -> None:
    extractor = Extractor(load_spec(SPEC))
    gathering = Gathering(extractor)
    kinds = (
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.string_view(),
    )
    for text, kind in zip((*TWINS, "a", "b"), kinds, strict=True):
        columns = {
            "text": pa.array([text] * 2, pa.string()).cast(kind),
            "texts": [[text]] * 2,
            "day": ["1"] * 2,
        }
        list(gathering.watch([extractor(pa.RecordBatch.from_pydict(columns))]))
    found = gathering.finish().columns["plain"]
    assert (found.collisions.collided.size, found.num_signs_checked) == (1, 3)


def test_integers_have_no_collisions_where_they_have_none(tmp_path: Path) -> None:
    """The way of integers through tables of small ranges and decimals, for both hashes."""
    spec = {
        "spec": 1,
        "inputs": {"text": "string"},
        "slots": [{"slot": 1, "name": "n", "op": "length", "of": "text"}],
    }
    found = profiled(tmp_path, spec, one=["x" * (row % 60) for row in range(500)])
    assert (found["n"]["num_sign_collisions"], found["n"]["num_signs_checked"]) == (0, 60)


CALLS = itertools.count(1)


@featstore.operator(inputs=[pa.string()], result=pa.list_(pa.string()))
def growing(texts: pa.Array) -> pa.Array:
    number = next(CALLS)
    return pa.array([["x"] * number] * len(texts))


def test_an_operator_that_gives_other_values_each_time_is_named(tmp_path: Path) -> None:
    slots = [{"slot": 1, "name": "grown", "op": f"{__name__}:growing", "of": "text"}]
    spec = {"spec": 1, "inputs": {"text": "string"}, "slots": slots}
    with pytest.raises(
        OperatorError,
        match=r"grown \(.*growing\(text\)\): 2 sampled rows gave \d+ values, and \d+ when",
    ):
        profiled(tmp_path, spec, one=["a", "b"])
