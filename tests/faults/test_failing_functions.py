"""One call of the operating system fails, once: an error that names a path, or none; nothing stays
open or locked, and whoever comes next goes on.
"""

import errno
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import FeatstoreError, StagingError
from featstore.files.private_directory import PrivateDirectory
from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.staging.cache import Cache, Download, Limits, Pin
from featstore.staging.limits import Throttle
from featstore.staging.record import Record, checksum
from tests.failing_calls import FailingCalls, Place, left_open
from tests.parquet_files import put_row_files
from tests.programs import run_python

NUM_ROWS = 400
READS = """
import sys
from tests.faults.test_failing_functions import read
from pathlib import Path
print(read[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3])) == list(range(400)))
"""
USES = """
import sys
from tests.faults.test_failing_functions import use
use(sys.argv[1])
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files. Collecting garbage takes no time for what there is by now."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    gc.freeze()
    yield tmp_path / "temporary"
    gc.unfreeze()


class _User:
    """Uses a cache as the fetcher does: what it got is let go of at the end, and after an error."""

    def __init__(self, cache: Cache, held: ExitStack) -> None:
        self._cache, self._held = cache, held

    def request(self, number: int, num_bytes: int, beyond_bytes: int = -1) -> Any:
        answer = self._cache.request(f"{number:040x}", 100, num_bytes, beyond_bytes=beyond_bytes)
        if isinstance(answer, Pin | Download):
            self._held.callback(answer.release if isinstance(answer, Pin) else answer.abandon)
        return answer

    def pin(self, number: int, num_bytes: int, **how: Any) -> Pin:
        """A file with so many bytes, which is made if it is not there."""
        answer = self.request(number, num_bytes, **how)
        if isinstance(answer, Pin):
            return answer
        answer.reserve(num_bytes)
        data = b"x" * num_bytes
        answer.path.write_bytes(data.ljust(100, b"\0"))
        pin: Pin = answer.publish(Record.of("u", 100, "", [(0, num_bytes, checksum(data))]))
        self._held.callback(pin.release)
        return pin


def use(directory: str | None) -> None:
    """Makes all calls that a cache makes, with room for two files."""
    cache = Cache(directory, Limits(budget_bytes=250, min_free_bytes=1))
    with ExitStack() as held:
        held.callback(cache.close)
        cache.clear()
        user = _User(cache, held)
        part = user.pin(1, 10)
        whole = user.pin(1, 100, beyond_bytes=10)
        assert cache.has(f"{1:040x}")
        again = user.pin(1, 100)
        with cache.named_errors("a file"):
            assert again.is_intact(threading.Event())
            Throttle(cache.limits_path, 10**9).wait(10, threading.Event())
        other = user.pin(2, 100)
        for pin in (part, whole, again):
            pin.release()
        user.request(3, 100).abandon()
        cache.discard(other)
        cache.remove(user.pin(4, 100))
        user.pin(5, 100).release()
        cache.entries()
        cache.clear()


def _places(calls: FailingCalls, act: Callable[[], object]) -> list[Place]:
    """The places at which calls are made."""
    act()
    found = list(calls.places)
    assert len(found) > 10
    return found


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("is_private", [False, True])
def test_a_cache_of_which_one_call_fails_leaves_no_lock_and_no_descriptor(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_private: bool,
    number: int,
) -> None:
    calls = FailingCalls(monkeypatch, "/staging/", "/files/private_directory")
    directory = None if is_private else str(tmp_path / "cache")
    failures, calls.number = list[tuple[str, int]](), number
    for place in _places(calls, lambda: use(directory)):
        calls.failing = place
        try:
            use(directory)
        except StagingError as error:
            failures.append((str(error), error.errno or number))
        assert calls.failing is None, f"{place} was not made again"
        gc.collect()
        assert not left_open(tmp_path), place
        assert not list((tmp_path / "cache").rglob("*.part")), place
        use(directory)
    assert len(failures) > 10
    assert {number} == {found for _, found in failures}
    assert all(str(tmp_path) in text for text, _ in failures), failures
    PrivateDirectory().remove()
    assert not list(temporary.iterdir())
    run_python(USES, tmp_path / "cache")


def _rows(loader: Any) -> list[int]:
    with loader:
        return sorted(row for batch in loader for row in batch["row"].tolist())


def _staged(**staging: Any) -> Callable[[Path, Path], list[int]]:
    def rows(table: Path, cache: Path) -> list[int]:
        options = staging | {"directory": str(cache)}
        return _rows(FeatureLoader(str(table), slots=["row"], batch_size=64, staging=options))

    return rows


def _samples(table: Path, cache: Path) -> list[int]:
    options = {"directory": str(cache)}
    with SampleDataset(str(table), slots=["row"], staging=options) as samples:
        return sorted(row for index in range(0, NUM_ROWS, 8) for row in _eight(samples, index))


def _eight(samples: SampleDataset, first: int) -> Iterator[int]:
    yield from samples[list(range(first + 7, first - 1, -1))]["row"].tolist()


read: dict[str, Callable[[Path, Path], list[int]]] = {
    "in place": lambda table, _: _rows(FeatureLoader(str(table), slots=["row"], batch_size=64)),
    "whole": _staged(mode="whole"),
    "ranges": _staged(mode="ranges"),
    "decoded": _staged(mode="whole", decoded=True),
    "samples": _samples,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", read)
def test_an_epoch_of_which_one_call_fails_reads_all_rows_or_ends_with_an_error_that_names_a_path(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    put_row_files(tmp_path / "table", [NUM_ROWS // 4] * 4, row_group_size=20)
    calls = FailingCalls(monkeypatch)
    number, every, failures = 0, list(range(NUM_ROWS)), list[str]()

    def epoch() -> list[int]:
        return read[way](tmp_path / "table", tmp_path / f"cache-{number}")

    for place in _places(calls, epoch):
        number, calls.failing = number + 1, place
        try:
            assert epoch() == every, place
        except FeatstoreError as error:  # Any other one fails this test.
            failures.append(str(error))
        calls.failing = None
        gc.collect()
        assert not left_open(tmp_path), place
        assert epoch() == every, place
    assert all(str(tmp_path) in text or ".parquet" in text for text in failures), failures
    arguments = way, tmp_path / "table", tmp_path / f"cache-{number}"
    assert run_python(READS, *arguments).stdout == "True\n"
