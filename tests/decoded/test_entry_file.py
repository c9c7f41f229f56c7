"""An entry is written with its checksum, mapped, and checked again once it may have changed."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import StagingError
from featstore.decoded.entry_file import DamagedEntryError, EntryWriter, FileState, MappedEntry
from featstore.staging.cache import Cache, Download, Limits, Pin
from featstore.tensors.column_arrays import writable

NAME = "a" * 40
TABLE = pa.table({"row": range(50_000)})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path), Limits(budget_bytes=10_000_000))


@pytest.fixture
def pin(cache: Cache) -> Pin:
    download = cache.request(NAME, None, 1_000_000, is_steady=True)
    assert isinstance(download, Download)
    writer = EntryWriter(download, lambda num_bytes: None)
    writer.write(TABLE.schema, TABLE.to_batches(max_chunksize=20_000))
    return download.publish(writer.record("what it is of"))


def rows_of_entry(entry: MappedEntry) -> list[int]:
    return [row for batch in entry.batches for row in batch.column(0).to_pylist()]


def overwrite(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def test_what_is_written_is_mapped(cache: Cache, pin: Pin) -> None:
    entry = MappedEntry(cache, pin)
    assert [batch.num_rows for batch in entry.batches] == [20_000, 20_000, 10_000]
    assert rows_of_entry(entry) == list(range(50_000))
    assert pin.record.url == "what it is of"
    assert pin.is_intact(threading.Event())
    assert entry.held_bytes == pin.path.stat().st_size
    assert cache.clear() == []
    entry.close()
    entry.close()
    assert cache.clear() == [pin.path.name]
    # The mapping lives on.
    assert rows_of_entry(entry) == list(range(50_000))


def write(cache: Cache, batches: Sequence[pa.RecordBatch], num_bytes: int) -> Pin:
    download = cache.request("b" * 40, None, num_bytes, is_steady=True)
    assert isinstance(download, Download)
    writer = EntryWriter(download, lambda num_bytes: None)
    writer.write(batches[0].schema, batches)
    return download.publish(writer.record("blocks"))


def test_large_entries_are_written_in_blocks_that_end_where_huge_pages_end(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [0]

    def writev(file: int, buffers: list[memoryview], of: Any = os.writev) -> int:
        written: int = of(file, buffers)
        ends.append(ends[-1] + written)
        return written

    monkeypatch.setattr(os, "writev", writev)
    columns = {f"c{n}": np.arange(n, 90_000 + n) for n in range(8)}
    pin = write(cache, pa.table(columns).to_batches(), 6_000_000)
    size_bytes = pin.path.stat().st_size
    assert ends == [0, 2 << 20, 4 << 20, size_bytes]
    entry = MappedEntry(cache, pin)
    assert pa.Table.from_batches(entry.batches).equals(pa.table(columns))


def test_what_the_kernel_writes_in_part_and_what_lies_in_many_buffers_is_whole(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def writev(file: int, buffers: list[memoryview], of: Any = os.writev) -> int:
        sizes.append(len(buffers))
        first = buffers[: 1 + len(sizes) % 7]
        return int(of(file, [*first[:-1], first[-1][: 1 + len(first[-1]) // 2]]))

    monkeypatch.setattr(os, "writev", writev)
    columns = {f"c{n}": np.arange(n, 20 + n) for n in range(600)}
    entry = MappedEntry(cache, write(cache, pa.table(columns).to_batches(), 1_000_000))
    assert pa.Table.from_batches(entry.batches).equals(pa.table(columns))
    assert 1 < max(sizes) <= 512


def test_room_that_was_reserved_and_not_written_is_given_back(cache: Cache) -> None:
    pin = write(cache, TABLE.to_batches(), 5_000_000)
    assert pin.path.stat().st_size == pin.record.size_bytes < 500_000
    assert pin.path.stat().st_blocks * 512 < 1_000_000


def test_bytes_are_read_once_to_check_them_unless_the_file_changes(
    cache: Cache, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    original = Pin.is_intact

    def noted(self: Pin, stop: threading.Event) -> bool:
        checks.append(self.path.name)
        return original(self, stop)

    monkeypatch.setattr(Pin, "is_intact", noted)
    entry = MappedEntry(cache, pin)
    entry.require_unchanged()
    assert len(checks) == 1
    os.utime(pin.path)
    entry.require_unchanged()
    entry.require_unchanged()
    assert len(checks) == 2
    other = cache.request(NAME, None, 0, is_steady=True)
    assert isinstance(other, Pin)
    assert entry.state == FileState.of(pin.descriptor)
    MappedEntry(cache, other, entry.state).close()
    assert len(checks) == 2
    entry.close()


def test_another_user_of_an_entry_does_not_change_its_times_within_a_minute(
    cache: Cache, pin: Pin
) -> None:
    before = FileState.of(pin.descriptor)
    for _ in range(3):
        other = cache.request(NAME, None, 0, is_steady=True)
        assert isinstance(other, Pin)
        other.release()
    assert FileState.of(pin.descriptor) == before
    long_ago_ns = pin.path.stat().st_mtime_ns - 61 * 10**9
    os.utime(pin.path, ns=(long_ago_ns, long_ago_ns))
    other = cache.request(NAME, None, 0, is_steady=True)
    assert isinstance(other, Pin)
    assert pin.path.stat().st_mtime_ns > long_ago_ns
    other.release()
    pin.release()


@pytest.mark.parametrize("at", [0, 5_000, -1])
def test_a_flipped_byte_is_found_when_the_entry_is_opened(cache: Cache, pin: Pin, at: int) -> None:
    overwrite(pin.path, at % pin.record.size_bytes)
    with pytest.raises(DamagedEntryError, match=r"expected what was written there .what it is of."):
        MappedEntry(cache, pin)
    assert cache.entries() == []


def test_bytes_that_change_under_a_reader_are_found_before_the_next_rows(
    cache: Cache, pin: Pin
) -> None:
    entry = MappedEntry(cache, pin)
    overwrite(pin.path, 5_000)
    for _ in range(3):
        with pytest.raises(DamagedEntryError, match="somebody wrote to the file"):
            entry.require_unchanged()
    assert not pin.path.exists()
    entry.close()


def test_a_file_that_is_truncated_under_a_reader_is_found_before_it_is_read(
    cache: Cache, pin: Pin
) -> None:
    """To read beyond the end of a mapped file kills the process."""
    entry = MappedEntry(cache, pin)
    os.truncate(pin.path, 4_096)
    with pytest.raises(StagingError, match="removed from the cache"):
        entry.require_unchanged()


def test_a_file_that_is_removed_under_a_reader_stays_readable(cache: Cache, pin: Pin) -> None:
    entry = MappedEntry(cache, pin)
    pin.path.unlink()
    entry.require_unchanged()
    assert rows_of_entry(entry) == list(range(50_000))
    entry.close()


def test_who_writes_to_the_mapping_changes_neither_the_file_nor_other_mappings(
    cache: Cache, pin: Pin
) -> None:
    entry = MappedEntry(cache, pin)
    values = np.frombuffer(entry.batches[0].column(0).buffers()[1], np.int64)
    writable(values)[:] = 7  # type: ignore[index]
    assert set(rows_of_entry(entry)) >= {7}
    entry.require_unchanged()
    other = cache.request(NAME, None, 0, is_steady=True)
    assert isinstance(other, Pin)
    with MappedEntry(cache, other) as again:
        assert rows_of_entry(again) == list(range(50_000))
    entry.close()


def test_arrays_are_views_of_the_mapping(cache: Cache, pin: Pin) -> None:
    entry = MappedEntry(cache, pin)
    values = np.frombuffer(entry.batches[0].column(0).buffers()[1], np.int64)
    mapped = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(pin.path) in line
    ]
    [(first, end)] = [
        tuple(int(each, 16) for each in line.split()[0].split("-")) for line in mapped
    ]
    assert first <= values.ctypes.data < end
    entry.close()
