"""Column chunks of handmade files: what no writer would write, and what only a damaged file
contains.
"""

import os
import random
import struct
import zlib
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.native import kernels
from featstore.native.bounds import COLUMN
from tests.native.mutants import varint

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
UNCOMPRESSED, SNAPPY, ZSTD = 0, 1, 6
PRESENT = b"\2\0\0\0\4\1"  # the levels of two values that are there, and their length before them
FIVE_AND_SIX = struct.pack("<2q", 5, 6)
NOT_WANTED = b"\1"


def integers(numbers: Any) -> Any:
    """A struct in Thrift's compact protocol with i32 fields from number 1 on, without those that
    are None.
    """
    encoded, last = b"", 0
    for field, number in enumerate(numbers, 1):
        if number is not None:
            encoded += bytes([(field - last) << 4 | 5]) + varint(
                number << 1 if number >= 0 else -number * 2 - 1
            )
            last = field
    return encoded, last


def signed_crc(data: Any, *, flipped: int = 0) -> Any:
    """The checksum as headers hold it, with some of its bits flipped."""
    return struct.unpack("<i", struct.pack("<I", zlib.crc32(data) ^ flipped))[0]


def page(
    data: Any,
    *,
    num_values: int = 2,
    kind: Any = DATA,
    encoding: Any = PLAIN,
    levels: Any = RLE,
    full_size: Any = None,
    crc: Any = None,
) -> Any:
    """A page: its header, and the data as given."""
    header, last = integers([kind, len(data) if full_size is None else full_size, len(data), crc])
    field = {DATA: 5, DICTIONARY: 7}[kind]
    of_kind = integers([num_values, encoding, *([levels, levels] if kind == DATA else [])])[0]
    return header + bytes([(field - last) << 4 | 12]) + of_kind + b"\0\0" + data


def page_v2(
    levels: Any,
    values: Any,
    *,
    num_values: Any,
    repetition_bytes: Any,
    definition_bytes: Any,
    full_size: Any,
    crc: Any = None,
) -> Any:
    header, last = integers([DATA_V2, full_size, len(levels) + len(values), crc])
    of_kind = integers([num_values, 0, num_values, PLAIN, definition_bytes, repetition_bytes])[0]
    return header + bytes([(8 - last) << 4 | 12]) + of_kind + b"\0\0" + levels + values


LENGTHS = {"num_rows": 2, "num_threads": 1, "room_bytes": 1 << 20}
BOUNDS = {"page_bytes": 1 << 20}
OUT = {
    "mark": bytes(8),
    "max_repetition": 0,
    "max_definition": 1,
    "null_below": 1,
    "is_whole": 0,
    "offsets": 0,
    "values": 16,
}


HOW = 1, b"\0", True, None, False  # in one thread, not to stop, with checksums


def columns_out(count: int, of: Any) -> tuple[np.ndarray, tuple[bytearray, ...]]:
    """Columns of the same kind as the kernels take them, whose offsets and values lie in buffers of
    their own, and these buffers.
    """
    numbers = np.zeros((count, len(COLUMN)), np.int64)
    mark, sizes = of["mark"], (of["offsets"], of["values"])
    of_all = {
        "width": len(mark),
        "repetition": of["max_repetition"],
        "definition": of["max_definition"],
        "null_below": of["null_below"],
        "is_whole": of["is_whole"],
        "mark": int.from_bytes(mark, "little", signed=True),
        "offsets_in": 2 * np.arange(count),
        "values_in": 2 * np.arange(count) + 1,
        "found": of["values"] // len(mark),
    }
    for name, number in (of_all | of.get("numbers", {})).items():
        numbers[:, COLUMN[name]] = number
    return numbers, tuple(bytearray(size) for _ in range(count) for size in sizes)


def decode(
    tmp_path: Path,
    chunks: Any,
    *,
    codec: Any = UNCOMPRESSED,
    stop: bytes = b"\0",
    checks: bool = True,
    decompress: Any = None,
    portable: bool = False,
    **other: Any,
) -> Any:
    """The number of values of each column of one chunk, or -1, and the values written."""
    of: dict[str, Any] = {**LENGTHS, **BOUNDS, **OUT, **other}
    num_rows, num_threads, room_bytes = (of[name] for name in LENGTHS)
    path = tmp_path / "chunks"
    path.write_bytes(b"".join(chunks))
    numbers, buffers = columns_out(len(chunks), of)
    bounds = of.get("num_levels", num_rows), of["page_bytes"]
    places = [
        (end - len(chunk), len(chunk), codec, *bounds)
        for chunk, end in zip(chunks, accumulate(map(len, chunks)), strict=True)
    ]
    file = os.open(path, os.O_RDONLY)
    try:
        kernels.decode_columns(
            file,
            np.array(places),
            np.array([num_rows]),
            np.array(of.get("order", ()), np.uint32),
            np.array(of.get("kept", ()), np.int64),
            numbers,
            buffers,
            bytearray(room_bytes * num_threads),
            num_threads,
            stop,
            checks,
            decompress,
            portable,
        )
    finally:
        os.close(file)
    found = tuple(numbers[:, COLUMN["found"]].tolist())
    return found, [np.frombuffer(values, np.int64).tolist() for values in buffers[1::2]]


GOOD = page(PRESENT + FIVE_AND_SIX)


def test_two_values_that_are_there(tmp_path: Path) -> None:
    assert decode(tmp_path, [GOOD]) == ((2,), [[5, 6]])


def test_threads_share_the_columns(tmp_path: Path) -> None:
    chunks = [page(PRESENT + struct.pack("<2q", number, -number)) for number in range(50)]
    assert decode(tmp_path, chunks, num_threads=3) == (
        (2,) * 50,
        [[number, -number] for number in range(50)],
    )


TWO_LISTS = page(b"\2\0\0\0\x03\x04" + b"\2\0\0\0\6\1" + struct.pack("<3q", 5, 6, 7), num_values=3)
AS_LISTS: dict[str, Any] = {
    "max_repetition": 1,
    "max_definition": 1,
    "null_below": 0,
    "num_levels": 3,
}


def test_rows_are_written_in_another_order(tmp_path: Path) -> None:
    assert decode(tmp_path, [GOOD, GOOD], order=[1, 0]) == ((2, 2), [[6, 5], [6, 5]])


def test_lists_are_written_in_another_order(tmp_path: Path) -> None:
    """A list of one value and one of two."""
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    assert decode(tmp_path, [TWO_LISTS], **lists) == ((3,), [[5, 6, 7]])
    assert decode(tmp_path, [TWO_LISTS], **lists, order=[1, 0]) == ((3,), [[6, 7, 5]])


def test_only_the_rows_of_an_order_are_written(tmp_path: Path) -> None:
    assert decode(tmp_path, [GOOD, GOOD], order=[1]) == ((1, 1), [[6, 0], [6, 0]])
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    assert decode(tmp_path, [TWO_LISTS], **lists, order=[1]) == ((2,), [[6, 7, 0]])
    assert decode(tmp_path, [TWO_LISTS], **lists, order=[0]) == ((1,), [[5, 0, 0]])
    assert decode(tmp_path, [TWO_LISTS], **lists, order=[2])[0] == (-1,)


def test_only_rows_that_are_kept_are_written(tmp_path: Path) -> None:
    assert decode(tmp_path, [GOOD, GOOD], kept=[[1, 2]]) == ((1, 1), [[6, 0], [6, 0]])
    assert decode(tmp_path, [GOOD], kept=[[0, 1], [1, 2]]) == ((2,), [[5, 6]])
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    assert decode(tmp_path, [TWO_LISTS], **lists, kept=[[1, 2]]) == ((2,), [[6, 7, 0]])
    assert decode(tmp_path, [TWO_LISTS], **lists, kept=[[0, 1]]) == ((1,), [[5, 0, 0]])


def test_a_list_of_several_pages_is_kept_or_left_out_as_one(tmp_path: Path) -> None:
    """Lists of one, four and two values. The second one begins in the first of three pages."""
    begins, goes_on = b"\2\0\0\0\x04\0", b"\2\0\0\0\x04\1"
    full = b"\2\0\0\0\4\1"
    pages = [
        page(begins + full + struct.pack("<2q", 1, 2)),
        page(goes_on + full + struct.pack("<2q", 3, 4)),
        page(b"\2\0\0\0\x03\x05" + b"\2\0\0\0\6\1" + struct.pack("<3q", 5, 6, 7), num_values=3),
    ]
    lists: dict[str, Any] = AS_LISTS | {"offsets": 16, "values": 56, "num_rows": 3, "num_levels": 7}
    for kept, expected in (
        ([[0, 3]], [1, 2, 3, 4, 5, 6, 7]),
        ([[0, 1], [2, 3]], [1, 6, 7]),
        ([[1, 2]], [2, 3, 4, 5]),
        ([[1, 3]], [2, 3, 4, 5, 6, 7]),
        ([[2, 3]], [6, 7]),
    ):
        (num_values,), [values] = decode(tmp_path, [b"".join(pages)], **lists, kept=kept)
        assert values[:num_values] == expected


@pytest.mark.parametrize("order", [[0, 2], [2**32 - 1, 0]])
def test_a_row_that_is_not_there_is_not_written(tmp_path: Path, order: list[int]) -> None:
    assert decode(tmp_path, [GOOD], order=order)[0] == (-1,)
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    assert decode(tmp_path, [TWO_LISTS], **lists, order=order)[0] == (-1,)


@pytest.mark.parametrize("order", [[0, 0], [1, 1]])
def test_lists_of_an_order_with_a_row_twice_are_left_out(tmp_path: Path, order: list[int]) -> None:
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    assert decode(tmp_path, [TWO_LISTS], **lists, order=order)[0] == (-1,)


def test_without_room_for_a_column_in_order_it_is_left_out(tmp_path: Path) -> None:
    enough = len(GOOD) + 16 + 64
    assert decode(tmp_path, [GOOD], order=[1, 0], room_bytes=enough)[0] == (2,)
    assert decode(tmp_path, [GOOD], order=[1, 0], room_bytes=len(GOOD) + 15)[0] == (-1,)


@pytest.mark.parametrize(
    ("chunk", "column"),
    [
        (GOOD, {"num_rows": 3}),
        (GOOD, {"num_rows": 3, "order": [0, 1, 2]}),
        (GOOD, {"stop": NOT_WANTED, "order": [1, 0]}),
        (GOOD, {"values": 8}),
        (GOOD, {"room_bytes": len(GOOD) - 1}),
        (GOOD, {"stop": NOT_WANTED}),
        (page(b""), {}),
        (page(PRESENT + FIVE_AND_SIX, levels=4), {}),
        (page(PRESENT + FIVE_AND_SIX, encoding=5), {}),
        (page(PRESENT + FIVE_AND_SIX, encoding=RLE_DICTIONARY), {}),
        (page(PRESENT + FIVE_AND_SIX[:-1]), {}),
        (page(PRESENT + FIVE_AND_SIX, num_values=-1), {}),
        (GOOD[:-1], {}),
        (b"\x15", {}),
        (b"\x15\x00\x15\x02", {}),
        (b"\xff" * 40, {}),
        (b"\x1c" * 100, {}),
        (page(PRESENT + FIVE_AND_SIX, full_size=-1), {}),
        (b"\x15\0\x15\xfe\xff\xff\xff\xff\x7f" + GOOD[4:], {}),
        (page(b"\5abcde"), {"codec": SNAPPY}),
        (page(pa.compress(PRESENT + FIVE_AND_SIX, "snappy", asbytes=True)), {"codec": SNAPPY}),
    ],
    ids=lambda of: of[:12].hex() if isinstance(of, bytes) else str(of),
)
def test_what_does_not_fit_is_left_out(tmp_path: Path, chunk: Any, column: Any) -> None:
    assert decode(tmp_path, [chunk], **column)[0] == (-1,)


ENDLESS = page(b"\2\0\0\0\xff\xff" * 2, num_values=2**31 - 1)


@pytest.mark.parametrize(
    ("chunk", "column"),
    [
        (GOOD + GOOD, {}),
        (ENDLESS, {}),
        (ENDLESS, {"max_repetition": 1, "max_definition": 2, "offsets": 12}),
        (GOOD, {"num_levels": 1}),
        (GOOD, {"page_bytes": len(PRESENT + FIVE_AND_SIX) - 1}),
        (page(b"", kind=DICTIONARY, full_size=2**20 + 1), {}),
    ],
    ids=[
        "a page more",
        "endless levels",
        "endless lists",
        "levels",
        "bytes",
        "a dictionary's bytes",
    ],
)
def test_a_page_that_claims_more_than_the_footer_allows_is_for_nobody_to_read(
    tmp_path: Path, chunk: Any, column: Any
) -> None:
    assert decode(tmp_path, [GOOD, chunk], **column)[0][1] == -2


def test_a_chunk_beyond_the_end_of_the_file_is_left_out_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(GOOD)
    numbers, buffers = columns_out(2, OUT)
    places = np.array([(0, len(GOOD) + 1, 0, 2, 99), (0, len(GOOD), 0, 2, 99)])
    with path.open("rb") as file:
        arguments: Any = (places, np.array([2]), b"", b"", numbers, buffers, bytearray(999), *HOW)
        kernels.decode_columns(file.fileno(), *arguments)
    assert numbers[:, COLUMN["found"]].tolist() == [-1, 2]


def test_columns_lie_anywhere_in_one_buffer_and_others_are_left_as_they_are(
    tmp_path: Path,
) -> None:
    path, room = tmp_path / "file", bytearray(999)
    path.write_bytes(GOOD + TWO_LISTS)
    lists = {"repetition": 1, "definition": 1, "null_below": 0, "offsets_at": 4, "values_at": 17}
    places: list[dict[str, int]] = [
        {"found": 2, "definition": 1, "null_below": 1, "values_at": 41},
        {"found": -1, "width": 7, "values_in": 9},  # not planned
        {"found": 3, **lists},
    ]
    numbers = np.zeros((3, len(COLUMN)), np.int64)
    numbers[:, COLUMN["width"]] = 8
    for column, of in zip(numbers, places, strict=True):
        column[[COLUMN[name] for name in of]] = list(of.values())
    chunks = [(0, len(GOOD), 0, 2, 99), (-1,) * 5, (len(GOOD), len(TWO_LISTS), 0, 3, 99)]
    expected, memory = numbers.copy(), np.zeros(61, np.uint8)
    with path.open("rb") as file:
        arguments: Any = (np.array(chunks), np.array([2]), b"", b"", numbers, (memory,), room, *HOW)
        kernels.decode_columns(file.fileno(), *arguments)
    assert numbers.tolist() == expected.tolist()
    written = struct.pack("<4x3ix3q2q4x", 0, 1, 3, 5, 6, 7, 5, 6)
    assert memory.tobytes() == written


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"mark": bytes(5)}, "expected columns of 4 or 8 bytes"),
        ({"max_repetition": 2}, "levels of a scalar or of a list"),
        ({"max_repetition": 1, "max_definition": 0}, "levels of a scalar or of a list"),
        ({"max_repetition": 1, "offsets": 8}, "room in the buffers"),
        ({"max_definition": 4}, "levels of a scalar or of a list"),
        ({"codec": 2}, "chunks of a file"),
        ({"num_levels": -1}, "chunks of a file"),
        ({"page_bytes": -1}, "chunks of a file"),
        ({"num_rows": -1}, "expected rows"),
        ({"num_rows": 2**31}, "expected rows"),
        ({"num_threads": 0}, "expected rows"),
        ({"num_threads": 65, "room_bytes": 1}, "expected rows"),
        ({"stop": b""}, "expected rows"),
        ({"order": [0, 1, 0]}, "no more than those in the order"),
        ({"kept": [[1, 3]]}, "or rising runs of them"),
        ({"kept": [[-1, 1]]}, "or rising runs of them"),
        ({"kept": [[1, 1]]}, "or rising runs of them"),
        ({"kept": [[1, 2], [0, 1]]}, "or rising runs of them"),
        ({"kept": [0, 1, 2]}, "or rising runs of them"),
        ({"kept": [[0, 1]], "order": [1]}, "or rising runs of them"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(tmp_path, [GOOD], **bad)


@pytest.mark.parametrize("at", [-(2**63), -1, 2**31, 2**62, 2**63 - 1])
@pytest.mark.parametrize(
    "name",
    [
        *("width", "repetition", "definition", "null_below"),
        *("offsets_in", "offsets_at", "values_in", "values_at", "found"),
    ],
)
def test_numbers_of_a_column_that_lead_elsewhere_are_refused(
    tmp_path: Path, name: str, at: int
) -> None:
    if name == "found" and at < 0:
        return  # It is left out.
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    with pytest.raises(ValueError, match="expected columns of 4 or 8 bytes"):
        decode(tmp_path, [TWO_LISTS], **lists, numbers={name: at})


@pytest.mark.parametrize(
    "numbers",
    [
        {"found": 4},
        {"found": 3, "values_at": 1},
        {"found": 0, "values_at": 25},
        {"found": 2, "values_at": 9},
        {"values_in": 2},
        {"offsets_in": 2},
        {"offsets_at": 1},
        {"offsets_in": 1, "offsets_at": 13},
        {"offsets_in": 1, "offsets_at": 2},  # not aligned
    ],
    ids=str,
)
def test_a_column_with_less_room_than_it_says_is_refused(tmp_path: Path, numbers: Any) -> None:
    lists: dict[str, Any] = AS_LISTS | {"offsets": 12, "values": 24}
    with pytest.raises(ValueError, match="room in the buffers"):
        decode(tmp_path, [TWO_LISTS], **lists, numbers=numbers)


def test_tables_of_other_lengths_are_refused_and_buffers_let_go() -> None:
    numbers, buffers = columns_out(1, OUT)
    stop = bytearray(1)

    def call(**other: Any) -> None:
        of = {"chunks": np.zeros(5, np.int64), "rows": np.array([2]), "columns": numbers, **other}
        of_columns = b"", b"", of["columns"], of.get("buffers", buffers)
        how = bytearray(9), 1, stop, True, None, False
        arguments: Any = (of["chunks"], of["rows"], *of_columns, *how)
        kernels.decode_columns(0, *arguments)

    cut = numbers.reshape(-1)[:-1]
    odd = np.frombuffer(bytearray(numbers.nbytes + 1), np.uint8)[1:]
    for other in (
        {"chunks": np.zeros(4, np.int64)},
        {"chunks": np.zeros(10, np.int64)},
        {"chunks": b""},
        {"rows": np.array([1, 1])},
        {"columns": cut},
        {"columns": np.zeros((2, len(COLUMN)), np.int64)},
        {"columns": odd},
    ):
        with pytest.raises(ValueError, match="expected rows"):
            call(**other)
    with pytest.raises(ValueError, match="room in the buffers"):
        call(buffers=())
    with pytest.raises(BufferError):
        call(buffers=(*buffers, bytes(8)))
    with pytest.raises(TypeError):
        call(buffers=(*buffers, 8))
    for buffer in (*buffers, stop):
        buffer.clear()  # BufferError if it was held.


def test_an_index_of_no_bits_is_the_first_of_the_dictionary(tmp_path: Path) -> None:
    dictionary = page(struct.pack("<q", 7), kind=DICTIONARY, num_values=1)
    chunk = dictionary + page(
        PRESENT + b"\0" + b"\3", encoding=RLE_DICTIONARY
    )  # width 0; one packed group
    assert decode(tmp_path, [chunk]) == ((2,), [[7, 7]])


DELTAS = 5
# Blocks of 128 numbers in 4 miniblocks; 2 numbers, of which the first is 5; a least difference of 1,
# and no bits of what is beyond it.
DELTA_HEAD = b"\x80\1\4"
FIVE_AND_SIX_DELTAS = DELTA_HEAD + b"\2\x0a" + b"\2\0\0\0\0"


@pytest.mark.parametrize(
    ("data", "column"),
    [
        (FIVE_AND_SIX_DELTAS, {"is_whole": 0}),  # as differences of floats
        (b"", {}),
        (FIVE_AND_SIX_DELTAS[:-4], {}),
        (b"\x80\1\3" + FIVE_AND_SIX_DELTAS[3:], {}),
        (b"\x80\1\0" + FIVE_AND_SIX_DELTAS[3:], {}),
        (b"\0\4" + FIVE_AND_SIX_DELTAS[3:], {}),
        (b"\x10\4" + FIVE_AND_SIX_DELTAS[3:], {}),
        (DELTA_HEAD + b"\1\x0a", {}),
        (DELTA_HEAD + b"\3\x0a" + b"\2\0\0\0\0", {}),
        (DELTA_HEAD + b"\2\x0a" + b"\2\x41\0\0\0" + bytes(99), {}),
        (DELTA_HEAD + b"\2\x0a" + b"\2\x40\0\0\0" + bytes(7), {}),
        (DELTA_HEAD + b"\2\x0a" + b"\2\x21\0\0\0" + bytes(99), {"mark": bytes(4), "values": 8}),
        (DELTA_HEAD + b"\2\xff\xff\xff\xff\x1f", {"mark": bytes(4), "values": 8}),
    ],
    ids=lambda of: of[:12].hex() if isinstance(of, bytes) else str(of),
)
def test_differences_that_do_not_fit_are_left_out(tmp_path: Path, data: bytes, column: Any) -> None:
    of = {"is_whole": 1, **column}
    assert decode(tmp_path, [page(PRESENT + data, encoding=DELTAS)], **of)[0] == (-1,)


@pytest.mark.parametrize(("width", "last"), [(8, b"\2\0\0\0\0"), (4, b"\0\1\0\0\0\1")])
def test_differences(tmp_path: Path, width: int, last: bytes) -> None:
    """A miniblock may end after its last number."""
    chunk = page(PRESENT + DELTA_HEAD + b"\2\x0a" + last, encoding=DELTAS)
    of: Any = {"is_whole": 1, "mark": bytes(width), "values": 2 * width}
    found, [words] = decode(tmp_path, [chunk], **of)
    assert (found, np.array(words).view(f"<i{width}").tolist()) == ((2,), [5, 6])


@st.composite
def runs_of_indices(draw: Any) -> tuple[bytes, list[int]]:
    """Runs of both kinds of the indices of a dictionary of 200 values, and the indices."""
    encoded, indices = b"", []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            count: int = draw(st.sampled_from([1, 7, 8, 255, 256, 257, 3000]))
            index: int = draw(st.integers(0, 199))
            encoded += varint(count << 1) + bytes([index])
            indices += [index] * count
        else:
            packed = draw(st.lists(st.integers(0, 199), min_size=1, max_size=40))
            packed += [0] * (-len(packed) % 8)
            encoded += varint(len(packed) // 8 << 1 | 1) + bytes(packed)
            indices += packed
    return encoded, indices


@settings(deadline=None)
@given(runs_of_indices(), st.sampled_from([4, 8]), st.booleans())
def test_runs_of_indices(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, width: int, portable: bool
) -> None:
    """Equal ones of which one is beyond the dictionary, too."""
    encoded, indices = drawn
    dictionary = np.arange(1000, 1200, dtype=f"<i{width}")
    for num_values in (200, max(indices) + 1, max(indices)):
        values = dictionary[:num_values]
        chunk = page(values.tobytes(), kind=DICTIONARY, num_values=num_values)
        chunk += page(b"\x08" + encoded, num_values=len(indices), encoding=RLE_DICTIONARY)
        of: dict[str, Any] = {"max_definition": 0, "null_below": 0, "num_rows": len(indices)}
        of |= {"mark": bytes(width), "values": -(-len(indices) * width // 8) * 8}
        found, [words] = decode(tmp_path_factory.getbasetemp(), [chunk], portable=portable, **of)
        if num_values == max(indices):
            assert found == (-1,)
        else:
            assert found == (len(indices),)
            written = np.array(words).view(f"<i{width}")[: len(indices)]
            assert written.tolist() == values[indices].tolist()


PLAIN_PAGE = PRESENT + FIVE_AND_SIX
ONE_VALUE = struct.pack("<q", 7)
V2 = {"num_values": 2, "repetition_bytes": 2, "definition_bytes": 2, "full_size": 20}
LISTS = {"max_repetition": 1, "offsets": 12}


def checked_pages(flipped: Any) -> Any:
    """Chunks with each kind of page, whose checksums are wrong in these bits, and the results of
    decoding them.
    """
    levels, indices = b"\4\0\4\1", page(PRESENT + b"\0\3", encoding=RLE_DICTIONARY)
    dictionary = page(
        ONE_VALUE, kind=DICTIONARY, num_values=1, crc=signed_crc(ONE_VALUE, flipped=flipped)
    )
    v2 = page_v2(levels, FIVE_AND_SIX, crc=signed_crc(levels + FIVE_AND_SIX, flipped=flipped), **V2)
    return [
        (page(PLAIN_PAGE, crc=signed_crc(PLAIN_PAGE, flipped=flipped)), {}),
        (dictionary + indices, {}),
        (v2, LISTS),
    ]


@pytest.mark.parametrize("kind", range(3), ids=["V1", "dictionary", "V2"])
def test_a_page_that_does_not_match_its_checksum_is_left_out(tmp_path: Path, kind: Any) -> None:
    chunk, of = checked_pages(0)[kind]
    (values,) = decode(tmp_path, [chunk], **of)[1]
    assert decode(tmp_path, [chunk], **of)[0] == (2,)
    for flipped in (1, 1 << 31):
        chunk, of = checked_pages(flipped)[kind]
        assert decode(tmp_path, [chunk], **of)[0] == (-1,)
        assert decode(tmp_path, [chunk], checks=False, **of) == ((2,), [values])


def test_no_other_column_is_left_out_for_it(tmp_path: Path) -> None:
    chunks = [GOOD, checked_pages(1)[0][0], checked_pages(0)[0][0]]
    assert decode(tmp_path, chunks, num_threads=2)[0] == (2, -1, 2)


def test_a_dictionary_and_several_pages_share_the_room(tmp_path: Path) -> None:
    def in_two(data: Any, **how: Any) -> Any:  # one literal would be read where it lies
        stored = varint(len(data)) + literal(data[:1]) + literal(data[1:])
        return snappy_page(data, as_stored=stored, **how)

    indices = PRESENT + b"\1\3\2"  # one packed group: 0, 1
    chunk = in_two(FIVE_AND_SIX, kind=DICTIONARY) + in_two(indices, encoding=RLE_DICTIONARY)
    chunk += snappy_page(PRESENT + struct.pack("<2q", 8, 9))
    of: dict[str, Any] = {"codec": SNAPPY, "num_rows": 4, "values": 32}
    enough = len(chunk) + len(FIVE_AND_SIX) + len(indices)
    assert decode(tmp_path, [chunk], room_bytes=enough, **of) == ((4,), [[5, 6, 8, 9]])
    assert decode(tmp_path, [chunk], room_bytes=enough - 1, **of)[0] == (-1,)


def snappy_page(data: Any, *, as_stored: Any = None, **how: Any) -> Any:
    stored = pa.compress(data, "snappy", asbytes=True) if as_stored is None else as_stored
    return page(stored, full_size=len(data), **how)


@pytest.mark.parametrize(
    ("decompress", "expected"),
    [
        (lambda page, size: page[:1] * size, (2,)),
        (lambda page, size: page[:1] * (size - 1), (-1,)),
        (lambda page, size: bytearray(size), (-1,)),
        (lambda page, size: 1 / 0, (-1,)),
        (None, (-1,)),
    ],
    ids=["as asked", "too short", "no bytes", "an error", "no function"],
)
def test_pages_of_another_codec_are_handed_out(
    tmp_path: Path, decompress: Any, expected: Any
) -> None:
    of: dict[str, Any] = {
        "codec": ZSTD,
        "max_definition": 0,
        "null_below": 0,
        "decompress": decompress,
    }
    found, values = decode(tmp_path, [page(b"\1x", full_size=16)] * 3, num_threads=2, **of)
    assert found == expected * 3
    assert expected == (-1,) or values == [[0x0101010101010101] * 2] * 3


@pytest.mark.parametrize("full_size", [2 + 3 + 16, 4, 0])
def test_levels_of_a_v2_page_within_what_it_says_of_them(tmp_path: Path, full_size: Any) -> None:
    levels = b"\4\0" + b"\4\1"  # each a row of its own; both there
    sizes = {"num_values": 2, "repetition_bytes": 2, "definition_bytes": 3}
    chunk = page_v2(levels, FIVE_AND_SIX, full_size=full_size, **sizes)
    lists: dict[str, Any] = {"max_repetition": 1, "offsets": 12}
    assert decode(tmp_path, [chunk], **lists)[0] == (-1,)
    chunk = page_v2(levels, FIVE_AND_SIX, full_size=20, **(sizes | {"definition_bytes": 2}))
    assert decode(tmp_path, [chunk], **lists) == ((2,), [[5, 6]])


def decompressed(tmp_path: Path, stored: Any, size: Any) -> Any:
    """The words that the kernels decompress from a snappy page of `size` bytes, to where plain
    values belong and as a dictionary; None if they reject it.
    """
    num_words = size // 8
    flat: dict[str, Any] = {"codec": SNAPPY, "num_rows": num_words, "values": size}
    flat |= {"max_definition": 0, "null_below": 0}
    plain = page(stored, full_size=size, num_values=num_words)
    indices = varint(-(-num_words // 8) << 1 | 1) + np.arange(num_words, dtype="<u4").tobytes()
    indices += bytes(-num_words % 8 * 4)
    chunk = page(stored, full_size=size, num_values=num_words, kind=DICTIONARY) + snappy_page(
        b"\x20" + indices, num_values=num_words, encoding=RLE_DICTIONARY
    )
    found = [decode(tmp_path, [chunk], **flat) for chunk in (plain, chunk)[: 1 + bool(size)]]
    assert found[0] == found[-1] or [of for of, _ in found] == [(-1,)] * 2
    return None if found[0][0] == (-1,) else found[0][1][0]


@st.composite
def compressible(draw: Any) -> Any:
    """Words with repetitions near and far, of single bytes and of long runs."""
    parts = draw(
        st.lists(
            st.tuples(st.binary(min_size=1, max_size=90), st.sampled_from([1, 2, 9, 400])),
            max_size=12,
        )
    )
    data = b"".join(part * count for part, count in parts)
    data += data[: draw(st.integers(0, len(data)))]
    return data + bytes(-len(data) % 8)


@settings(deadline=None)
@given(compressible())
def test_what_arrow_compresses_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    stored = pa.compress(data, "snappy", asbytes=True)
    found = decompressed(tmp_path_factory.getbasetemp(), stored, len(data))
    assert found == np.frombuffer(data, np.int64).tolist()


def literal(data: Any, *, num_bytes: int = 0) -> Any:
    """A snappy literal whose length takes so many bytes of its own."""
    if not num_bytes:
        return bytes([len(data) - 1 << 2]) + data
    return bytes([59 + num_bytes << 2]) + (len(data) - 1).to_bytes(num_bytes, "little") + data


def copy_1(offset: Any, length: Any) -> bytes:
    return bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 255])


def copy_2(offset: Any, length: Any) -> Any:
    return bytes([length - 1 << 2 | 2]) + offset.to_bytes(2, "little")


def copy_4(offset: Any, length: Any) -> Any:
    return bytes([length - 1 << 2 | 3]) + offset.to_bytes(4, "little")


@st.composite
def elements(draw: Any) -> Any:
    """Elements of the snappy format, and the bytes they decode to, by its specification."""
    stored, data = b"", b""
    for _ in range(draw(st.integers(1, 30))):
        kind: Any = draw(st.sampled_from([copy_1, copy_2, copy_4, literal])) if data else literal
        if kind is literal:
            part = draw(st.binary(min_size=1, max_size=70))
            stored += literal(part, num_bytes=draw(st.integers(0 if len(part) <= 60 else 1, 4)))
            data += part
            continue
        least, most, farthest = (4, 11, 2047) if kind is copy_1 else (1, 64, 65_535)
        offset, length = (
            draw(st.integers(1, min(len(data), farthest))),
            draw(st.integers(least, most)),
        )
        stored += kind(offset, length)
        for _ in range(length):
            data += data[-offset : len(data) - offset + 1]
    padding = bytes(-len(data) % 8)
    return stored + (literal(padding) if padding else b""), data + padding


@settings(deadline=None)
@given(elements())
def test_every_kind_of_element(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    stored, data = drawn
    found = decompressed(tmp_path_factory.getbasetemp(), varint(len(data)) + stored, len(data))
    assert found == np.frombuffer(data, np.int64).tolist()


@pytest.mark.parametrize(
    "stored",
    [
        literal(PRESENT + FIVE_AND_SIX),
        literal(PRESENT) + literal(FIVE_AND_SIX),
        literal(PRESENT[:3]) + literal(PRESENT[3:] + FIVE_AND_SIX),
        literal(PRESENT + FIVE_AND_SIX[:9]) + copy_2(8, 7),
        literal(PRESENT + FIVE_AND_SIX[:1]) + copy_2(6, 3) + literal(FIVE_AND_SIX[4:]),
    ],
    ids=["one literal", "apart", "levels in two", "a copy of values", "a copy of levels"],
)
def test_plain_values_behind_their_levels(tmp_path: Path, stored: Any) -> None:
    chunk = page(varint(len(PRESENT + FIVE_AND_SIX)) + stored, full_size=22)
    assert decode(tmp_path, [chunk], codec=SNAPPY) == ((2,), [[5, 6]])
    assert decode(tmp_path, [chunk], codec=SNAPPY, values=8)[0] == (-1,)
    assert decode(tmp_path, [chunk], codec=SNAPPY, stop=NOT_WANTED)[0] == (-1,)


@pytest.mark.parametrize("levels", [b"\2\1", b"\4\0", b"\6\1", b"\3\3", b"\2\1\2\0"], ids=bytes.hex)
def test_levels_before_plain_values_mean_the_same_in_a_literal(
    tmp_path: Path, levels: bytes
) -> None:
    data = struct.pack("<i", len(levels)) + levels + FIVE_AND_SIX
    found = decode(tmp_path, [snappy_page(data)], codec=SNAPPY)
    assert found == decode(tmp_path, [page(data)])


@st.composite
def levels_of_rows(draw: Any) -> tuple[bytes, list[int]]:
    """Levels of rows that are values or null, in runs of both kinds, and as numbers."""
    encoded, levels = b"", []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            count: int = draw(st.sampled_from([1, 7, 8, 1023, 1024, 1025, 3000, 70_000]))
            level: int = draw(st.sampled_from([1, 1, 1, 0]))
            encoded += varint(count << 1) + bytes([level])
            levels += [level] * count
        else:
            bits = draw(st.binary(min_size=1, max_size=20))
            encoded += varint(len(bits) << 1 | 1) + bits
            levels += [byte >> bit & 1 for byte in bits for bit in range(8)]
    return encoded, levels


@settings(deadline=None)
@given(levels_of_rows(), st.sampled_from([UNCOMPRESSED, SNAPPY]), st.booleans())
def test_runs_of_values_and_of_nulls(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, codec: int, portable: bool
) -> None:
    encoded, levels = drawn
    ranks = accumulate(levels)
    values = np.arange(1, sum(levels) + 1).tobytes()
    data = struct.pack("<i", len(encoded)) + encoded + values
    chunk = {UNCOMPRESSED: page, SNAPPY: snappy_page}[codec](data, num_values=len(levels))
    found = decode(
        tmp_path_factory.getbasetemp(),
        [chunk],
        codec=codec,
        num_rows=len(levels),
        values=8 * len(levels),
        room_bytes=1 << 23,
        page_bytes=1 << 23,
        portable=portable,
    )
    expected = [rank * level for rank, level in zip(ranks, levels, strict=True)]
    assert found == ((len(levels),), [expected])


@settings(deadline=None)
@given(compressible().filter(bool), st.randoms(use_true_random=False))
def test_damaged_bytes_are_left_out_where_arrow_refuses_them(
    tmp_path_factory: pytest.TempPathFactory, data: Any, random: random.Random
) -> None:
    damaged = bytearray(pa.compress(data, "snappy", asbytes=True))
    for _ in range(random.randint(1, 3)):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    stored = bytes(damaged[: random.choice([len(damaged), random.randrange(len(damaged)) + 1])])
    found = decompressed(tmp_path_factory.getbasetemp(), stored, len(data))
    assert found == _arrows(stored, len(data))


def _arrows(stored: Any, size: Any) -> Any:
    """Arrow accepts a shorter length than requested, and leaves the rest unwritten."""
    length, at = 0, 0
    while at < len(stored):
        length |= (stored[at] & 127) << 7 * at
        at += 1
        if stored[at - 1] < 128:
            break
    if length != size:
        return None
    try:
        return np.frombuffer(pa.decompress(stored, size, "snappy"), np.int64).tolist()
    except OSError:
        return None


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x88",
        b"\x08",
        varint(8) + b"\x1c1234567",
        varint(8) + b"\x20123456789",
        varint(8) + b"\xf0",
        varint(8) + b"\xfc\xff\xff\xff",
        varint(8) + b"\xfc\xff\xff\xff\xff12345678",
        varint(8) + copy_2(1, 8),
        varint(8) + literal(b"1234") + copy_1(0, 4),
        varint(8) + literal(b"1234") + copy_1(5, 4),
        varint(8) + literal(b"1234") + copy_2(4, 5),
        varint(8) + literal(b"1234") + copy_4(2**32 - 1, 4),
        varint(8) + literal(b"12345678")[:-1],
        varint(2**35) + literal(b"12345678"),
        b"\x88\x80\x80\x80\x80\x00" + literal(b"12345678"),
    ],
    ids=repr,
)
def test_malformed_snappy_is_left_out(tmp_path: Path, stored: Any) -> None:
    assert decompressed(tmp_path, stored, 8) is None
    assert (
        decompressed(tmp_path, varint(8) + literal(b"12345678"), 8)
        == np.frombuffer(b"12345678", np.int64).tolist()
    )
