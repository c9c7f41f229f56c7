"""The kernels' CRC-32, with every implementation that this machine supports, compared with zlib's."""

import sys
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.native import kernels

EITHER = pytest.mark.parametrize("portable", [False, True], ids=["this CPU", "any CPU"])
# The steps of the ways: 8 bytes by tables, 64 and 256 by multiplication.
LENGTHS = [0, 1, 7, 8, 9, 63, 64, 65, 80, 127, 128, 255, 256, 257, 320, 511, 512, 1000, 70_000]
DATA = bytes(range(256)) * 300


@EITHER
def test_the_check_value_of_the_standard(portable: Any) -> None:
    assert kernels.crc32(b"123456789", 0, portable) == 0xCBF43926


@EITHER
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_alignment(length: Any, portable: Any) -> None:
    view = memoryview(DATA)
    for first in range(9):
        of = view[first : first + length]
        assert kernels.crc32(of, 0, portable) == zlib.crc32(of)


@EITHER
@given(data=st.binary(max_size=2_000), times=st.integers(1, 20), before=st.integers(0, 2**32 - 1))
def test_any_bytes_after_any_others(portable: Any, data: bytes, times: int, before: int) -> None:
    assert kernels.crc32(data * times, before, portable) == zlib.crc32(data * times, before)


@EITHER
@given(data=st.binary(min_size=600, max_size=2_000), cut=st.integers(0, 600))
def test_in_two_steps_as_in_one(portable: Any, data: bytes, cut: int) -> None:
    first = kernels.crc32(data[:cut], 0, portable)
    assert kernels.crc32(data[cut:], first, portable) == zlib.crc32(data)


def written(values: Sequence[Any]) -> bytes:
    """What a checksum of values covers."""
    parts = []
    for value in values:
        if isinstance(value, str | bytes):
            kind, data = (b"t", value.encode()) if isinstance(value, str) else (b"b", value)
            parts.append(b"%s%d:%s" % (kind, len(data), data))
        else:
            parts.append(f"{value!r};".encode())
    return b"".join(parts)


VALUES = st.none() | st.integers() | st.floats() | st.text() | st.binary()


@given(values=st.lists(VALUES))
def test_values_of_every_type(values: list[Any]) -> None:
    expected = zlib.crc32(written(values))
    assert kernels.crc32_of_values(values) == expected
    assert kernels.crc32_of_values(tuple(values)) == expected


def test_values_of_any_size_with_and_without_the_interpreters_lock() -> None:
    for size in (65_535, 65_536, 1_000_000):
        values = (bytes(size), "ä" * size, 7)
        assert kernels.crc32_of_values(values) == zlib.crc32(written(values))


def test_a_text_does_not_keep_its_utf8() -> None:
    text = "ä" * 1_000
    size = sys.getsizeof(text)
    kernels.crc32_of_values((text,))
    assert sys.getsizeof(text) == size


def test_values_are_given_back() -> None:
    values = ("text", b"bytes", 10**20, 0.5)
    counts = list(map(sys.getrefcount, values))
    for _ in range(100):
        kernels.crc32_of_values(values)
    assert list(map(sys.getrefcount, values)) == counts


class Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_values_that_cannot_be_written_are_errors() -> None:
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        kernels.crc32_of_values(("a", "\ud800"))
    with pytest.raises(RuntimeError, match="no words"):
        kernels.crc32_of_values((1, Unwritable()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no len"):
        kernels.crc32_of_values(7)  # type: ignore[arg-type]
