import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import StateError
from featstore.decoded.file_sources import files_in_place
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.split_reader import SplitReader, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.shuffle import RowOrder
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import resolve
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.table.open import open_snapshot
from tests.parquet_files import put_parquet
from tests.programs import run_python
from tests.threads import beside

NUM_ROWS = 20_000


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of one row group: a number, the same in lists of 0 to 3, nulls among them."""
    row = np.arange(NUM_ROWS)
    tags = [None if r % 11 == 0 else [r] * (r % 4) for r in row.tolist()]
    return str(
        put_parquet(
            tmp_path_factory.mktemp("large") / "part.parquet",
            {"row": row, "tags": pa.array(tags, pa.list_(pa.int64()))},
            row_group_size=NUM_ROWS,
        ).parent
    )


def rows_of(url: Any, **options: Any) -> Any:
    with FeatureLoader(url, slots=["row", "tags"], batch_size=300, **options) as loader:
        return [
            (batch["row"].tolist(), [tags.tolist() for tags in batch["tags"]]) for batch in loader
        ]


@pytest.mark.parametrize("budget", [1, "100KB", "400KB"])
def test_a_row_group_larger_than_the_budget_is_read_in_slices(one_group: str, budget: Any) -> None:
    assert rows_of(one_group, memory_budget=budget) == rows_of(one_group)
    with FeatureLoader(one_group, slots=["row", "tags"], memory_budget=budget) as loader:
        assert sum(batch.num_rows for batch in loader) == NUM_ROWS
        assert loader.stats()["row_groups_sliced"] == 1


@pytest.mark.parametrize("num_batches", [1, 8, 40, 66])
def test_a_loader_resumes_within_a_slice(one_group: str, num_batches: int) -> None:
    with FeatureLoader(one_group, slots=["row"], batch_size=300, memory_budget="100KB") as loader:
        batches = iter(loader)
        for _ in range(num_batches):
            next(batches)
        loader.ack()
        state = loader.state_dict()
    with FeatureLoader(one_group, slots=["row"], batch_size=300, memory_budget="100KB") as loader:
        loader.load_state_dict(state)
        assert [row for batch in loader for row in batch["row"].tolist()] == list(
            range(num_batches * 300, NUM_ROWS)
        )


def test_a_shuffled_window_larger_than_the_budget_is_read_alone(one_group: str) -> None:
    shuffle = {"window_rows": 100}
    assert rows_of(one_group, shuffle=shuffle, memory_budget=1) == rows_of(
        one_group, shuffle=shuffle
    )


def test_static_order_in_slices_gives_each_row_once(one_group: str) -> None:
    options = {"order": "static", "memory_budget": "100KB"}
    assert rows_of(one_group, **options) == rows_of(one_group)


def test_the_size_of_decoded_columns_is_known_before_they_are(one_group: str) -> None:
    with OpenFile(Path(one_group) / "part.parquet") as footer:
        others = tuple(footer.schema.field(name) for name in ("row", "tags"))
        found = footer.decoded_bytes(footer.resolve(Selection(others=others)))[0].sum()
        assert (
            footer.arrow_file(None).read_row_group(0).nbytes
            <= found
            <= 1.5 * footer.arrow_file(None).read_row_group(0).nbytes
        )


def test_what_does_not_fit_waits_until_it_does() -> None:
    budget = Budget(100)
    assert budget.take(70) == 70
    with beside(partial(budget.take, 40)):
        assert budget.held_bytes == 70
        assert budget.exchange(70, 60) == 60
    assert budget.held_bytes == 100


def test_the_most_that_was_held_is_known() -> None:
    budget = Budget(100, peak_bytes=20)
    budget.exchange(budget.take(10), 0)
    assert budget.peak_bytes == 20
    budget.exchange(budget.take(70), 90)
    assert (budget.held_bytes, budget.peak_bytes) == (90, 90)
    budget.keep(90)
    budget.drawn(90)
    budget.let_go(90)
    assert (budget.held_bytes, budget.peak_bytes) == (0, 90)


def test_what_never_fits_goes_alone() -> None:
    budget = Budget(100)
    assert budget.take(500) == 500
    budget.exchange(500, 0)
    assert budget.take(101) == 101


def test_a_closed_budget_wakes_who_waits() -> None:
    budget, raised = Budget(10), []
    budget.take(10)

    def take() -> None:
        try:
            budget.take(1)
        except StateError as error:
            raised.append(error)

    with beside(take):
        budget.close()
    assert len(raised) == 1
    with pytest.raises(StateError, match="closed before its end"):
        budget.take(1)


@pytest.mark.parametrize(("size", "slices"), [(50, 1), (51, 3), (100, 4), (1000, 40)])
def test_a_row_group_above_half_of_the_budget_is_cut_into_quarters_of_it(
    size: int, slices: int
) -> None:
    assert Budget(100).num_slices(size) == slices
    assert Budget().num_slices(size) == 1


@pytest.fixture
def long_columns(tmp_path: Path) -> str:
    """Four columns that barely compress: 1 MB each in two row groups of 65,536 rows."""
    rng = np.random.default_rng(3)
    put_parquet(
        tmp_path / "part.parquet",
        {name: rng.integers(0, 2**62, 131_072) for name in "abcd"},
        row_group_size=65_536,
    )
    return str(tmp_path)


def test_a_column_that_needs_more_room_than_the_budget_leaves_goes_on_alone_and_is_told_once(
    long_columns: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FeatureLoader(long_columns, slots=list("abcd"), memory_budget="6MB") as loader:
        assert sum(batch.num_rows for batch in loader) == 131_072
        assert loader.stats()["row_groups_beyond_budget"] == 0
    with FeatureLoader(long_columns, slots=["a"], memory_budget="2MB") as loader:
        assert sum(batch.num_rows for batch in loader) == 131_072
        assert loader.stats()["row_groups_beyond_budget"] == 2
    told = [
        record.getMessage() for record in caplog.records if "memory_budget" in record.getMessage()
    ]
    assert len(told) == 1
    assert "part.parquet" in told[0]
    assert "the column is decoded alone" in told[0]


def test_the_room_is_given_back_once_rows_are_decoded(long_columns: str) -> None:
    [file], request = (
        open_snapshot(long_columns).data_files,
        resolve(open_snapshot(long_columns).schema, slots=["a"]),
    )
    claim = Claim(
        index=0, split=Split(path=file.path, num_rows=file.num_rows), fence=1, start_row=0
    )
    work = Work(
        claim=claim,
        partition=Partition(values={}, is_decided=True),
        files=files_in_place(file),
    )
    budget = Budget(64_000_000)
    order = RowOrder(seed=0, epoch=0, shuffle=None)
    reader = SplitReader(work, request=request, order=order, stats=Stats(), budget=budget)
    [window] = reader.read()
    assert budget.held_bytes == window.held_bytes == reader._reader.size_bytes(range(1))
    reader.close()


PEAK_MEMORY = """
import sys
import pyarrow as pa
from featstore import FeatureLoader

options, num_rows = {"batch_size": 8192, "memory_budget": sys.argv[2], "decode_threads": 16}, 0
with FeatureLoader(sys.argv[1], slots=["s*"], **options) as loader:
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        num_rows += batch.num_rows
        del batch  # What a loop keeps while it asks for the next one is beyond the budget.
    print(num_rows, pa.default_memory_pool().max_memory())
"""


@pytest.mark.slow
def test_sixteen_threads_take_no_more_memory_than_the_budget(tmp_path: Path) -> None:
    """Row groups of 32 MB in columns of 2 MB: with room of its own each thread would take 64 MB
    more.
    """
    rows = np.random.default_rng(5).integers(0, 2**62, 3 * 262_144)
    put_parquet(
        tmp_path / "part.parquet",
        {f"s{i}": rows + i for i in range(16)},
        row_group_size=262_144,
        compression="none",
        use_dictionary=False,
    )

    def peak_bytes(memory_budget: str) -> int:
        found = run_python(PEAK_MEMORY, tmp_path, memory_budget).stdout.split()
        assert int(found[0]) == len(rows)
        return int(found[1])

    # Without a bound the first row group alone takes 32 MB and the room of all threads.
    assert peak_bytes("90MB") < 90_000_000 < peak_bytes("1GB")


def test_windows_of_shuffled_rows_and_what_is_gathered_of_them_stay_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {f"c{number}": pa.array(range(8000), pa.int64()) for number in range(20)}
    for number in range(8):
        put_parquet(tmp_path / f"{number}.parquet", columns, row_group_size=1000)
    max_bytes = 2_700_000  # Eight windows of 1,000 rows of 160 bytes take not quite a half.
    most_bytes = [0]

    def counted(name: str) -> None:
        method = getattr(Budget, name)

        def wrapped(budget: Budget, *arguments: int) -> Any:
            found = method(budget, *arguments)
            most_bytes[0] = max(most_bytes[0], budget.held_bytes)
            return found

        monkeypatch.setattr(Budget, name, wrapped)

    for name in ("take", "exchange", "keep"):
        counted(name)
    with FeatureLoader(
        str(tmp_path),
        slots=["*"],
        batch_size=256,
        shuffle={"window_rows": 8000, "interleave": 8},
        memory_budget=max_bytes,
    ) as loader:
        assert sum(batch.num_rows for batch in loader) == 64_000
        assert "interleave_reduced" not in loader.stats()
    assert max_bytes // 2 < most_bytes[0] <= max_bytes


def test_the_decoding_thread_waits_for_windows_that_are_drawn_and_not_for_open_ones() -> None:
    budget = Budget(100)
    with budget.held_window(70, 10) as held_bytes:
        budget.exchange(held_bytes, 70)
    budget.keep(70)
    with budget.held_window(70, 10) as held_bytes:  # The open window would never be let go.
        budget.exchange(held_bytes, 70)
    budget.keep(70)
    budget.drawn(70)
    let_go = threading.Event()

    def later() -> None:
        let_go.set()
        budget.let_go(70)

    threading.Timer(0.05, later).start()
    with budget.held_window(70, 10):
        assert let_go.is_set()


def test_a_window_waits_until_the_budget_is_closed() -> None:
    budget = Budget(100)
    budget.take(90)
    threading.Timer(0.05, budget.close).start()
    with pytest.raises(StateError, match="closed before its end"), budget.held_window(70, 10):
        pass


def kept_windows(budget: Budget) -> int:
    """How many windows of 10 bytes are kept once no more may be read ahead."""
    num_kept = 0
    while budget.fits_ahead(10, 0):
        with budget.held_window(10, 0) as held_bytes:
            pass
        budget.keep(held_bytes)
        num_kept += 1
    return num_kept


@pytest.mark.parametrize(
    ("max_bytes", "open_bytes", "expected"),
    [(1000, 0, 1), (1000, 10, 2), (1000, 20, 3), (1000, 80, 10), (100, 80, 7)],
)
def test_windows_take_a_quarter_as_much_as_the_open_ones_or_one_more_and_never_more_than_their_part(
    max_bytes: int, open_bytes: int, expected: int
) -> None:
    budget = Budget(max_bytes)
    budget.limit_windows(open_bytes, largest_bytes=10)
    assert kept_windows(budget) == expected


def test_bytes_that_are_held_within_a_block_are_given_back_at_its_end() -> None:
    budget = Budget(10)
    with budget.held_within(7):
        assert budget.held_bytes == 7
    assert budget.held_bytes == 0
    with pytest.raises(KeyError), budget.held_within(7):
        raise KeyError
    assert budget.held_bytes == 0
