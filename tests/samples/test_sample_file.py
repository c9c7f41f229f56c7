"""Faults of a store's file: what is wrong is said, and what was committed is not lost."""

import errno
import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from featstore.base import host
from featstore.base.errors import DiskFullError, SampleStoreError, UnknownSampleError
from featstore.samples.sample_fields import checksum
from featstore.samples.sample_store import SampleStore
from tests.full_disk import fill
from tests.programs import Program

KILLED = """
import sys, featstore
store = featstore.SampleStore(sys.argv[1])
def samples():
    for number in range(10 ** 9):
        if number % 10_000 == 5_000 and number > 20_000:
            print(number, flush=True)
        yield {"text": str(number), "image": b"x" * 20}
store.append(samples(), ids=range(10 ** 9))
"""
HELD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


def samples(num_samples: int) -> Iterator[dict[str, Any]]:
    return ({"text": f"text {i}", "image": bytes([i % 256]) * 500} for i in range(num_samples))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with SampleStore.create(tmp_path / "s.sqlite", {"text": "text", "image": "bytes"}) as store:
        store.append(samples(1_000), ids=range(1_000))
    return store.path


def test_the_format_is_stated_in_the_file_and_any_sqlite_tool_reads_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0x66735353,)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        row = connection.execute("SELECT * FROM samples WHERE id = '7'").fetchone()
        assert row[:2] == (7, "7")
        assert row[3:] == ("text 7", b"\x07" * 500)
        checked, *store = connection.execute(
            "SELECT checksum, version, num_samples, fields FROM store"
        ).fetchone()
        assert store[1:] == [1_000, '[["text", "text"], ["image", "bytes"]]']
        assert checked == checksum(store)
        assert row[2] == checksum((7, "7", "text 7", b"\x07" * 500))


def test_a_store_that_is_closed_is_one_file(path: Path) -> None:
    assert [found.name for found in path.parent.iterdir()] == ["s.sqlite"]


def test_who_closes_a_store_last_folds_the_log_into_the_file(path: Path) -> None:
    reader, writer = SampleStore(path), SampleStore(path)
    writer.append(samples(1))
    writer.close()
    assert len(list(path.parent.iterdir())) == 3  # the file, its log, and the log's index
    reader.close()
    assert [found.name for found in path.parent.iterdir()] == ["s.sqlite"]


def test_a_reader_cannot_change_the_file(path: Path) -> None:
    with (
        SampleStore(path) as store,
        pytest.raises(SampleStoreError, match="attempt to write a readonly database"),
        store._reader.use() as connection,
    ):
        connection.execute("DELETE FROM samples")


def test_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SampleStoreError, match=r"x: there is no such file; SampleStore\.create"):
        SampleStore(tmp_path / "x")


def test_there_is_a_file_already(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(SampleStoreError, match="there is a file already; open it, or choose"):
        SampleStore.create(path, {"text": "text"})
    assert path.read_bytes() == before


def test_no_file_can_be_made_there(tmp_path: Path) -> None:
    with pytest.raises(
        SampleStoreError, match=r"x cannot be created: No such file or directory; check .*, then cr"
    ) as met:
        SampleStore.create(tmp_path / "nothing" / "x", {"text": "text"})
    assert (met.value.errno, met.value.may_pass) == (errno.ENOENT, False)


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_a_file_that_is_no_store_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(SampleStoreError, match=r"/x is (no sample store|damaged: file is not a)"):
        SampleStore(tmp_path / "x")


def test_another_database_is_no_store(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x")) as connection:
        connection.execute("CREATE TABLE samples (position INTEGER PRIMARY KEY)")
    with pytest.raises(SampleStoreError, match=r"expected application_id 1718834003, found 0"):
        SampleStore(tmp_path / "x")


def test_a_later_format_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(SampleStoreError, match="expected format 1, found 2; use a featstore that"):
        SampleStore(path)


def test_a_flipped_bit_of_a_sample_is_an_error_and_the_others_are_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(b"\x07" * 500) + 250
    data[place] ^= 16
    path.write_bytes(data)
    store = SampleStore(path)
    assert store[[6, 8]] == [one for i, one in enumerate(samples(9)) if i in (6, 8)]
    for read in (lambda: store[7], lambda: store[0:20], lambda: store.by_id([7]), store.check):
        with pytest.raises(
            SampleStoreError, match=r"damaged: .*checksum \(position 7, id '7'\); copy it again"
        ):
            read()


def test_no_flipped_byte_is_read_as_something_else(path: Path, tmp_path: Path) -> None:
    """Bytes all over the file: each read gives what was written, or an error of featstore."""
    whole, expected = path.read_bytes(), list(samples(1_000))
    num_errors = 0
    for place in range(100, len(whole), len(whole) // 150):
        damaged = bytearray(whole)
        damaged[place] ^= 255
        (tmp_path / "damaged").write_bytes(damaged)
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"damaged{suffix}").unlink(missing_ok=True)
        try:
            with SampleStore(tmp_path / "damaged") as store:
                assert list(store) == expected[: len(store)]
                store.check()
        except SampleStoreError as error:
            num_errors += 1
            assert "damaged" in str(error)  # noqa: PT017
    assert num_errors > 100


@pytest.fixture
def small(tmp_path: Path) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """The file of a store with pages of 512 bytes on several levels, and its samples by id."""
    path = tmp_path / "small.sqlite"
    expected = {f"k{i}": {"text": f"text {i}", "meta": {"n": i}, "number": i} for i in range(40)}
    with SampleStore.create(path, {"text": "text", "meta": "json", "number": "integer"}) as store:
        store.append([{"text": "moves", "meta": 1, "number": 1}])
        store.append(expected.values(), ids=expected)
        store.delete([0])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("journal_mode = DELETE", "page_size = 512"):
            connection.execute(f"PRAGMA {statement}")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode = WAL")
    return path.read_bytes(), expected


def read_flipped(path: Path, expected: dict[str, dict[str, Any]]) -> int:
    """Reads a damaged store by index and by id. Anything but the sample that was written, or an
    error of featstore, fails.

    Returns:
        How many of the reads raised.
    """
    try:
        store = SampleStore(path, immutable=True)
    except SampleStoreError:
        return 1
    num_errors = 0
    with store:
        ids = ["k39", *list(expected)[:-1]]  # The last sample moved to the front.
        assert len(store) == len(ids)
        for index, one in enumerate(ids):
            try:
                assert store[index] == expected[one]
            except SampleStoreError:
                num_errors += 1
            try:
                assert store.by_id([one]) == [expected[one]]
            except (SampleStoreError, UnknownSampleError):
                num_errors += 1
    return num_errors


def test_no_flipped_bit_is_read_as_another_sample(
    small: tuple[bytes, dict[str, dict[str, Any]]], tmp_path: Path, is_campaign: bool
) -> None:
    """Each bit of a small file in the campaign, else every 101st one."""
    step = 1 if is_campaign else 101
    whole, expected = small
    path = tmp_path / "flipped.sqlite"
    path.write_bytes(whole)
    assert read_flipped(path, expected) == 0
    num_noticed = 0
    for bit in range(0, 8 * len(whole), step):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        num_noticed += read_flipped(path, expected) > 0
    assert num_noticed > 8 * len(whole) / step / 4


def changed(path: Path, statement: str, *values: Any) -> SampleStore:
    """The store after a statement that featstore did not write."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)
    return SampleStore(path)


def test_a_sample_at_the_position_of_another_is_damage(path: Path) -> None:
    changed(path, "DELETE FROM samples WHERE position = 8")
    store = changed(path, "UPDATE samples SET position = 8 WHERE position = 7")
    for index in (8, [8]):
        with pytest.raises(SampleStoreError, match=r"damaged: .*checksum \(position 8, id '7'\)"):
            store[index]
    for index in (7, [7]):
        with pytest.raises(SampleStoreError, match="damaged: expected 1000 samples, and some are"):
            store[index]


def test_damage_is_not_moved_by_a_delete(path: Path) -> None:
    store = changed(path, "UPDATE samples SET value_0 = 'other' WHERE position = 999")
    with pytest.raises(SampleStoreError, match=r"damaged: .*checksum \(position 999"):
        store.delete([3])
    store = changed(path, "DELETE FROM samples WHERE position = 999")
    with pytest.raises(SampleStoreError, match="damaged: there is no sample at position 999"):
        store.delete([3])
    assert len(store) == 1_000
    assert store[3] == list(samples(4))[3]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE store SET num_samples = num_samples - 1",
        "UPDATE store SET version = version + 1",
        "UPDATE store SET fields = CAST(fields AS BLOB)",
        """UPDATE store SET fields = '[["text", "text"], ["image", "tytes"]]'""",
        "UPDATE store SET fields = NULL",
        "DELETE FROM store",
    ],
)
def test_what_describes_a_store_has_a_checksum(path: Path, statement: str) -> None:
    with pytest.raises(SampleStoreError, match="damaged: what describes the store does not match"):
        changed(path, statement)


def test_samples_beyond_the_number_that_the_store_has_are_damage(path: Path) -> None:
    store = changed(path, "INSERT INTO samples VALUES (1000, 'x', 0, 'text', NULL)")
    with pytest.raises(SampleStoreError, match="damaged: expected 1000 samples, and there are mor"):
        store.append(samples(1))


def test_the_index_of_ids_leads_to_another_sample(path: Path) -> None:
    """One bit of the position in an entry of the index."""
    data = bytearray(path.read_bytes())
    entry = b"\x03\x13\x02" + b"777" + (777).to_bytes(2, "big")  # header, id, position
    assert data.count(entry) == 1
    data[data.index(entry) + len(entry) - 1] ^= 2
    path.write_bytes(data)
    store = SampleStore(path)
    with pytest.raises(SampleStoreError, match=r"damaged: a sample .*checksum \(position 779, id"):
        store.by_id(["5", "777"])
    assert store[777]["text"] == "text 777"


def test_progress_of_imports_has_a_checksum(path: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a", "image": null}\n')
    SampleStore(path).import_json_lines(source)
    store = changed(path, "UPDATE imports SET progress = replace(progress, 'true', 'false')")
    with pytest.raises(SampleStoreError, match=r"damaged: the progress of the import of '.*jsonl'"):
        store.import_json_lines(source)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.95])
def test_a_truncated_file_is_damaged(path: Path, part: float) -> None:
    os.truncate(path, int(path.stat().st_size * part) // 4096 * 4096)
    with pytest.raises(SampleStoreError, match=r"s\.sqlite is damaged: .*(malformed|not a data)"):
        list(SampleStore(path))


def test_a_file_truncated_under_an_open_reader_is_damaged(path: Path) -> None:
    store = SampleStore(path)
    assert len(store[:10]) == 10
    os.truncate(path, 8192)
    with pytest.raises(SampleStoreError, match=r"damaged|cannot be used: disk I/O"):
        list(store)


def test_a_second_writer_waits_and_then_says_who_is_in_the_way(path: Path) -> None:
    store = SampleStore(path, wait_s=0.2)
    with Program(HELD, path) as holder:
        assert holder.line() == "held"
        with pytest.raises(
            SampleStoreError, match=r"another process has been writing to it for 0\.2 s"
        ) as busy:
            store.append(samples(1))
        assert (busy.value.errno, busy.value.may_pass) == (errno.EBUSY, True)
        assert len(store[:]) == 1_000  # Readers go on.
        patient = SampleStore(path, wait_s=60)
        waiting = threading.Thread(target=lambda: patient.append(samples(1)))
        waiting.start()
        time.sleep(0.1)
        holder.go_on()
        waiting.join()
    assert len(patient) == 1_001
    store.append(samples(1))
    assert len(store) == 1_002


@pytest.fixture
def disk_size() -> str:
    return "4m"


def test_a_full_disk_while_samples_are_added_keeps_what_was_committed(small_disk: Path) -> None:
    store = SampleStore.create(small_disk / "s", {"text": "text", "image": "bytes"})
    store.append(samples(200))
    ballast = fill(small_disk, leave_bytes=100_000)
    with pytest.raises(DiskFullError, match=r"since the disk, .* is full .*; what was committed"):
        store.append(samples(5_000))
    with pytest.raises(OSError, match="full") as raised:
        store.append(samples(5_000))
    assert raised.value.errno == errno.ENOSPC
    assert list(store) == list(samples(200))
    store.close()
    store = SampleStore(small_disk / "s")
    assert list(store) == list(samples(200))
    ballast.unlink()
    store.append(samples(1_000))
    store.check()
    assert len(store) == 1_200
    store.close()


@pytest.mark.parametrize("leave_bytes", [0, 8_192])
def test_a_full_disk_while_a_store_is_made_leaves_no_file(
    small_disk: Path, leave_bytes: int
) -> None:
    fill(small_disk, leave_bytes=leave_bytes)
    with pytest.raises(DiskFullError, match="is full"):
        SampleStore.create(small_disk / "s", {"text": "text"})
    assert [found.name for found in small_disk.iterdir()] == ["ballast"]


def test_a_full_disk_while_a_store_is_opened_is_named(small_disk: Path, path: Path) -> None:
    shutil.copy(path, small_disk / "s")
    ballast = fill(small_disk)
    with pytest.raises(DiskFullError, match="cannot be written or opened"):
        SampleStore(small_disk / "s")
    assert len(SampleStore(small_disk / "s", immutable=True)[:]) == 1_000
    ballast.unlink()
    SampleStore(small_disk / "s").close()


def test_a_read_only_disk_is_named_and_read_as_immutable(small_disk: Path, path: Path) -> None:
    shutil.copy(path, small_disk / "s")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(SampleStoreError, match=r"cannot be opened: .*immutable=True"):
        SampleStore(small_disk / "s")
    store = SampleStore(small_disk / "s", immutable=True)
    assert list(store) == list(samples(1_000))
    with pytest.raises(SampleStoreError, match="was opened with immutable=True: open it without"):
        store.append(samples(1))
    store.close()


def test_changes_that_are_not_in_the_file_yet_are_not_overlooked(path: Path) -> None:
    with SampleStore(path) as store, SampleStore(path) as reader:
        store.append(samples(1))
        with pytest.raises(SampleStoreError, match=r"has changes in s\.sqlite-wal that immutable"):
            SampleStore(path, immutable=True)
        reader.refresh()
        assert len(reader) == 1_001
    assert len(SampleStore(path, immutable=True)) == 1_001


def test_on_a_network_file_system_only_what_nobody_changes_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's mount table is replaced by one that shows this directory as a network share,
    because the test cannot mount one.
    """
    table = path.parent / "mountinfo"
    table.write_text(
        f"1 0 0:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:2 / {path.parent.resolve()} rw - nfs4 server:/ rw\n"
    )
    monkeypatch.setattr(host, "_MOUNTS", table)
    said = r"lies on nfs4 \(mounted at .*expected a local file system"
    with pytest.raises(SampleStoreError, match=said):
        SampleStore(path)
    with pytest.raises(SampleStoreError, match=said):
        SampleStore.create(path.parent / "other", {"text": "text"})
    assert not (path.parent / "other").exists()
    assert list(SampleStore(path, immutable=True)) == list(samples(1_000))


def test_a_writer_that_is_killed_leaves_whole_transactions_and_the_next_one_goes_on(
    path: Path,
) -> None:
    reader = SampleStore(path)
    reader.delete(slice(None))
    for delay_s in (0, 0.03):
        with Program(KILLED, path) as writer:
            assert int(writer.line()) >= 25_000
            time.sleep(delay_s)  # It may be in a transaction then.
            writer.kill()
            writer.wait()
        reader.refresh()
        assert len(reader) > 0
        assert len(reader) % 10_000 == 0
        assert [one["text"] for one in reader] == [str(i) for i in range(len(reader))]
        reader.check()
        fresh = SampleStore(path)
        assert len(fresh) == len(reader)
        assert fresh.append(samples(1)) == 1
        fresh.delete(slice(None))
        fresh.close()
        reader.refresh()
    reader.close()
    assert [found.name for found in path.parent.iterdir()] == ["s.sqlite"]


def test_after_a_kill_a_reader_that_comes_and_goes_folds_the_log_into_the_file(path: Path) -> None:
    with SampleStore(path) as store:
        store.delete(slice(None))
    with Program(KILLED, path) as writer:
        assert int(writer.line()) >= 25_000
        writer.kill()
        writer.wait()
    with pytest.raises(SampleStoreError, match="open and close it once without"):
        SampleStore(path, immutable=True)
    with SampleStore(path) as store:
        num_samples = len(store)
    assert num_samples >= 20_000
    assert len(SampleStore(path, immutable=True)) == num_samples


def test_a_store_that_cannot_be_seen_is_not_taken_for_one_that_is_not_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(seen: object, **_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error", str(seen))

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(OSError, match=r"s\.sqlite cannot be read.*Input/output error"):
        SampleStore(path)
