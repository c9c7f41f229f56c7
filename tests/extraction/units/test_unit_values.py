"""Texts of values that an extraction keeps."""

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import SpecError
from featstore.extraction.units import unit_values
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.unit_values import ValueGathering, depth_of
from featstore.ops.signature import MAX_TEXT
from featstore.spec.parse import load_spec
from featstore.statistics.values_file import NUM_KEPT, StoredValues, read_values

INPUTS = {
    "user": "string",
    "number": "long",
    "tags": "list<string>",
    "ts": "timestamp",
    "flag": "boolean",
    "price": "double",
}
USER = {"slot": 1, "name": "user_slot", "op": "hash", "of": "user"}
NUMBER = {"slot": 2, "name": "number_slot", "op": "hash", "of": "number"}
TAGS = {"slot": 3, "name": "tags_slot", "op": "hash", "of": "tags", "max_len": 2}
TIME = {"slot": 4, "name": "time_slot", "op": "hash", "of": "ts"}
HOUR = {"slot": 5, "name": "hour", "op": "hour", "of": "ts"}
INDEX = {"slot": 6, "name": "bucket", "op": "bucketize", "of": "price", "boundaries": [1, 2]}
CROSS = {"slot": 7, "name": "user_x_hour", "op": "cross", "of": ["user", "hour"]}
LISTS = {"slot": 8, "name": "tags_x_flag", "op": "cross", "of": ["tags", "flag"]}
START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def row(**changes: Any) -> dict[str, Any]:
    values = {"user": "ann", "number": 7, "tags": ["a", "b", "c"], "flag": True, "price": 1.5}
    return values | {"ts": START} | changes


def raw(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), load_schema())


def load_schema() -> pa.Schema:
    types = {
        "user": pa.string(),
        "number": pa.int64(),
        "tags": pa.list_(pa.string()),
        "ts": pa.timestamp("us", "UTC"),
        "flag": pa.bool_(),
        "price": pa.float64(),
    }
    return pa.schema(list(types.items()))


def kept(
    path: Path, tables: Sequence[pa.Table], slots: Sequence[dict[str, Any]], **changes: Any
) -> StoredValues:
    """What an extraction of these raw files keeps, of a unit each."""
    (path / "raw").mkdir(parents=True)
    for i, table in enumerate(tables):
        pq.write_table(table, path / "raw" / f"{i}.parquet")
    document = {"spec": 1, "inputs": INPUTS, "slots": list(slots), **changes}
    featstore.extract(load_spec(document), path / "raw", path / "table", partition={"dt": "1"})
    files = list((path / "table" / "_stats").rglob("*.values"))
    assert len(files) == 1
    return read_values(str(path / "table"), str(files[0].relative_to(path / "table")))


def texts(values: StoredValues) -> dict[str, dict[str, int]]:
    """The counts by slot and text."""
    found: dict[str, dict[str, int]] = {}
    for entry in values.table.to_pylist():
        found.setdefault(entry["slot"], {})[entry["text"]] = entry["count"]
    return found


def test_texts_of_all_kinds_of_slots_are_kept_with_their_exact_counts(tmp_path: Path) -> None:
    rows = [
        row(),
        row(user="bob", number=-5, tags=["b"], flag=False, price=0.0),
        row(user=None, number=None, tags=None, ts=None, flag=None, price=None),
        row(user="", tags=[], ts=START + datetime.timedelta(hours=13, microseconds=5)),
        row(user="two\nlines\t", price=9.0),
    ]
    found = kept(
        tmp_path,
        [raw(rows)],
        [USER, NUMBER, TAGS, TIME, HOUR, INDEX | {"encode": "index"}, CROSS, LISTS],
    )
    assert texts(found) == {
        "user_slot": {"ann": 1, "bob": 1, '""': 1, r"two\nlines\t": 1},
        "number_slot": {"7": 3, "-5": 1},
        "tags_slot": {"a": 2, "b": 3},
        "time_slot": {"2026-11-01 00:00:00": 3, "2026-11-01 13:00:00.000005": 1},
        "hour": {"00:00": 3, "13:00": 1},
        "bucket": {"< 1": 1, "[1, 2)": 2, ">= 2": 1},
        "user_x_hour": {
            "ann & 00:00": 1,
            "bob & 00:00": 1,
            '"" & 13:00': 1,
            r"two\nlines\t & 00:00": 1,
        },
        "tags_x_flag": {"a & true": 2, "b & true": 2, "c & true": 2, "b & false": 1},
    }
    ranks = {(entry["slot"], entry["text"]): entry["rank"] for entry in found.table.to_pylist()}
    assert (ranks["hour", "13:00"], ranks["bucket", "< 1"], ranks["user_slot", "ann"]) == (
        13,
        0,
        None,
    )


def test_each_text_has_the_sign_that_extraction_gives_it(tmp_path: Path) -> None:
    rows = [row(user=f"user {i % 700}", tags=[f"t{i % 31}", f"t{i % 7}"]) for i in range(2_000)]
    slots = [USER, TAGS, HOUR, CROSS, LISTS]
    table = kept(tmp_path, [raw(rows)], slots).table
    extractor = featstore.Extractor(load_spec({"spec": 1, "inputs": INPUTS, "slots": slots}))
    for entry in table.to_pylist():
        name, text = entry["slot"], entry["text"]
        if name == "user_slot":
            assert extractor.one(row(user=text))[name] == entry["id"]
        elif name == "tags_x_flag":
            assert extractor.one(row(tags=[text.removesuffix(" & true")]))[name] == [entry["id"]]
    assert Counter(table["slot"].to_pylist()) == {
        "user_slot": 700,
        "user_x_hour": 700,
        "tags_slot": 31,
        "tags_x_flag": 31,
        "hour": 1,
    }


@pytest.mark.parametrize("num_files", [1, 3])
def test_a_slot_of_10_000_values_is_kept_and_one_of_more_is_not(
    num_files: int, tmp_path: Path
) -> None:
    """Whichever units see them: the bound holds for the partition."""
    rows = [row(user=f"{i}", number=min(i, 9_999)) for i in range(10_001)]
    found = kept(tmp_path, [raw(rows[i::num_files]) for i in range(num_files)], [USER, NUMBER])
    assert found.left_out == {"user_slot"}
    by_slot = texts(found)
    assert list(by_slot) == ["number_slot"]
    assert len(by_slot["number_slot"]) == NUM_KEPT
    assert by_slot["number_slot"]["9999"] == 2


def test_the_most_frequent_of_any_number_of_values_are_kept_where_the_spec_says_top(
    tmp_path: Path,
) -> None:
    rows = [row(user="often" if i % 4 == 0 else f"user {i}") for i in range(40_000)]
    found = kept(tmp_path, [raw(rows)], [USER | {"values": "top"}])
    assert found.left_out == frozenset()
    users = texts(found)["user_slot"]
    assert (next(iter(users.items())), len(users)) == (("often", 10_000), NUM_KEPT)


def test_values_none_keeps_nothing_of_a_slot_nor_of_its_crosses(tmp_path: Path) -> None:
    other = {"slot": 9, "name": "user_x_flag", "op": "cross", "of": ["user", "flag"]}
    slots = [USER | {"values": "none"}, HOUR, CROSS, LISTS, other | {"values": "auto"}]
    found = kept(tmp_path, [raw([row()])], slots)
    assert set(texts(found)) == {"hour", "tags_x_flag", "user_x_flag"}
    found = kept(tmp_path / "2", [raw([row()])], [USER | {"values": "auto"}, HOUR], values="none")
    assert set(texts(found)) == {"user_slot"}


def test_values_none_for_the_spec_writes_no_file(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        kept(tmp_path, [raw([row()])], [USER, HOUR], values="none")
    assert list((tmp_path / "table" / "_stats").rglob("*.statistics"))
    assert not list((tmp_path / "table" / "_stats").rglob("*.values"))


def test_values_changes_no_hash() -> None:
    document = {"spec": 1, "inputs": INPUTS, "slots": [USER]}
    told = {**document, "slots": [USER | {"values": "top"}], "values": "none"}
    assert load_spec(document).hash == load_spec(told).hash


def test_the_same_texts_are_kept_however_rows_are_divided_into_files(tmp_path: Path) -> None:
    rows = [row(user=f"user {i * i % 401}", tags=[f"t{i % 13}"] * (i % 4)) for i in range(3_000)]
    slots = [USER, TAGS, HOUR, CROSS]
    once = kept(tmp_path / "1", [raw(rows)], slots)
    cut = kept(tmp_path / "2", [raw(rows[:7]), raw(rows[7:1_500]), raw(rows[1_500:])], slots)
    assert texts(once) == texts(cut)


def test_the_same_texts_are_kept_if_rows_laid_aside_take_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(user=f"user {i % 5_000}", tags=[f"tag {i % 700}", "often"]) for i in range(70_000)]
    slots = [USER, TAGS, HOUR, CROSS]
    waited = kept(tmp_path / "waited", [raw(rows)], slots)
    monkeypatch.setattr(unit_values, "_MAX_WAITING_BYTES", 100_000)
    found = kept(tmp_path / "found", [raw(rows)], slots)
    assert texts(found) == texts(waited)
    assert {slot: len(of_slot) for slot, of_slot in texts(found).items()} == {
        "user_slot": NUM_KEPT,
        "tags_slot": 701,
        "hour": 1,
        "user_x_hour": NUM_KEPT,
    }


def test_columns_of_two_files_may_have_different_layouts(tmp_path: Path) -> None:
    rows = [row(user=f"user {i}") for i in range(30)]
    other = raw(rows).set_column(0, "user", raw(rows)["user"].dictionary_encode())
    assert len(texts(kept(tmp_path, [raw(rows[:9]), other], [USER]))["user_slot"]) == 30


def test_long_texts_are_cut(tmp_path: Path) -> None:
    rows = [row(user="x" * 500), row(user="x" * MAX_TEXT)]
    found = texts(kept(tmp_path, [raw(rows)], [USER]))["user_slot"]
    assert set(found) == {"x" * (MAX_TEXT - 1) + "…", "x" * MAX_TEXT}


@pytest.mark.parametrize(
    ("num_ids", "data_bytes", "depth"),
    [
        ([10, 5_000], 10**12, NUM_KEPT),
        ([5_000] * 200, 10**9, NUM_KEPT),
        ([5_000] * 200, 100_000_000, 121),
        ([5_000] * 200, 10_000_000, 31),
        ([20] * 200, 10_000_000, NUM_KEPT),
        ([500] * 4_000, 15_000_000, 1),
        ([500] * 4_000, 41, 1),
        ([500] * 10_000, 41, 0),
        ([], 0, NUM_KEPT),
    ],
)
def test_texts_take_a_small_share_of_the_data(
    num_ids: list[int], data_bytes: int, depth: int
) -> None:
    assert depth_of(num_ids, data_bytes) == depth


@pytest.mark.parametrize(
    ("slots", "changes", "said"),
    [
        ([USER | {"values": "all"}], {}, r"slots\[0\].values: expected auto, top or none"),
        ([USER], {"values": None}, "values: expected auto, top or none, found None"),
        (
            [USER, {"name": "x", "op": "hash", "of": "user", "store": False, "values": "top"}],
            {},
            r"slots\[1\].values: expected it at a stored slot",
        ),
        (
            [{"slot": 1, "name": "x", "op": "log1p", "of": "price", "values": "top"}],
            {},
            r"slots\[0\].values: expected it at a slot of ids, not of numbers",
        ),
    ],
)
def test_other_options_are_refused(
    slots: list[dict[str, Any]], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        featstore.Extractor(load_spec({"spec": 1, "inputs": INPUTS, "slots": slots, **changes}))


@pytest.mark.slow
def test_a_unit_of_few_rows_and_thousands_of_slots_keeps_no_texts_unless_one_says_top(
    tmp_path: Path,
) -> None:
    """There is room for less than four texts a slot."""
    slots = [{"slot": i, "name": f"s{i}", "op": "hash", "of": "user"} for i in range(1, 1_700)]
    rows = [raw([row(user=f"user {i}") for i in range(20)])]
    found = kept(tmp_path / "auto", rows, slots)
    assert found.table.num_rows == 0
    assert found.left_out == {slot["name"] for slot in slots}
    slots[0]["values"] = "top"
    assert set(texts(kept(tmp_path / "top", rows, slots))) == {slot["name"] for slot in slots}
    del slots[0]["values"]
    assert len(texts(kept(tmp_path / "fewer", rows, slots[:400]))) == 400


def test_a_unit_of_several_batches_keeps_texts_however_little_room_there_is() -> None:
    slots = [{"slot": i, "name": f"s{i}", "op": "hash", "of": "flag"} for i in range(1, 1_700)]
    extractor = Extractor(load_spec({"spec": 1, "inputs": INPUTS, "slots": slots}))
    gathering = ValueGathering(extractor, extractor.schema.names)
    for _ in gathering.watch(extractor(batch) for batch in raw([row()] * 3).to_batches(2)):
        pass
    found = gathering.finish(1_000)
    assert found.left_out == frozenset()
    assert texts(found)["s1"] == {"true": 3}
