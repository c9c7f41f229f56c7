"""Entries are built once, by whoever comes first, and take their part of the budget."""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.base.errors import BudgetError, StagingError
from featstore.decoded.decoded_cache import DecodedCache, EntryRequest
from featstore.decoded.entry_file import EntryWriter, MappedEntry
from featstore.staging.cache import Download, entry_name
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from tests.decoded.conftest import BUDGET_BYTES
from tests.full_disk import fill
from tests.programs import run_python
from tests.threads import run_together

SCHEMA = pa.schema([("row", pa.int64())])


def request(
    number: int,
    num_rows: int = 100,
    *,
    first_bytes: int = 1_000,
    before: Callable[[], object] = lambda: None,
    log: list[int] | None = None,
) -> EntryRequest:
    """An entry of so many rows, all of which are `number`."""

    def build(writer: EntryWriter) -> None:
        before()
        if log is not None:
            log.append(number)
        writer.reserve(8 * num_rows + 1_000)
        writer.write(SCHEMA, [pa.record_batch([[number] * num_rows], schema=SCHEMA)])

    return EntryRequest(
        name=entry_name("test", number),
        title=f"entry {number}",
        first_bytes=first_bytes,
        build=build,
    )


def first_rows(entries: list[MappedEntry]) -> list[int]:
    rows = [entry.batches[0].column(0)[0].as_py() for entry in entries]
    for entry in entries:
        entry.close()
    return rows


def test_entries_are_built_once_and_opened_in_order(cache: DecodedCache) -> None:
    log = list[int]()
    for numbers in ([3, 1, 2], [1, 2, 3, 4]):
        seen = list[int]()
        entries = cache.open_all([request(n, log=log) for n in numbers], on_open=seen.append)
        assert first_rows(entries) == numbers
        assert seen == list(range(len(numbers)))
    assert log == [3, 1, 2, 4]


def test_two_that_want_the_same_entries_share_the_work(stager: Stager) -> None:
    """The second goes on with other entries while the first one builds one."""
    log, started = list[int](), threading.Event()

    def wait() -> None:
        started.set()
        assert others_done.wait(60)

    others_done = threading.Event()

    found = list[list[int]]()

    def first() -> None:
        cache = DecodedCache(stager.cache, BUDGET_BYTES)
        wanted = [request(0, before=wait, log=log), *(request(n, log=log) for n in (1, 2))]
        found.append(first_rows(cache.open_all(wanted)))

    def second() -> None:
        assert started.wait(60)
        cache = DecodedCache(stager.cache, BUDGET_BYTES)
        entries = cache.open_all(
            [request(n, log=log) for n in range(3)],
            on_open=lambda number: others_done.set() if number == 2 else None,
        )
        found.append(first_rows(entries))

    run_together(first, second)
    assert found == [[0, 1, 2]] * 2
    assert sorted(log) == [0, 1, 2]
    assert log[:2] == [1, 2]


def test_who_waits_for_an_entry_of_others_holds_nothing_that_they_may_wait_for(
    stager: Stager,
) -> None:
    started, let_go = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert let_go.wait(60)

    def first() -> None:
        cache = DecodedCache(stager.cache, BUDGET_BYTES)
        assert first_rows(cache.open_all([request(0, before=wait)])) == [0]

    def second() -> None:
        assert started.wait(60)
        cache = DecodedCache(stager.cache, BUDGET_BYTES, let_go=let_go.set)
        assert first_rows(cache.open_all([request(0)])) == [0]

    run_together(first, second)


def test_entries_that_do_not_fit_together_are_an_error_before_they_are_read(
    cache: DecodedCache, stager: Stager
) -> None:
    wanted = [request(n, 50_000) for n in range(3)]
    with pytest.raises(BudgetError, match=r"no room for entry 2 of .* decoded columns have to fit"):
        cache.open_all(wanted)
    assert first_rows(cache.open_all(wanted[:2])) == [0, 1]
    # Nothing is pinned any more, so that others find room.
    assert len(stager.cache.clear()) == 2


def test_an_entry_that_nobody_reads_makes_room(cache: DecodedCache, stager: Stager) -> None:
    for number in range(4):
        assert first_rows(cache.open_all([request(number, 50_000)])) == [number]
    assert stager.cache.num_evicted == 2


def test_room_that_others_pin_is_waited_for(stager: Stager) -> None:
    cache = DecodedCache(stager.cache, BUDGET_BYTES, grace_s=0.1)
    pinned = cache.open_all([request(1, 50_000), request(2, 50_000)])
    with pytest.raises(BudgetError, match="what other processes read"):
        cache.open_all([request(3, 50_000)])
    patient = DecodedCache(stager.cache, BUDGET_BYTES, grace_s=60)
    timer = threading.Timer(0.3, pinned[0].close)
    timer.start()
    assert first_rows(patient.open_all([request(3, 50_000)])) == [3]
    timer.join()
    pinned[1].close()


def test_a_damaged_entry_is_built_again(
    cache: DecodedCache, stager: Stager, caplog: pytest.LogCaptureFixture
) -> None:
    log = list[int]()
    first_rows(cache.open_all([request(1, log=log)]))
    [entry] = stager.cache.entries()
    entry.path.write_bytes(bytes(entry.record.size_bytes))
    assert first_rows(cache.open_all([request(1, log=log)])) == [1]
    assert log == [1, 1]
    assert "found other bytes" in caplog.text


def test_a_truncated_entry_is_built_again(cache: DecodedCache, stager: Stager) -> None:
    log = list[int]()
    first_rows(cache.open_all([request(1, log=log)]))
    [entry] = stager.cache.entries()
    entry.path.write_bytes(b"")
    assert first_rows(cache.open_all([request(1, log=log)])) == [1]
    assert log == [1, 1]


def test_a_build_that_fails_leaves_nothing_behind(cache: DecodedCache, stager: Stager) -> None:
    def fail() -> None:
        raise ValueError("as it happens")

    with pytest.raises(ValueError, match="as it happens"):
        cache.open_all([request(1), request(2, before=fail)])
    assert [entry.is_pinned for entry in stager.cache.entries()] == [False]
    assert not list(stager.cache.root.glob("*.part"))


def test_an_entry_whose_directory_is_removed_while_it_is_built_is_built_again(
    cache: DecodedCache, stager: Stager
) -> None:
    removed = list[Path]()

    def remove() -> None:
        if not removed:
            removed.append(stager.cache.root.rename(stager.cache.root.with_name("away")))

    assert first_rows(cache.open_all([request(1, before=remove)])) == [1]
    assert removed


def test_an_entry_whose_directory_is_removed_each_time_is_an_error(
    cache: DecodedCache, stager: Stager
) -> None:
    numbers = iter(range(100))

    def remove() -> None:
        stager.cache.root.rename(stager.cache.root.with_name(f"away-{next(numbers)}"))

    with pytest.raises(StagingError, match="somebody removed it"):
        cache.open_all([request(1, before=remove)])
    assert next(numbers) == 10


def test_a_full_disk_is_named_and_nothing_is_left(small_disk: Path) -> None:
    with Stager(Staging(directory=str(small_disk / "cache"), budget_bytes=BUDGET_BYTES)) as stager:
        cache = DecodedCache(stager.cache, BUDGET_BYTES)
        fill(small_disk, leave_bytes=16_384)
        with pytest.raises(StagingError, match=r"entry 1 cannot be written to .*No space left"):
            cache.open_all([request(1, 50_000)])
        assert [path.name for path in stager.cache.root.iterdir()] == []


def test_a_reservation_of_a_dead_process_is_taken_over(stager: Stager, cache: DecodedCache) -> None:
    wanted = request(1)
    download = stager.cache.request(wanted.name, None, 10)
    assert isinstance(download, Download)
    (stager.cache.root / f"{wanted.name}.20.part").write_bytes(b"left behind")
    download.abandon()
    assert first_rows(cache.open_all([wanted])) == [1]
    assert not list(stager.cache.root.glob("*.part"))


# Opens 60 entries; the arguments are a directory, and how many descriptors more may be open.
_MANY = """
import resource, sys
from pathlib import Path
from featstore.decoded.decoded_cache import DecodedCache
from featstore.base.errors import StagingError
from featstore.staging.cache import Cache, Limits
from tests.decoded.test_decoded_cache import BUDGET_BYTES, first_rows, request

directory, num_more, num_possible = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
cache = DecodedCache(Cache(directory, Limits(budget_bytes=BUDGET_BYTES)), BUDGET_BYTES)
num_open = len(list(Path("/dev/fd").iterdir()))
resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + num_more, num_open + num_possible))
try:
    print(first_rows(cache.open_all([request(number) for number in range(60)])) == [*range(60)])
except StagingError as error:
    print(type(error.__cause__).__name__, error)
print(len(list(Path("/dev/fd").iterdir())) - num_open)
"""


def test_more_entries_than_the_soft_limit_allows_are_opened(tmp_path: Path) -> None:
    assert run_python(_MANY, tmp_path, 50, 400).stdout == "True\n0\n"


def test_more_entries_than_the_hard_limit_allows_are_an_error_that_names_it(tmp_path: Path) -> None:
    text, num_left_open = run_python(_MANY, tmp_path, 50, 60).stdout.splitlines()
    assert "60 files of decoded columns: expected to open 120 descriptors, found a limit" in text
    assert "raise the hard limit of open files (ulimit -n), compact the table" in text
    assert text.startswith("StagingError ")
    assert num_left_open == "0"
