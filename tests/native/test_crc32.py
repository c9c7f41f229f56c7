"""The kernels' CRC-32, with every implementation that this machine supports, compared with zlib's."""

import zlib
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
