"""CSV files: types, nulls, quotes, numbers of bad rows, and whatever bytes come."""

import csv
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.formats import csv_rows
from featstore.formats.csv_rows import CsvFormat
from tests.formats.conftest import Read, read_whole
from tests.python_memory import threads_of_bytes

TYPES = pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_types_are_inferred_from_texts_without_losing_any(read: Read) -> None:
    found = read(
        CsvFormat(),
        b"n,x,code,flag,time,text,none\n"
        b"1,1,007,true,2024-01-01T00:00:00Z,1,\n"
        b"-2,1.5,8,false,2024-01-02 03:04:05,a,\n",
    )
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us", "UTC")]
    assert found.schema.types == [*kinds, pa.string(), pa.string()]
    assert [row["code"] for row in found.rows] == ["007", "8"]
    assert found.rows[0]["none"] is None


def test_an_empty_field_is_null_and_a_quoted_one_the_empty_text(read: Read) -> None:
    found = read(CsvFormat(nulls=("NA",)), b'a,b\n1,\n2,""\nNA,"NA"\n,NA\n', TYPES)
    assert [(row["a"], row["b"]) for row in found.rows] == [
        (1, None),
        (2, ""),
        (None, "NA"),
        (None, None),
    ]


def test_bad_rows_are_numbered_with_the_header_and_with_rows_that_span_lines(read: Read) -> None:
    found = read(CsvFormat(), b'a,b\n1,x\n2\n"3","y\nz"\nk,4\n5,6,7\n6,x\n', TYPES)
    assert [row["a"] for row in found.rows] == [1, 3, 6]
    assert found.num_bad == 3
    assert found.bad == [
        "row 3: expected 2 fields, found 1",
        "row 5: column 'a': expected long, found 'k'",
        "row 6: expected 2 fields, found 3",
    ]


def test_numbers_go_on_from_block_to_block(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 64)
    lines = [f"{i},v{i}" for i in range(2, 400)]
    for row in (50, 51, 200, 399):
        lines[row - 2] = "bad" if row % 2 else "x,y"
    found = read(CsvFormat(), "\n".join(["a,b", *lines]).encode(), TYPES)
    assert [bad.partition(":")[0] for bad in found.bad] == [
        "row 50",
        "row 51",
        "row 200",
        "row 399",
    ]
    assert [row["a"] for row in found.rows] == [
        i for i in range(2, 400) if i not in (50, 51, 200, 399)
    ]


def test_arrow_reads_copies_of_its_own(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads may free a block at any time, and memory of Python not at the process's end."""
    threads = threads_of_bytes(monkeypatch, csv_rows._DecodedSource)
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 64)
    lines = [f"{i},v{i}" for i in range(100)]
    assert len(read(CsvFormat(), "\n".join(["a,b", *lines]).encode(), TYPES).rows) == 100
    assert len(threads) > 10
    assert {freeing for reading, freeing in threads if freeing != reading} == set()


def test_columns_are_found_by_name(read: Read) -> None:
    assert read(CsvFormat(), b"b,c,a\nx,y,1\n", TYPES).rows == [{"a": 1, "b": "x"}]
    names = ("a", "b")
    assert read(CsvFormat(names=names, delimiter="\t"), b"1\tx\n", TYPES).rows == [
        {"a": 1, "b": "x"}
    ]


@pytest.mark.parametrize("data", [b'a,b\n1,"x\n2,y\n', b'a,b\n1,x\n2,"', b'a\n1\n"2""'])
def test_a_file_that_ends_within_quotes_is_an_error(read: Read, data: bytes) -> None:
    schema = TYPES if b"," in data else pa.schema([("a", pa.string())])
    with pytest.raises(InputError, match=r"row \d: expected quotes that are closed, found the end"):
        read(CsvFormat(), data, schema)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n", b"\r"])
def test_a_file_may_end_with_or_without_a_newline(read: Read, end: bytes) -> None:
    found = read(CsvFormat(), b'a,b\n1,"x"\n2,5" y' + end, TYPES)
    assert [row["b"] for row in found.rows] == ["x", '5" y']
    assert found.num_bad == 0
    one = pa.schema([("a", pa.string())])
    assert read(CsvFormat(), b'a\n""' + end, one).rows == [{"a": ""}]
    assert read(CsvFormat(names=("a",)), b"" if end else b"x", one).num_bad == 0


@pytest.mark.parametrize("block_bytes", range(20, 48))
def test_quotes_and_ends_of_lines_may_fall_between_blocks(
    read: Read, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", block_bytes)
    lines = [b"a,b", b'1,"x\r\ny"', b'2,"\r\n"', b"3,z", b'4,"\r\n"', b"5,w"]
    for end in (b"", b"\r\n"):
        found = read(CsvFormat(), b"\r\n".join(lines) + end, TYPES)
        assert [row["b"] for row in found.rows] == ["x\r\ny", "\r\n", "z", "\r\n", "w"]


def test_columns_that_the_schema_lacks_are_counted(read: Read) -> None:
    data = b"b,c,a,d\nx,y,1,\nx,y,no,z\nx,,2,\nx,z,3,\n"
    assert read(CsvFormat(), data, TYPES).unknown == {"c": 2}


@pytest.mark.parametrize("encoding", ["rot13", "hex", "none"])
def test_an_encoding_that_makes_no_text_is_refused(encoding: str) -> None:
    with pytest.raises(
        InputError, match=f"encoding: expected a name such as .*, found '{encoding}'"
    ):
        CsvFormat(encoding=encoding)


def test_a_byte_order_mark_is_no_part_of_a_name(read: Read) -> None:
    assert read(CsvFormat(), b"\xef\xbb\xbfa,b\n1,x\n").schema == TYPES


class Dripping(io.BytesIO):
    """Bytes of which a read returns a few."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self.most = most

    def read(self, num_bytes: int | None = -1) -> bytes:
        return super().read(self.most)


@pytest.mark.parametrize("most", [16, 17, 18, 19, 100])
def test_bytes_that_are_not_utf8_are_replaced_and_counted(most: int) -> None:
    """Also in a row with too many fields, which pyarrow would lose."""
    text = "a,b\n1,\ufffdé\n".encode() + b"2,\xff\n3,\xff,\xfe\n4,x\xc3"
    parsed = list(CsvFormat().read(Dripping(text, most), TYPES))
    assert [row["b"] for one in parsed for row in one.batch.to_pylist()] == [
        *("\ufffdé", "\ufffd", "x\ufffd"),
    ]
    assert sum(one.num_replaced for one in parsed) == 4
    assert [str(bad) for one in parsed for bad in one.examples] == [
        "row 4: expected 2 fields, found 3"
    ]


def test_another_encoding_is_given(read: Read) -> None:
    data = "a,b\n1,é\n".encode("latin-1")
    assert read(CsvFormat(encoding="latin-1"), data, TYPES).rows == [{"a": 1, "b": "é"}]
    with pytest.raises(InputError, match="encoding: expected a name such as utf-8 or latin-1, fou"):
        CsvFormat(encoding="utf-9")


def test_a_file_without_bytes_has_no_rows(read: Read) -> None:
    assert read(CsvFormat(), b"", TYPES).rows == []
    assert CsvFormat().sample(io.BytesIO(b""), 10) == []
    assert read(CsvFormat(), b"a,b\n", TYPES).rows == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a,c\n1,2\n", r"expected the columns 'b'; found a, c"),
        (b"\n1,2\n", r"row 1: expected the names of columns, found none"),
        (b"a,b,a\n1,2,3\n", r"row 1: column 'a': expected once, found 2 times"),
        (
            b"a," + b"x" * 200_000 + b"\n1,2\n",
            r"row 1: expected the names of columns \(field larger",
        ),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(read: Read, data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(CsvFormat(), data, TYPES)


def test_a_row_that_does_not_fit_a_block_is_refused(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 64)
    with pytest.raises(InputError, match=r"after row \d+: expected CSV, found what cannot be read"):
        read(CsvFormat(), b"a,b\n" + b"1,x\n" * 40 + b'1,"' + b"x\n" * 200 + b'"\n', TYPES)


def test_a_delimiter_is_one_character() -> None:
    with pytest.raises(InputError, match="delimiter: expected one ASCII character, found ',,'"):
        CsvFormat(delimiter=",,")


def test_a_list_is_no_type_of_a_field() -> None:
    with pytest.raises(InputError, match="column 'a': a CSV field cannot be list<long>"):
        CsvFormat().check(pa.schema([("a", pa.list_(pa.int64()))]))


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), TEXTS), max_size=20))
def test_what_the_csv_module_writes_is_read_back(rows: list[tuple[int, str]]) -> None:
    """Its empty texts are not quoted, so they are null here; nor are returns, which end rows."""
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, quoting=csv.QUOTE_MINIMAL, lineterminator="\n")
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    found = read_whole(CsvFormat(), sink.getvalue().encode(), TYPES)
    assert found.num_bad == 0
    assert [(row["a"], row["b"]) for row in found.rows] == [(a, b or None) for a, b in rows]


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_bad_rows_or_an_input_error(data: bytes) -> None:
    try:
        found: Any = list(CsvFormat().read(io.BytesIO(b"a,b\n" + data), TYPES))
    except InputError:
        return
    assert all(one.batch.schema == TYPES for one in found)


def test_a_value_that_inference_would_not_have_typed_so_is_malformed_after_the_sample() -> None:
    of, sampled = CsvFormat(), b"zip,x,none\n501,1.5,\n"
    schema = of.infer(of.sample(io.BytesIO(sampled), 9))
    data = sampled + b"00501,1.5,\n502,9007199254740993,\n503,1e400,\n504,2.5,7\n505,2,\n"
    found = read_whole(of, data, schema)
    assert [row["zip"] for row in found.rows] == [501, 505]
    assert found.num_bad == 4
    assert found.bad[:2] == [
        "row 3: column 'zip': expected long, found '00501'",
        "row 4: column 'x': expected double, found '9007199254740993'",
    ]
    undecided = read_whole(of, b"zip,x,none\n504,2.5,7\n", schema).bad
    assert undecided == [
        "row 2: column 'none': expected no value, as no sampled row has one to tell the type, "
        "found '7'"
    ]
    given = pa.schema([("zip", pa.int64()), ("x", pa.float64()), ("none", pa.string())])
    assert read_whole(of, data, given).rows[-2] == {"zip": 504, "x": 2.5, "none": "7"}
