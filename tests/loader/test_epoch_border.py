"""Checkpoints of ranks in step in an iteration of several epochs, of which some are in the next
epoch before others.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from featstore.dispatch.receipt import receipts
from featstore.loader.feature_loader import FeatureLoader
from tests.parquet_files import put_row_files

# Of two or three ranks one has more splits than the others.
FILE_ROWS = (40, 30, 40, 20, 40)
NUM_ROWS = sum(FILE_ROWS)
_RUNS = itertools.count()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("border")
    return str(put_row_files(root / "table", list(FILE_ROWS), row_group_size=10))


class Ranks:
    """Ranks that train in step, in one process."""

    def __init__(
        self, url: str, num_ranks: int, state: Any = None, *, is_fed: bool = False, **options: Any
    ) -> None:
        known: dict[str, Any] = {"slots": ["row"], "batch_size": 10}
        known["shuffle"] = {"window_rows": 20, "interleave": 2}
        self.loaders, self._batches = [], list[Any]()
        self.store = f"sqlite://{url}-{next(_RUNS)}.sqlite"
        in_step = True if num_ranks > 1 else "auto"
        known["dispatch"] = {"store": self.store, "run_id": "a", "in_step": in_step}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WORLD_SIZE", str(num_ranks))
            for rank in range(num_ranks):
                patch.setenv("RANK", str(rank))
                loader = FeatureLoader(url, **known | options)
                if state is not None:
                    loader.load_state_dict(state)
                self.loaders.append(loader)
                self._batches.append(iter(loader.to_device("cpu") if is_fed else loader))
                self._batches[-1].state_dict()  # It begins, as this rank.

    def steps(self) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
        """Of each step the rows of all ranks, and their states."""
        with ExitStack() as open_ones:
            threads = open_ones.enter_context(ThreadPoolExecutor(len(self._batches)))
            for loader in self.loaders:  # If a rank fails, no other waits for it.
                open_ones.callback(loader.close)
            while True:
                asked = [threads.submit(next, batches, None) for batches in self._batches]
                found = [each.result() for each in asked]
                made = [each for each in found if each is not None and not each.is_padding]
                for loader, batch in zip(self.loaders, found, strict=True):
                    if batch is not None:
                        loader.ack()
                states = [loader.state_dict() for loader in self.loaders]
                yield [row for batch in made for row in batch["row"].tolist()], states
                if all(batch is None for batch in found):
                    return

    def rows(self) -> list[int]:
        return [row for rows, _ in self.steps() for row in rows]

    @property
    def num_dropped(self) -> int:
        """Rows that tail `drop` has left out."""
        return sum(loader.stats().get("rows_dropped_tail", 0) for loader in self.loaders)


def is_border(states: list[dict[str, Any]]) -> bool:
    return len({state["epoch"] for state in states}) > 1


def to_border(ranks: Ranks) -> tuple[list[int], dict[str, Any]]:
    """The rows and the merged state of the steps to the first border."""
    before = list[int]()
    for rows, states in ranks.steps():
        before += rows
        if is_border(states):
            break
    merged = FeatureLoader.merge_states(states)
    assert merged["epoch"] == 0
    assert "ahead" in merged
    return before, merged


def slow(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


CASES = [
    ("static", "pad", 2, False),
    ("rank", "pad", 2, False),
    *(slow("dynamic", tail, 2, False) for tail in ("pad", "join", "drop")),
    slow("dynamic", "join", 3, False),
    slow("dynamic", "pad", 2, True),
]


@pytest.mark.parametrize(("order", "tail", "num_ranks", "is_fed"), CASES)
def test_states_of_a_border_merge_and_continue_with_each_row_once_an_epoch(
    url: str, order: str, tail: str, num_ranks: int, is_fed: bool
) -> None:
    options: dict[str, Any] = {"order": order, "tail": tail, "num_epochs": 2}
    before, borders, num_steps, was_border = list[int](), 0, 0, False
    ranks = Ranks(url, num_ranks, is_fed=is_fed, **options)
    for rows, states in ranks.steps():
        before += rows
        num_steps += 1
        merged = FeatureLoader.merge_states(states)
        assert merged["epoch"] == min(state["epoch"] for state in states)
        is_near, was_border = is_border(states) or was_border, is_border(states)
        if not is_near or merged["epoch"] == 2:
            continue
        borders += was_border
        for number in (1, 2, 3) if borders == 1 and was_border else (1,):
            resumed = Ranks(url, number, merged, **options)
            counts = Counter(before + resumed.rows())
            assert counts.total() + resumed.num_dropped == 2 * NUM_ROWS
            assert counts.keys() == {*range(NUM_ROWS)}
            assert max(counts.values()) == 2
            assert number == 1 or not resumed.num_dropped or tail == "drop"
    assert len(before) + ranks.num_dropped == 2 * NUM_ROWS
    # An odd number of batches has no even shares.
    assert 0 < borders < num_steps


def test_what_was_delivered_of_the_next_epoch_is_kept_to_its_receipt(url: str) -> None:
    """In the order in which ranks claim: the states of one border, continued by one rank."""
    before, merged = to_border(Ranks(url, 2, num_epochs=2))
    resumed = Ranks(url, 1, merged, num_epochs=2)
    assert Counter(before + resumed.rows()) == dict.fromkeys(range(NUM_ROWS), 2)
    found = [*receipts(resumed.store, "a").values()]
    assert [each.delivered for each in found] == [NUM_ROWS, NUM_ROWS]
    assert sum(each.size.rows_before for each in found) == len(before)
    assert found[1].size.rows_before > 0


@pytest.mark.parametrize("order", ["static", slow("dynamic")])
def test_ranks_that_continue_between_two_epochs_are_saved_at_the_same_border_and_at_the_next(
    url: str, order: str
) -> None:
    options: dict[str, Any] = {"order": order, "tail": "pad", "num_epochs": 3}
    before, merged = to_border(Ranks(url, 2, **options))
    borders = 0
    for rows, states in Ranks(url, 3, merged, **options).steps():
        before += rows
        borders += is_border(states)
        again = FeatureLoader.merge_states(states)
        if again["epoch"] < 3 and "ahead" in again:
            rest = Ranks(url, 1, again, **options).rows()
            assert Counter(before + rest) == dict.fromkeys(range(NUM_ROWS), 3)
    assert borders > 1 or order == "dynamic"  # There shares are chance.
