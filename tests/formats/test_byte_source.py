"""Bytes of files, compressed or not, and their lines."""

import gzip
import io
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError, StoreError
from featstore.formats import byte_source
from featstore.formats.byte_source import errors_of, line_blocks, open_bytes
from tests.short_reads import unreadable_descriptors

TEXT = b"some text\n" * 1_000


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


@pytest.mark.parametrize("packed", [TEXT, gzip.compress(TEXT), zstd(TEXT)], ids=["no", "gz", "zst"])
def test_compressed_files_are_told_by_their_first_bytes(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "x").write_bytes(packed)
    with open_bytes(str(tmp_path / "x")) as source:
        assert source.read() == TEXT


def test_files_of_several_gzip_members_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(TEXT) * 3)
    with open_bytes(str(tmp_path / "x")) as source:
        assert source.read() == TEXT * 3


@pytest.mark.parametrize("num_zeros", [1, 512, 300_000])
def test_zeros_behind_a_gzip_member_are_no_member(tmp_path: Path, num_zeros: int) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(TEXT) + bytes(num_zeros))
    with open_bytes(str(tmp_path / "x")) as source:
        assert b"".join(iter(lambda: source.read(1_000), b"")) == TEXT


def test_who_knows_better_reads_a_file_as_it_is(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    (tmp_path / "x").write_bytes(packed)
    with open_bytes(str(tmp_path / "x"), is_plain=lambda head: packed.startswith(head)) as source:
        assert source.read() == packed


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-6], lambda data: data[:-6] + b"x" + data[-5:]]
)
def test_a_damaged_gzip_file_is_an_error(tmp_path: Path, damage: object) -> None:
    (tmp_path / "x").write_bytes(damage(gzip.compress(TEXT)))  # type: ignore[operator]
    with (
        open_bytes(str(tmp_path / "x")) as source,
        pytest.raises(OSError, match=r"ended before|CRC check"),
    ):
        source.read()


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))), st.integers(1, 30)
)
def test_lines_are_those_of_the_file_whatever_the_blocks(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"last"
    blocks = list(line_blocks(io.BytesIO(data), size))
    found = [line for block in blocks for line in block.lines]
    assert found == data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert [block.first for block in blocks] == [
        1 + sum(len(other.lines) for other in blocks[:i]) for i in range(len(blocks))
    ]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_source, "_MAX_LINE_BYTES", 100)
    with pytest.raises(InputError, match="line 2: expected lines of at most 100 bytes, found a"):
        list(line_blocks(io.BytesIO(b"a\n" + b"x" * 300), 50))


def test_a_file_that_the_system_cannot_read_is_no_wrong_input(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(1 << 20)))
    with open_bytes(str(path)) as source:
        assert source.read(10)
        assert unreadable_descriptors(path)
        with (
            pytest.raises(StoreError, match=r"x\.gz cannot be read, .*Bad file descriptor"),
            errors_of(str(path)),
        ):
            source.read()
    path.write_bytes(path.read_bytes()[:-9])
    with (
        pytest.raises(InputError, match=r"x\.gz: cannot be read \("),
        errors_of(str(path)),
        open_bytes(str(path)) as source,
    ):
        source.read()


def test_an_error_of_featstore_passes_and_wrong_input_is_named() -> None:
    error = StoreError("503")
    with pytest.raises(StoreError) as found, errors_of("a"):
        raise error
    assert found.value is error
    with pytest.raises(InputError, match=r"^a: line 3$"), errors_of("a"):
        raise InputError("line 3")
