"""Workers whose loops have paces of their own: each row once, and how often the store is asked."""

import math
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader

from featstore.dispatch.lease import Lease
from featstore.dispatch.options import Dispatch
from featstore.dispatch.stores.memory import MemoryStore
from featstore.loader.feature_loader import FeatureLoader
from featstore.tools.cli import cli
from tests.loader.conftest import rows_table
from tests.parquet_files import put_parquet
from tests.process import await_that, our_threads
from tests.threads import run_together

BATCH_ROWS = 10


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve files of 1,000 rows."""
    root = tmp_path_factory.mktemp("table")
    for index in range(12):
        rows = rows_table(1000 * index, 1000).select(["row", "click", "half"])
        put_parquet(root / f"{index:02}.parquet", rows, row_group_size=500)
    return str(root)


@pytest.fixture
def reserving(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets for how many seconds rows are reserved ahead."""
    terms: Any = vars(Dispatch)["terms"].fget

    def set_to(reserve_s: float) -> None:
        short = property(lambda dispatch: replace(terms(dispatch), reserve_s=reserve_s))
        monkeypatch.setattr(Dispatch, "terms", short)

    return set_to


def loader_of(table: str, store: str, **options: Any) -> FeatureLoader:
    dispatch = {"store": store, "run_id": "r", **options.pop("dispatch", {})}
    return FeatureLoader(
        table, **{"slots": ["row"], "batch_size": BATCH_ROWS, "dispatch": dispatch, **options}
    )


ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": {"window_rows": 600, "interleave": 1}},
    {"shuffle": {"window_rows": 1800, "interleave": 3}},
    {"where": "row % 3 = 1"},
]


@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_workers_of_different_paces_read_each_row_once_and_can_be_replayed(
    table: str, tmp_path: Path, reserving: Callable[[float], None], options: dict[str, Any]
) -> None:
    """The slow ones have rows taken from them, at any row, while they make batches of them."""
    reserving(0.02)
    store = f"sqlite://{tmp_path}/s.sqlite"
    rows = [list[int]() for _ in range(3)]

    loaders, iterations = begun(3, table, store, dispatch={"in_step": False}, **options)

    def read(number: int, pause_s: float) -> None:
        for batch in iterations[number]:
            rows[number] += batch["row"].tolist()
            time.sleep(pause_s)

    run_together(lambda: read(0, 0.03), lambda: read(1, 0.0), lambda: read(2, 0.002))
    for loader in loaders:
        loader.close()
    found = Counter(row for each in rows for row in each)
    wanted = [row for row in range(12_000) if "where" not in options or row % 3 == 1]
    assert found == Counter(wanted)
    assert len(rows[0]) < len(rows[1])
    assert not our_threads()
    cuts = [at for lease in leases_in(store) for at in lease.cuts]
    assert any(at % 500 for at in cuts)  # Within a row group, or a window.
    done = CliRunner().invoke(
        cli, ["dispatch", "receipt", store, "--run-id", "r", "--save", f"{tmp_path}/order.json"]
    )
    assert done.exit_code == 0, done.output
    if options.get("shuffle", {}).get("interleave", 1) == 1:
        require_replayed(table, tmp_path, rows, options)


def require_replayed(
    table: str, path: Path, rows: list[list[int]], options: dict[str, Any]
) -> None:
    """Replayed, each worker delivers the rows that it had, in their order."""
    order = {"kind": "replay", "recording": str(path / "order.json")}
    loaders, iterations = begun(3, table, f"sqlite://{path}/replay.sqlite", order=order, **options)
    again = [[row for batch in each for row in batch["row"].tolist()] for each in iterations]
    for loader in loaders:
        loader.close()
    assert again == rows


def leases_in(store: str) -> list[Lease]:
    """All leases of the latest epoch that a store holds."""
    with closing(sqlite3.connect(store.removeprefix("sqlite://"))) as connection:
        values = [text for _, text in connection.execute("select * from entries")]
    return [Lease.decode(text) for text in values if '"fence"' in text]


def begun(num_ranks: int, table: str, store: str, **options: Any) -> Any:
    """The loaders of so many ranks, and their iterations, begun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", str(num_ranks))
        loaders = [loader_of(table, store, **options) for _ in range(num_ranks)]
        iterations = []
        for rank, loader in enumerate(loaders):
            patch.setenv("RANK", str(rank))
            iterations.append(iter(loader))
            iterations[-1].begin()
    return loaders, iterations


@pytest.fixture(scope="module")
def long_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file of 20,000 rows."""
    root = tmp_path_factory.mktemp("long")
    rows = rows_table(0, 20_000).select(["row", "click", "half"])
    put_parquet(root / "0.parquet", rows, row_group_size=5_000)
    return str(root)


@pytest.fixture(scope="module")
def short_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file of 2,005 rows, for ranks most of which find no split of their own."""
    root = tmp_path_factory.mktemp("short")
    rows = rows_table(0, 2_005).select(["row", "click", "half"])
    put_parquet(root / "0.parquet", rows, row_group_size=500)
    return str(root)


@pytest.mark.parametrize("tail", ["join", "pad", "drop"])
@pytest.mark.parametrize("options", ORDERS[:3], ids=str)
def test_ranks_that_take_rows_from_each_other_make_equally_many_steps_of_whole_batches(
    short_table: str,
    tmp_path: Path,
    reserving: Callable[[float], None],
    tail: str,
    options: dict[str, Any],
) -> None:
    """Whole but where a rank has no rows left: it has fewer only until it takes some of another's.
    Tail `drop` leaves out what two ranks have reserved when the third has nothing left: two or
    three batches each, at 5,000 rows a second or less.
    """
    reserving(0.005)
    options = {**options, "tail": tail, "weight": "half"}
    store = f"sqlite://{tmp_path}/s.sqlite"
    loaders, iterations = begun(3, short_table, store, **options)
    steps, together = [list[list[int]]() for _ in range(3)], threading.Barrier(3)

    def train(rank: int) -> None:
        for batch in iterations[rank]:
            if tail != "join":
                together.wait(60)  # As a collective operation does.
            steps[rank].append([] if batch.is_padding else batch["row"].tolist())
            time.sleep(0.002)

    run_together(*(partial(train, rank) for rank in range(3)))
    for loader in loaders:
        loader.close()
    counts = Counter(row for of_rank in steps for rows in of_rank for row in rows)
    assert max(counts.values()) == 1
    num_dropped = 2_005 - len(counts)
    assert num_dropped == 0 if tail != "drop" else num_dropped < 100
    if tail != "join":
        assert len({len(of_rank) for of_rank in steps}) == 1
    short = [len(rows) for of_rank in steps for rows in of_rank if 0 < len(rows) < BATCH_ROWS]
    assert len(short) <= len(leases_in(store))  # A rank runs out of rows once for each claim.
    assert all(len(rows) <= BATCH_ROWS for of_rank in steps for rows in of_rank)


@dataclass
class Asked:
    """What the store is asked, by thread."""

    verbs: list[tuple[str, str]] = field(default_factory=list)

    def num_of(self, thread: str) -> int:
        return sum(name == thread for _, name in self.verbs)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()

    def counted(verb: str) -> Callable[..., Any]:
        act = getattr(MemoryStore, verb)

        def noted(store: MemoryStore, *of: Any) -> Any:
            found.verbs.append((verb, threading.current_thread().name))
            return act(store, *of)

        return noted

    for verb in ("set", "add", "compare_set", "get_many"):
        monkeypatch.setattr(MemoryStore, verb, counted(verb))
    return found


@pytest.mark.parametrize(
    ("options", "most_a_second"),
    [({}, 4.0), ({"shuffle": {"window_rows": 12_000, "interleave": 12}}, 26)],
    ids=str,
)
def test_a_loop_of_ten_batches_a_second_asks_the_store_seldom(
    table: str, asked: Asked, options: dict[str, Any], most_a_second: float
) -> None:
    with FeatureLoader(table, slots=["row"], batch_size=BATCH_ROWS, **options) as loader:
        batches = iter(loader)
        for number in range(50):
            if number == 20:
                asked.verbs.clear()
                began = time.monotonic()
            next(batches)
            time.sleep(0.1)
        num_asked, seconds = len(asked.verbs), time.monotonic() - began
    assert 0 < num_asked <= most_a_second * seconds


def test_a_loop_that_becomes_faster_asks_the_store_a_logarithmic_number_of_times(
    long_table: str, asked: Asked, reserving: Callable[[float], None]
) -> None:
    reserving(1e4)  # The reports' thread asks next after a quarter of a lease.
    with FeatureLoader(long_table, slots=["row"], batch_size=BATCH_ROWS) as loader:
        batches = iter(loader)
        next(batches)
        asked.verbs.clear()
        assert sum(1 for _ in batches) == 1_999
    assert asked.num_of("MainThread") < 2 * math.log2(2_000)


def test_a_loop_that_becomes_slower_reserves_less(
    long_table: str, tmp_path: Path, reserving: Callable[[float], None]
) -> None:
    reserving(0.4)
    store = f"sqlite://{tmp_path}/s.sqlite"
    with loader_of(long_table, store) as loader:
        batches = iter(loader)

        def rows_ahead(num_batches: int, pause_s: float) -> int:
            for _ in range(num_batches):
                next(batches)
                time.sleep(pause_s)
            [lease] = leases_in(store)
            return lease.reserved - lease.rows

        fast, slow = rows_ahead(500, 0.001), rows_ahead(20, 0.1)
    assert fast > 200
    assert BATCH_ROWS <= slow < 150  # 100 rows a second, of which 0.4 s and what is made.


def test_a_pace_counts_the_rows_that_a_filter_leaves_out(long_table: str, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/s.sqlite"
    options = {"where": "row % 10 = 3", "dispatch": {"reserve_s": 0.4}}
    with loader_of(long_table, store, **options) as loader:
        batches = iter(loader)
        for number in range(60):
            if number == 5:
                began = time.monotonic()
            next(batches)
            time.sleep(0.02)
        seconds = time.monotonic() - began
        [lease] = leases_in(store)
    delivered_per_s = 55 * BATCH_ROWS / seconds
    assert 3 * delivered_per_s < lease.pace < 30 * delivered_per_s


@pytest.mark.parametrize("how", ["transform", "DataLoader", "device"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_that_are_made_ahead_of_a_slow_loop_are_nobody_elses(
    short_table: str, tmp_path: Path, reserving: Callable[[float], None], how: str
) -> None:
    reserving(0.02)
    store, rows = f"sqlite://{tmp_path}/s.sqlite", [list[int](), list[int]()]
    transforms = {"transform": lambda batch: {"twice": 2 * batch["row"]}}
    dispatch = {"in_step": False}

    def read(number: int, batches: Iterable[Any], pause_s: float) -> None:
        for batch in batches:
            rows[number] += batch["row"].tolist()
            time.sleep(pause_s)

    options = transforms if how == "transform" else {}
    with (
        loader_of(short_table, store, dispatch=dispatch, **options) as slow,
        loader_of(short_table, store, dispatch=dispatch) as fast,
    ):
        batches: Iterable[Any] = slow
        if how == "DataLoader":
            batches = DataLoader(slow, batch_size=None, num_workers=1, prefetch_factor=4)
        elif how == "device":
            batches = slow.to_device("cpu", prefetch=4)
        of_slow, of_fast = iter(batches), iter(fast)
        rows[0] += next(of_slow)["row"].tolist()
        # Batches are made ahead, and the store is told so.
        await_that(lambda: sum(lease.reserved for lease in leases_in(store)) >= 5 * BATCH_ROWS)
        of_fast.begin()
        run_together(partial(read, 0, of_slow, 0.03), partial(read, 1, of_fast, 0.002))
        del of_slow
    assert Counter(rows[0] + rows[1]) == Counter(range(2_005))
    assert len(rows[1]) > len(rows[0]) > 4 * BATCH_ROWS
