"""Lines of `name:value` pairs: columns and lists, values that are missing, and lines that are none."""

import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import InputError
from featstore.formats.pairs import PairsFormat
from tests.formats.conftest import Read, read_whole


def test_names_are_columns_and_those_that_a_row_repeats_are_lists(read: Read) -> None:
    found = read(
        PairsFormat(),
        b"label:1,slot1:17,tags:a,tags:b:c\r\n\n label:0,tags:,price: 2.50\nlabel:,slot1:3,tags:d",
    )
    assert found.schema.types == [
        pa.int64(),
        pa.int64(),
        pa.list_(pa.string()),
        pa.string(),  # space around is more than a number has
    ]
    assert found.rows == [
        {"label": 1, "slot1": 17, "tags": ["a", "b:c"], "price": None},
        {"label": 0, "slot1": None, "tags": [], "price": " 2.50"},
        {"label": None, "slot1": 3, "tags": ["d"], "price": None},
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"label", "expected name:value, found 'label'"),
        (b"label:1,", "expected name:value, found ''"),
        (b":1", "expected name:value, found ':1'"),
        (b"label:x", "column 'label': expected long, found 'x'"),
        (b"label:007", "column 'label': expected long, found '007'"),
        (b"label:1,label:2", "column 'label': expected one value, found 2; --column label='list"),
        (b"label:\xff", "expected UTF-8, found other bytes"),
    ],
)
def test_a_line_of_another_form_is_bad(read: Read, line: bytes, reason: str) -> None:
    schema = PairsFormat().infer(PairsFormat().sample(io.BytesIO(b"label:1"), 10))
    found = read(PairsFormat(), b"label:1\n" + line + b"\nlabel:3\n", schema)
    assert [row["label"] for row in found.rows] == [1, 3]
    assert found.num_bad == 1
    assert found.bad[0].startswith(f"line 2: {reason}")


def test_bad_lines_tell_nothing_about_columns() -> None:
    of = PairsFormat()
    assert of.infer(of.sample(io.BytesIO(b"a:1,b\n\xff\na:2"), 10)).names == ["a"]
    assert of.sample(io.BytesIO(b"none\n"), 10) == []
    assert of.infer(of.sample(io.BytesIO(b"a:1\na:x"), 1)).types == [pa.int64()]


def test_names_that_the_schema_lacks_are_counted_by_row(read: Read) -> None:
    found = read(PairsFormat(), b"a:1,b:2,b:3\na:1,b:\n", pa.schema([("a", pa.float32())]))
    assert (found.rows, found.unknown) == ([{"a": 1.0}, {"a": 1.0}], {"b": 1})


def test_other_delimiters_and_types_are_refused_or_taken(read: Read) -> None:
    assert read(PairsFormat(delimiter=" "), b"a:1 b:2,3").rows == [{"a": 1, "b": "2,3"}]
    for delimiter in ("", ":", "\n"):
        with pytest.raises(InputError, match="delimiter: expected text without a colon"):
            PairsFormat(delimiter=delimiter)
    with pytest.raises(InputError, match=r"column 'a': expected one of string, .* of these, found"):
        PairsFormat().check(pa.schema([("a", pa.map_(pa.string(), pa.int64()))]))


NAMES = st.text("ab1 _é", min_size=1, max_size=3).map(str.strip).filter(bool)
ROWS = st.lists(st.lists(st.tuples(NAMES, st.integers(-(2**63), 2**63 - 1)), max_size=5))


@given(ROWS)
def test_written_rows_are_read_back(rows: list[list[tuple[str, int]]]) -> None:
    rows = [row for row in rows if row]
    names = dict.fromkeys(name for row in rows for name, _ in row)
    schema = pa.schema([(name, pa.list_(pa.int64())) for name in names])
    lines = [",".join(f"{name}:{value}" for name, value in row) for row in rows]
    found = read_whole(PairsFormat(), "\n".join(lines).encode(), schema)
    expected = [
        {name: [value for own, value in row if own == name] or None for name in names}
        for row in rows
    ]
    assert found.rows == expected


@given(st.binary(max_size=100))
def test_any_bytes_are_rows_or_bad_rows(data: bytes) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    parsed = list(PairsFormat().read(io.BytesIO(b"a:1,b:x\n" + data + b"\na:1"), schema))
    assert sum(one.batch.num_rows for one in parsed) >= 2
    for one in parsed:
        one.batch.validate(full=True)


def test_pairs_become_raw_rows_that_are_extracted(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("label:1,slot1:17,tags:a,tags:b\nlabel:0,slot1:3\n\nbad\n")
    with pytest.raises(InputError, match="line 4: expected name:value, found 'bad'"):
        featstore.import_raw("pairs", tmp_path / "log.txt", tmp_path / "raw")
    report = featstore.import_raw("pairs", tmp_path / "log.txt", tmp_path / "raw", max_malformed=1)
    assert report.schema.inputs == {"label": "long", "slot1": "long", "tags": "list<string>"}
    slots = [{"slot": 1, "name": "f", "op": "hash", "of": "slot1"}]
    inputs = dict(report.schema.inputs)
    spec = {"spec": 1, "inputs": inputs, "labels": {"click": "label"}, "slots": slots}
    table = tmp_path / "table"
    assert featstore.extract(featstore.load_spec(spec), tmp_path / "raw", table).num_rows == 2
    assert featstore.open_table(table).to_arrow()["click"].to_pylist() == [1, 0]
