"""Page headers as the kernels read them, compared with the reader in Python."""

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from featstore.native import kernels
from featstore.native.bounds import PageHeader, read_page_header
from tests.native.mutants import encoded_struct, sound_chunks
from tests.native.oracles.page_header import page_header


def _found(data: bytes) -> PageHeader | None:
    found = kernels.page_header(data)
    return None if found is None else PageHeader(*found)


def test_headers_are_those_that_writers_wrote_and_none_that_is_cut_off(tmp_path: Path) -> None:
    for chunk in sound_chunks(tmp_path, random.Random(5)):
        for page in chunk.pages:
            header = encoded_struct(page.header)
            assert _found(header + b"more") == page_header(header)
            assert all(_found(header[:size]) is None for size in range(len(header)))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_for_both_readers_or_for_none(data: bytes) -> None:
    assert _found(data) == page_header(data)


def test_a_long_header_takes_a_second_look() -> None:
    sizes: list[int] = []
    header = bytes((0x15, 0, 0x15, 2, 0x15, 2))  # i32 fields 1 to 3: a data page of one byte
    statistics = bytes((0x28, 0x90, 0x4E)) + bytes(10_000)  # a binary as field 5
    data = header + statistics + b"\0"

    def read_at(num_bytes: int, first: int) -> bytes:
        sizes.append(num_bytes)
        return data[first : first + num_bytes]

    found = read_page_header(read_at, 0, len(data))
    assert found == PageHeader(len(data), 1, 1, 0, None)
    assert sizes == [4 << 10, len(data)]
