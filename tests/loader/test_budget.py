import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.errors import StateError
from featstore.loader.budget import Budget
from featstore.loader.loader import FeatureLoader
from featstore.reading.footer import Footer, Selection

NUM_ROWS = 20_000


@pytest.fixture(scope="module")
def one_group(tmp_path_factory) -> str:
    """A file of one row group: a number, the same in lists of 0 to 3, nulls among them."""
    row = np.arange(NUM_ROWS)
    tags = [None if r % 11 == 0 else [r] * (r % 4) for r in row.tolist()]
    path = tmp_path_factory.mktemp("large") / "part.parquet"
    pq.write_table(pa.table({"row": row, "tags": pa.array(tags, pa.list_(pa.int64()))}), path, row_group_size=NUM_ROWS)
    return str(path.parent)


def rows_of(url, **options):
    with FeatureLoader(url, slots=["row", "tags"], batch_size=300, **options) as loader:
        return [(batch["row"].tolist(), [tags.tolist() for tags in batch["tags"]]) for batch in loader]


@pytest.mark.parametrize("budget", [1, "100KB", "400KB"])
def test_a_row_group_larger_than_the_budget_is_read_in_slices(one_group, budget):
    assert rows_of(one_group, memory_budget=budget) == rows_of(one_group)
    with FeatureLoader(one_group, slots=["row", "tags"], memory_budget=budget) as loader:
        assert sum(batch.num_rows for batch in loader) == NUM_ROWS
        assert loader.stats()["row_groups_sliced"] == 1


@pytest.mark.parametrize("num_batches", [1, 8, 40, 66])
def test_a_loader_resumes_within_a_slice(one_group, num_batches):
    with FeatureLoader(one_group, slots=["row"], batch_size=300, memory_budget="100KB") as loader:
        batches = iter(loader)
        for _ in range(num_batches):
            next(batches)
        loader.ack()
        state = loader.state_dict()
    with FeatureLoader(one_group, slots=["row"], batch_size=300, memory_budget="100KB") as loader:
        loader.load_state_dict(state)
        assert [row for batch in loader for row in batch["row"].tolist()] == list(range(num_batches * 300, NUM_ROWS))


def test_a_shuffled_window_larger_than_the_budget_is_read_alone(one_group):
    shuffle = {"window_rows": 100}
    assert rows_of(one_group, shuffle=shuffle, memory_budget=1) == rows_of(one_group, shuffle=shuffle)


def test_static_order_in_slices_gives_each_row_once(one_group):
    options = {"order": "static", "memory_budget": "100KB"}
    assert rows_of(one_group, **options) == rows_of(one_group)


def test_the_size_of_decoded_columns_is_known_before_they_are(one_group):
    with Footer(Path(one_group) / "part.parquet") as footer:
        others = tuple(footer.schema.field(name) for name in ("row", "tags"))
        found = footer.decoded_bytes(0, footer.resolve(Selection(others=others)))
        assert footer.file.read_row_group(0).nbytes <= found <= 1.5 * footer.file.read_row_group(0).nbytes


def test_what_does_not_fit_waits_until_it_does():
    budget = Budget(100)
    assert budget.take(70) == 70
    waiting = threading.Thread(target=budget.take, args=(40,))
    waiting.start()
    assert budget.held_bytes == 70
    assert budget.exchange(70, 60) == 60
    waiting.join(10)
    assert budget.held_bytes == 100


def test_what_never_fits_goes_alone():
    budget = Budget(100)
    assert budget.take(500) == 500
    budget.exchange(500, 0)
    assert budget.take(101) == 101


def test_a_closed_budget_wakes_who_waits():
    budget, raised = Budget(10), []
    budget.take(10)

    def take() -> None:
        try:
            budget.take(1)
        except StateError as error:
            raised.append(error)

    waiting = threading.Thread(target=take)
    waiting.start()
    budget.close()
    waiting.join(10)
    assert len(raised) == 1
    with pytest.raises(StateError, match="closed before its end"):
        budget.take(1)


@pytest.mark.parametrize(("size", "slices"), [(50, 1), (51, 3), (100, 4), (1000, 40)])
def test_a_row_group_above_half_of_the_budget_is_cut_into_quarters_of_it(size, slices):
    assert Budget(100).num_slices(size) == slices
    assert Budget(None).num_slices(size) == 1
