"""JSON lines: types of most values, lines that are no rows, and columns that nobody expected."""

import io
import json
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.formats import json_lines
from featstore.formats.byte_source import line_blocks
from featstore.formats.json_lines import JsonFormat
from tests.formats.conftest import Read, read_whole

TYPES = pa.schema([("a", pa.int64()), ("l", pa.list_(pa.string()))])


def test_types_are_those_of_most_values(read: Read) -> None:
    rows = [
        {"n": 1, "x": 1, "t": "2024-01-01T00:00:00Z", "l": ["a"], "d": {"k": 1}, "none": None},
        {"n": 2, "x": 1.5, "t": "2024-01-02 03:04:05", "l": [], "b": True, "e": []},
        {"n": "no", "x": 2},
    ]
    found = read(JsonFormat(), "\n".join(map(json.dumps, rows)).encode())
    assert {field.name: field.type for field in found.schema} == {
        "n": pa.int64(),
        "x": pa.float64(),
        "t": pa.timestamp("us", "UTC"),
        "l": pa.list_(pa.string()),
        "d": pa.struct([("k", pa.int64())]),
        "none": pa.string(),
        "b": pa.bool_(),
        "e": pa.list_(pa.string()),
    }
    assert [row["x"] for row in found.rows] == [1.0, 1.5]
    assert found.bad == [
        'line 3: Column(/n) changed from number to string; found {"n": "no", "x": 2}'
    ]


def test_lines_that_are_no_rows_are_counted_with_their_numbers(read: Read) -> None:
    data = b'{"a":1}\n\n{"a":1.5}\n[1]\n{"a":1} {"a":2}\n{"a":\n{"a":7}\r\n{"a":8'
    found = read(JsonFormat(), data, TYPES)
    assert [row["a"] for row in found.rows] == [1, 7]
    assert found.num_bad == 5
    assert [bad.partition(":")[0] for bad in found.bad] == [
        *("line 3", "line 4", "line 5"),
        "line 8",  # of the last block: three examples are kept of each
    ]
    assert "expected an object on each line, found 2 on 1 lines" in found.bad[2]


def test_numbers_of_lines_go_on_from_block_to_block(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "line_blocks", partial(line_blocks, block_bytes=64))
    lines = [b'{"a":%d}' % i for i in range(1, 200)]
    lines[149] = b"no"
    found = read(JsonFormat(), b"\n".join(lines), TYPES)
    assert [bad.partition(":")[0] for bad in found.bad] == ["line 150"]
    assert len(found.rows) == 198


def test_columns_that_the_schema_lacks_are_counted(read: Read) -> None:
    data = b'{"a":1,"b":2}\n{"a":1}\n{"a":1,"b":null}\n{"a":1,"b":3}\n'
    assert read(JsonFormat(), data, TYPES).unknown == {"b": 2}


def test_a_column_of_several_types_that_the_schema_lacks_spoils_no_row(read: Read) -> None:
    found = read(JsonFormat(), b'{"a":1,"b":2}\n{"a":2,"b":"x"}\n', TYPES)
    assert [row["a"] for row in found.rows] == [1, 2]
    assert found.unknown == {"b": 2}


@pytest.mark.parametrize("line", [b"null", b"{} null", b'{"a":1} {"a":\n2}'])
def test_what_is_no_object_is_no_row(read: Read, line: bytes) -> None:
    """Arrow takes null for a row, and ends the process where it is the only one."""
    alone = read(JsonFormat(), line, TYPES)
    assert (alone.rows, alone.num_bad) == ([], 1 + line.count(b"\n"))
    among = read(JsonFormat(), b'{"a":1}\n' + line + b'\n{"a":2}\n', TYPES)
    assert [row["a"] for row in among.rows] == [1, 2]
    assert among.num_bad == alone.num_bad


def test_text_of_other_bytes_than_utf_8_is_a_bad_row(read: Read) -> None:
    found = read(JsonFormat(), b'{"a":1,"l":["\xe9"]}\n{"a":2,"l":["\xc3\xa9"]}\n', TYPES)
    assert found.rows == [{"a": 2, "l": ["é"]}]
    assert found.bad == [
        "line 1: expected UTF-8, found other bytes (invalid continuation byte); found "
        '{"a":1,"l":["\ufffd"]}'
    ]


@pytest.mark.parametrize("text", ["\\ud800", "\\udc00", "\\uDFFFx"])
def test_half_of_a_surrogate_pair_is_no_text(read: Read, text: str) -> None:
    lines = [f'{{"t":"{text}"}}', '{"t":"\\ud83d\\ude00"}', f'{{"{text}":1}}']
    found = read(JsonFormat(), "\n".join(lines).encode())
    assert found.schema == pa.schema([("t", pa.string())])
    assert found.rows[0] == {"t": "\U0001f600"}
    assert found.num_bad == 4 - len(found.rows) - 1


def test_objects_without_fields_are_left_out(read: Read) -> None:
    """Parquet cannot hold them."""
    found = read(JsonFormat(), b'{"a":1,"e":{},"l":[{}],"s":{"x":1,"y":{}}}\n{"a":2,"e":null}\n')
    types = [("a", pa.int64()), ("s", pa.struct([("x", pa.int64())]))]
    assert found.schema == pa.schema(types)
    assert found.unknown == {"e": 1, "l": 1, "s.y": 1}


def test_fields_of_objects_that_the_schema_lacks_are_counted(read: Read) -> None:
    inner = pa.struct([("x", pa.int64())])
    schema = pa.schema([("s", inner), ("l", pa.list_(inner))])
    data = b"""
    {"s":{"x":1}, "l":[{"x":1,"y":1},{"x":2,"y":2}]}
    {"s":{"x":2,"z":3}}
    {"s":null,"l":[]}
    {"s":{"z":null},"l":[{"y":null},{"y":5},null]}
    """
    found = read(JsonFormat(), data, schema)
    assert [row["s"] for row in found.rows] == [{"x": 1}, {"x": 2}, None, {"x": None}]
    assert found.rows[3]["l"] == [{"x": None}, {"x": None}, None]
    assert found.unknown == {"s.z": 1, "l.y": 2}
    assert found.num_bad == 0


def test_a_line_that_is_nested_without_end_is_a_bad_row(read: Read) -> None:
    """Neither Arrow's parser nor Python's has a stack for it."""
    deep = b'{"b":' + 200_000 * b"[" + 200_000 * b"]" + b"}"
    flat = b'{"a":1,"l":[],"c":[' + b'["[[\\"["],' * 1_000 + b"[]]}"
    found = read(JsonFormat(), deep + b"\n" + flat, pa.schema([("a", pa.int64())]))
    assert [row["a"] for row in found.rows] == [1]
    assert [bad[:54] for bad in found.bad] == [
        "line 1: expected at most 500 levels of nesting; found "
    ]
    assert JsonFormat().sample(io.BytesIO(deep + b'\n{"a":1}'), 10) == [{"a": 1}]


def test_a_map_is_refused() -> None:
    with pytest.raises(
        InputError, match="column 'a': pyarrow does not read JSON as map<string, lo"
    ):
        JsonFormat().check(pa.schema([("a", pa.map_(pa.string(), pa.int64()))]))


ROWS = st.fixed_dictionaries(
    {"a": st.none() | st.integers(-(2**63), 2**63 - 1)},
    optional={"l": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5))},
)


@given(st.lists(ROWS, max_size=20))
def test_what_the_json_module_writes_is_read_back(rows: list[dict[str, Any]]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    found = read_whole(JsonFormat(), data, TYPES)
    assert found.rows == [{"a": row["a"], "l": row.get("l")} for row in rows]
    assert found.num_bad == 0


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_any_lines_are_rows_or_bad_rows(lines: list[bytes]) -> None:
    data = b'{"a":1}\n' + b"\n".join(lines) + b'\n{"a":2}\n'
    num_lines = sum(1 for line in data.split(b"\n") if line.strip())
    parsed = list(JsonFormat().read(io.BytesIO(data), TYPES))
    assert sum(one.batch.num_rows + one.num_bad for one in parsed) == num_lines


IDS = b'{"id": 9007199254740993}\n{"id": 9007199254740995}\n'


def test_a_fraction_among_ids_that_no_double_holds_is_malformed_and_rounds_none(read: Read) -> None:
    found = read(JsonFormat(), IDS + b'{"id": 0.5}\n')
    assert found.rows == [{"id": 9007199254740993}, {"id": 9007199254740995}]
    assert (found.num_bad, found.bad[0][:7]) == (1, "line 3:")
    found = read(JsonFormat(), b'{"id": 1}\n{"id": 0.5}\n')
    assert found.rows == [{"id": 1.0}, {"id": 0.5}]


@pytest.mark.parametrize(
    "written", ["9007199254740993", "1e400", "-1e-400", "0.1234567890123456789"]
)
def test_a_number_that_a_double_does_not_keep_is_malformed_unless_the_type_is_given(
    written: str,
) -> None:
    of, sampled = JsonFormat(), b'{"x": 0.5, "y": [{"z": 1.5}], "t": "9007199254740993"}\n'
    schema = of.infer(of.sample(io.BytesIO(sampled), 9))
    for late in (f'{{"x": {written}}}', f'{{"y": [{{"z": 2.0}}, {{"z": {written}}}]}}'):
        found = read_whole(of, sampled + late.encode() + b"\n" + sampled, schema)
        assert (len(found.rows), found.num_bad) == (2, 1)
        assert f"expected numbers that a double keeps, found {written}" in found.bad[0]
    given = pa.schema([("x", pa.float64())])
    if written != "1e400":  # which Arrow refuses
        assert read_whole(of, f'{{"x": {written}}}'.encode(), given).rows == [{"x": float(written)}]
