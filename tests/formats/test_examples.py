"""Examples and SequenceExamples: shapes, kinds, texts, and rows that do not fit."""

import io
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError, MissingDependencyError
from featstore.formats import examples
from featstore.formats.byte_source import open_bytes
from featstore.formats.examples import TfrecordFormat
from featstore.formats.tfrecord import example_class
from tests.formats.conftest import Read, read_whole
from tests.formats.example_files import example, framed, tfrecord

TENSORFLOW = Path(__file__).parent / "by_tensorflow"
LONGS = pa.list_(pa.int64())


@pytest.mark.parametrize("name", ["examples.tfrecord", "examples.tfrecord.gz"])
def test_what_tensorflow_wrote_is_read(read: Read, name: str) -> None:
    """`by_tensorflow/write.py` wrote the files."""
    with open_bytes(str(TENSORFLOW / name), is_plain=TfrecordFormat().is_plain) as source:
        found = read(TfrecordFormat(), source.read())
    assert {field.name: field.type for field in found.schema} == {
        "id": pa.int64(),
        "name": pa.string(),
        "price": pa.float32(),
        "raw": pa.binary(),
        "tags": LONGS,
    }
    first, second, third = found.rows
    assert first == {"id": 1, "price": 1.5, "name": "shoe", "tags": [3, 1, 2], "raw": b"\xff\x00"}
    assert math.isnan(second.pop("price"))
    assert second == {"id": -(2**63), "name": "é", "tags": [], "raw": b""}
    assert third == {"id": 2**63 - 1, "price": None, "name": None, "tags": [7], "raw": None}


def test_lists_of_features_that_tensorflow_wrote_are_read(read: Read) -> None:
    found = read(TfrecordFormat(), (TENSORFLOW / "sequences.tfrecord").read_bytes())
    assert {field.name: field.type for field in found.schema} == {
        "items": LONGS,
        "pairs": pa.list_(LONGS),
        "user": pa.int64(),
    }
    assert found.rows == [
        {"user": 1, "items": [5, 6], "pairs": [[1, 2], [3]]},
        {"user": 2, "items": [], "pairs": [[4]]},
    ]


def test_a_feature_is_a_list_only_if_a_row_has_several_values(read: Read) -> None:
    found = read(TfrecordFormat(), tfrecord([{"a": [1], "b": [1]}, {"a": [], "b": [1, 2]}]))
    assert (found.schema.field("a").type, found.schema.field("b").type) == (pa.int64(), LONGS)
    assert [row["a"] for row in found.rows] == [1, None]


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        (pa.int64(), {"a": [1, 2]}, "expected long, found 2 values; as a list of it they would be"),
        (pa.int64(), {"a": [1.5]}, "expected long, found a float_list"),
        (pa.float32(), {"a": [b"x"]}, "expected float, found a bytes_list"),
        (pa.string(), {"a": [b"\xff"]}, "expected text in UTF-8, found other bytes"),
        (pa.list_(LONGS), {"a": [1]}, "expected a list of features, found a single one"),
    ],
)
def test_a_row_of_another_type_is_bad(
    read: Read, kind: pa.DataType, row: dict[str, Any], said: str
) -> None:
    found = read(TfrecordFormat(), tfrecord([{}, row, {}]), pa.schema([("a", kind)]))
    assert [one["a"] for one in found.rows] == [None, None]
    assert found.num_bad == 1
    assert found.bad[0].startswith(f"record 2: feature 'a': {said}")


def test_a_list_of_features_is_no_scalar(read: Read) -> None:
    schema = pa.schema([("items", pa.int64())])
    found = read(TfrecordFormat(), (TENSORFLOW / "sequences.tfrecord").read_bytes(), schema)
    assert found.bad[0] == "record 1: feature 'items': expected long, found a list of features"


def test_whole_numbers_are_taken_as_floats(read: Read) -> None:
    schema = pa.schema([("a", pa.float64()), ("l", pa.list_(pa.float32()))])
    assert read(TfrecordFormat(), tfrecord([{"a": [3], "l": [1, 2]}]), schema).rows == [
        {"a": 3.0, "l": [1.0, 2.0]}
    ]


def test_bad_records_are_counted_with_their_numbers(read: Read) -> None:
    good, schema = framed(example({"a": [1]})), pa.schema([("a", pa.int64())])
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    no_message, other = framed(b"\xff\xff"), framed(b"\x1a\x03abc")
    found = read(TfrecordFormat(), good + flipped + no_message + other + good, schema)
    assert found.rows == [{"a": 1}] * 2
    assert found.bad == [
        "record 2: its bytes do not match their checksum (CRC-32C)",
        "record 3: expected a tf.train.Example, found bytes that are none",
        "record 4: expected a tf.train.Example, found bytes that are none",
    ]


def test_features_that_the_schema_lacks_are_counted(read: Read) -> None:
    schema = pa.schema([("a", pa.int64())])
    found = read(TfrecordFormat(), tfrecord([{"a": [1], "b": [1]}, {"b": [2], "c": [1]}]), schema)
    assert found.unknown == {"b": 2, "c": 1}


def test_memory_holds_some_records_at_a_time(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_BATCH_ROWS", 3)
    data = tfrecord({"a": [i]} for i in range(10))
    parsed = list(TfrecordFormat().read(io.BytesIO(data), pa.schema([("a", pa.int64())])))
    assert [one.batch.num_rows for one in parsed] == [3, 3, 3, 1]


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="column 'a': a feature of TFRecord cannot be boolean"):
        TfrecordFormat().check(pa.schema([("a", pa.bool_())]))


def test_without_its_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(MissingDependencyError, match=r"install 'featstore-pipeline\[tfrecord\]'"):
        TfrecordFormat()


INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "i": st.lists(INT64, min_size=1, max_size=1),
            "l": st.lists(INT64, max_size=4),
            "f": st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3),
            "s": st.lists(
                st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=3
            ),
        },
    ),
    max_size=8,
)
SCHEMA = pa.schema(
    [("i", pa.int64()), ("l", LONGS), ("f", pa.list_(pa.float32())), ("s", pa.list_(pa.string()))]
)


@given(ROWS)
def test_written_rows_are_read_back(rows: list[dict[str, list[Any]]]) -> None:
    written = [
        {name: [v.encode() if name == "s" else v for v in values] for name, values in row.items()}
        for row in rows
    ]
    found = read_whole(TfrecordFormat(), tfrecord(written), SCHEMA)
    assert found.num_bad == 0
    assert found.rows == [
        {"i": row["i"][0] if "i" in row else None} | {n: row.get(n) for n in "lfs"} for row in rows
    ]


@given(st.binary(max_size=60))
def test_any_record_is_a_row_or_bad(record: bytes) -> None:
    good = framed(example({"i": [1]}))
    found = read_whole(TfrecordFormat(), good + framed(record) + good, SCHEMA)
    assert len(found.rows) + found.num_bad == 3
    assert found.rows[0]["i"] == found.rows[-1]["i"] == 1


def test_numbers_of_both_kinds_are_doubles_that_hold_them(read: Read) -> None:
    found = read(TfrecordFormat(), tfrecord([{"x": [1.5]}, {"x": [2**24 + 1]}, {"x": [2.5]}]))
    assert found.schema.field("x").type == pa.float64()
    assert [row["x"] for row in found.rows] == [1.5, 2**24 + 1, 2.5]
    found = read(TfrecordFormat(), tfrecord([{"x": [1.5]}, {"x": [2**53 + 1]}, {"x": [2.5]}]))
    assert [row["x"] for row in found.rows] == [1.5, 2.5]
    assert found.bad == [
        "record 2: feature 'x': expected float, found an int64_list of numbers that it does not "
        f"hold, up to {2**53 + 1}"
    ]


def test_whole_numbers_that_a_later_row_has_are_not_rounded() -> None:
    of = TfrecordFormat()
    schema = of.infer([example({"x": [1.5]})])
    found = read_whole(of, tfrecord([{"x": [2**24]}, {"x": [-(2**24) - 1]}]), schema)
    assert ([row["x"] for row in found.rows], found.num_bad) == ([2.0**24], 1)
    given = pa.schema([("x", pa.float32())])
    assert read_whole(of, tfrecord([{"x": [2**24 + 1]}]), given).rows == [{"x": 2.0**24}]


def sequence(context: dict[str, int], lists: dict[str, list[int]]) -> bytes:
    message = example_class()()
    for name, value in context.items():
        message.features.feature[name].int64_list.value.append(value)
    for name, values in lists.items():
        for value in values:
            message.feature_lists.feature_list[name].feature.add().int64_list.value.append(value)
    return bytes(message.SerializeToString())


def test_a_feature_of_the_context_with_the_name_of_a_list_is_a_column_too(read: Read) -> None:
    records = [sequence({"id": 7}, {"id": [1, 2], "b": [3]}), sequence({"id": 8, "a": 1}, {})]
    found = read(TfrecordFormat(), b"".join(map(framed, records)))
    assert found.rows == [
        {"a": None, "b": [3], "context.id": 7, "id": [1, 2]},
        {"a": 1, "b": None, "context.id": 8, "id": None},
    ]
    assert found.unknown == {}


def test_a_name_that_only_later_rows_have_in_both_is_malformed() -> None:
    of = TfrecordFormat()
    late = framed(sequence({"id": 7}, {"id": [1, 2]}))
    for record in (sequence({}, {"id": [1]}), sequence({"id": 1}, {})):
        found = read_whole(of, framed(record) + late, of.infer([record]))
        assert (len(found.rows), found.num_bad) == (1, 1)
    with pytest.raises(InputError, match=r"context without a feature 'context\.id'"):
        of.infer([sequence({"id": 7, "context.id": 1}, {"id": [1]})])
