"""The frames of TFRecord: checksums, and files that are cut off or changed."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.formats.tfrecord import is_record_head, masked_crc, read_records
from tests.formats.example_files import framed

# `foo` as tensorflow writes it; Apache Beam tests with the same bytes.
RECORD_OF_FOO = bytes.fromhex("0300000000000000b099490e666f6f618abefe")


def test_the_record_that_others_test_with() -> None:
    assert list(read_records(io.BytesIO(RECORD_OF_FOO * 2))) == [b"foo", b"foo"]
    assert is_record_head(RECORD_OF_FOO)


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_records_are_read_back(records: list[bytes]) -> None:
    assert list(read_records(io.BytesIO(b"".join(map(framed, records))))) == records


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.data())
def test_a_file_that_is_cut_off_tells_where(records: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(framed, records))
    end = data.draw(st.integers(1, len(whole) - 1))
    ends = [sum(len(framed(record)) for record in records[: i + 1]) for i in range(len(records))]
    num_whole = sum(other <= end for other in ends)
    found: list[bytes | None] = []
    if end in ends:
        assert list(read_records(io.BytesIO(whole[:end]))) == records[:num_whole]
        return
    start = ends[num_whole - 1] if num_whole else 0
    said = rf"record {num_whole + 1}, at byte {start}: expected a record of .*the end of the file"
    with pytest.raises(InputError, match=said):
        found.extend(read_records(io.BytesIO(whole[:end])))
    assert found == records[:num_whole]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_noticed(records: list[bytes], data: st.DataObject) -> None:
    """In a record or its checksum it costs that record. In a length it costs the rest of the file,
    which is an error.
    """
    number = data.draw(st.integers(0, len(records) - 1))
    start = sum(len(framed(record)) for record in records[:number])
    bit = data.draw(st.integers(0, 8 * len(framed(records[number])) - 1))
    changed = bytearray(b"".join(map(framed, records)))
    changed[start + bit // 8] ^= 1 << bit % 8
    if bit // 8 < 12:
        said = rf"record {number + 1}, at byte {start}: expected the length of a record with its"
        with pytest.raises(InputError, match=said):
            list(read_records(io.BytesIO(changed)))
    else:
        expected = [None if i == number else record for i, record in enumerate(records)]
        assert list(read_records(io.BytesIO(changed))) == expected


def test_a_length_that_no_message_has_is_refused_before_it_is_read() -> None:
    length = struct.pack("<Q", 1 << 40)
    huge = length + struct.pack("<I", masked_crc(length))
    with pytest.raises(InputError, match="record 1, at byte 0: expected the length of a record"):
        list(read_records(io.BytesIO(huge)))


@pytest.mark.parametrize("level", [1, 6, 9])
def test_a_file_that_is_compressed_with_zlib_is_named(level: int) -> None:
    source = io.BytesIO(zlib.compress(framed(b"a") * 9, level))
    with pytest.raises(InputError, match=r"record 1, .* compressed with ZLIB, .*`pigz -dz`"):
        list(read_records(source))
