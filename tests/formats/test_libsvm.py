"""libsvm files: labels, query ids, comments, and lines that are none."""

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.formats.libsvm import COLUMNS, LibsvmFormat
from tests.formats.conftest import Read, read_whole

TYPES = pa.schema(list(COLUMNS.items()))


def test_a_row_has_a_label_and_two_lists(read: Read) -> None:
    found = read(LibsvmFormat(), b"1 1:0.5 3:1e3 # 7:8, caf\xe9\n\n# nothing\n-1\n+0 2:.5\n")
    assert found.rows == [
        {"label": 1.0, "indices": [1, 3], "values": [0.5, 1000.0]},
        {"label": -1.0, "indices": [], "values": []},
        {"label": 0.0, "indices": [2], "values": [0.5]},
    ]


def test_query_ids_are_a_column_if_there_are_any(read: Read) -> None:
    found = read(LibsvmFormat(), b"1 qid:3 1:0.5\n0 1:1\n")
    assert [row["qid"] for row in found.rows] == [3, None]
    without = pa.schema([field for field in TYPES if field.name != "qid"])
    assert read(LibsvmFormat(), b"1 qid:3 1:0.5\n0 1:1\n", without).unknown == {"qid": 1}


@pytest.mark.parametrize(
    "line",
    [b"foo 1:2", b"1 2", b"1 a:2", b"1 1:x", b"1 1:2:3", b"1 1:1 qid:3", b"1 -1:2", b"\xff 1:2"],
)
def test_a_line_of_another_form_is_bad(read: Read, line: bytes) -> None:
    found = read(LibsvmFormat(), b"1 1:2\n" + line + b"\n0 1:2\n", TYPES)
    assert [row["label"] for row in found.rows] == [1.0, 0.0]
    assert found.num_bad == 1
    assert found.bad[0].startswith("line 2: expected `label index:value ...`, found ")


def test_other_columns_are_refused() -> None:
    with pytest.raises(InputError, match=r"column 'label' \(long\): libsvm has only the columns"):
        LibsvmFormat().check(pa.schema([("label", pa.int64())]))


NUMBERS = st.floats(allow_nan=False)
FEATURES = st.lists(st.tuples(st.integers(0, 10**17), NUMBERS), max_size=5)


@given(st.lists(st.tuples(NUMBERS, FEATURES), max_size=10))
def test_written_rows_are_read_back(rows: list[tuple[float, list[tuple[int, float]]]]) -> None:
    lines = [
        " ".join([repr(label), *(f"{index}:{value!r}" for index, value in features)])
        for label, features in rows
    ]
    found = read_whole(LibsvmFormat(), "\n".join(lines).encode(), TYPES)
    assert [
        (row["label"], list(zip(row["indices"], row["values"], strict=True))) for row in found.rows
    ] == rows


@given(st.binary(max_size=100))
def test_any_bytes_are_rows_or_bad_rows(data: bytes) -> None:
    parsed = list(LibsvmFormat().read(io.BytesIO(b"1 1:2\n" + data + b"\n1 1:2"), TYPES))
    assert sum(one.batch.num_rows for one in parsed) >= 2


@pytest.mark.parametrize("written", ["1e400", "9007199254740993", "1e-400"])
def test_a_number_that_a_double_does_not_keep_is_bad(read: Read, written: str) -> None:
    found = read(LibsvmFormat(), f"1 1:{written}\n{written} 1:1\n007 1:+1\n".encode())
    assert (len(found.rows), found.num_bad) == (1, 2)


@pytest.mark.parametrize("index", [0, 10**18, 8_999_999_999_999_999_999, 2**63 - 1])
def test_indices_of_64_bits_are_kept(read: Read, index: int) -> None:
    found = read(LibsvmFormat(), f"1 qid:{index} {index}:2 00{index}:3\n".encode(), TYPES)
    expected = {"label": 1.0, "qid": index, "indices": [index, index], "values": [2.0, 3.0]}
    assert found.rows == [expected]


@pytest.mark.parametrize("index", [2**63, 9_223_372_036_854_776_000, 10**19, 10**30])
def test_larger_indices_are_bad(read: Read, index: int) -> None:
    found = read(LibsvmFormat(), f"1 1:2\n1 {index}:2\n1 qid:{index} 1:2\n".encode(), TYPES)
    assert (found.num_bad, len(found.rows)) == (2, 1)
