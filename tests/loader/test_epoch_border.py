"""Checkpoints of ranks in step of an iteration of several epochs, of which some are in the next
epoch before others.
"""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from featstore.loader.feature_loader import FeatureLoader
from tests.parquet_files import put_row_files

pytestmark = pytest.mark.slow
# Of two or three ranks one has more splits than the others.
FILE_ROWS, NUM_EPOCHS = (40, 30, 40, 20, 40), 3
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
        known: dict[str, Any] = {"slots": ["row"], "batch_size": 10, "num_epochs": NUM_EPOCHS}
        known["shuffle"] = {"window_rows": 20, "interleave": 2}
        self._loaders, self._batches = [], list[Any]()
        if num_ranks > 1:
            store = f"sqlite://{url}-{next(_RUNS)}.sqlite"
            known["dispatch"] = {"store": store, "run_id": "a", "in_step": True}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WORLD_SIZE", str(num_ranks))
            for rank in range(num_ranks):
                patch.setenv("RANK", str(rank))
                loader = FeatureLoader(url, **known | options)
                if state is not None:
                    loader.load_state_dict(state)
                self._loaders.append(loader)
                self._batches.append(iter(loader.to_device("cpu") if is_fed else loader))
                self._batches[-1].state_dict()  # It begins, as this rank.

    def steps(self) -> Any:
        """Of each step the rows of all ranks, and their states."""
        with ThreadPoolExecutor(len(self._batches)) as threads:
            while True:
                found = list(threads.map(lambda batches: next(batches, None), self._batches))
                made = [each for each in found if each is not None and not each.is_padding]
                for loader, batch in zip(self._loaders, found, strict=True):
                    if batch is not None:
                        loader.ack()
                states = [loader.state_dict() for loader in self._loaders]
                yield [row for batch in made for row in batch["row"].tolist()], states
                if all(batch is None for batch in found):
                    break
        for loader in self._loaders:
            loader.close()

    def rows(self) -> list[int]:
        return [row for rows, _ in self.steps() for row in rows]


CASES = [
    *(("dynamic", tail, num_ranks, False) for tail in ("pad", "join") for num_ranks in (2, 3)),
    ("dynamic", "pad", 2, True),
    ("static", "pad", 2, False),
    ("rank", "pad", 2, False),
]


@pytest.mark.parametrize(("order", "tail", "num_ranks", "is_fed"), CASES)
def test_states_of_each_step_merge_and_continue_with_each_row_once_an_epoch(
    url: str, order: str, tail: str, num_ranks: int, is_fed: bool
) -> None:
    options: dict[str, Any] = {"order": order, "tail": tail}
    before, at_borders, num_steps = list[int](), 0, 0
    for rows, states in Ranks(url, num_ranks, is_fed=is_fed, **options).steps():
        before += rows
        num_steps += 1
        epochs = {state["epoch"] for state in states}
        is_border = len(epochs) > 1
        at_borders += is_border
        merged = FeatureLoader.merge_states(states)
        assert merged["epoch"] == min(epochs)
        if merged["epoch"] == NUM_EPOCHS:
            continue
        for num_resumed in (1, 2, 3) if is_border else (1,):
            rest = Ranks(url, num_resumed, merged, **options).rows()
            assert Counter(before + rest) == dict.fromkeys(range(NUM_ROWS), NUM_EPOCHS)
    assert len(before) == NUM_ROWS * NUM_EPOCHS
    assert 0 < at_borders < num_steps
