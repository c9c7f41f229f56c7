"""What a loop iterates: when a run begins and ends, and what is delivered at each step."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from featstore.base.errors import StateError
from featstore.base.named_errors import NamedErrors
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.iteration.iteration import Iteration
from featstore.loader.iteration.worker import LoaderWorker
from tests.loader.conftest import NUM_ROWS, rows_of, source_of
from tests.process import our_threads

ALONE = LoaderWorker(index=0, num_workers=1, session="direct", is_dataloader=False)


class Owner:
    """A loader, and how often it began a run."""

    def __init__(self, loader: FeatureLoader) -> None:
        self.loader, self.num_begun = loader, 0
        self.told: list[bool] = []
        self.iteration: Iteration | None = None

    @property
    def is_awaiting_shares(self) -> bool:
        return source_of(self.loader).is_awaiting_shares

    @property
    def named_errors(self) -> NamedErrors:
        return source_of(self.loader).named_errors

    def begin_iteration(self, worker: LoaderWorker) -> Iteration:
        self.num_begun += 1
        self.iteration = source_of(self.loader).begin_iteration(worker)
        return self.iteration

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state)

    def tell_stats(self, *, is_last: bool) -> None:
        self.told.append(is_last)


@pytest.fixture
def owner(table_url: str) -> Iterator[Owner]:
    with FeatureLoader(table_url, slots=["row"], batch_size=60) as loader:
        yield Owner(loader)
    assert not our_threads()


def test_a_run_begins_when_the_first_batch_is_asked_for_and_only_once(owner: Owner) -> None:
    iteration = BatchIterator(owner, ALONE)
    assert owner.num_begun == 0
    assert rows_of(iteration) == list(range(NUM_ROWS))
    assert list(iteration) == []
    assert owner.num_begun == 1


def test_one_that_has_not_begun_has_nothing_to_acknowledge(owner: Owner) -> None:
    iteration = BatchIterator(owner, ALONE)
    iteration.acknowledge()
    iteration.give()
    assert owner.num_begun == 0


def test_an_iteration_that_nobody_has_any_more_ends_its_threads(owner: Owner) -> None:
    iteration = BatchIterator(owner, ALONE)
    next(iteration)
    assert our_threads()
    del iteration
    assert not our_threads()


def test_a_closed_iteration_says_so_and_may_be_closed_again(owner: Owner) -> None:
    iteration = BatchIterator(owner, ALONE)
    next(iteration)
    for _ in range(2):
        iteration.close()
        assert not our_threads()
        with pytest.raises(StateError, match="closed before its end"):
            next(iteration)


def test_its_state_counts_the_batch_that_was_handed_out_and_goes_on_behind_it(
    owner: Owner,
) -> None:
    iteration = BatchIterator(owner, ALONE)
    before = rows_of(islice(iteration, 2))
    state = iteration.state_dict()
    iteration.close()
    other = BatchIterator(owner, ALONE)
    other.load_state_dict(state)
    assert before + rows_of(other) == list(range(NUM_ROWS))


def test_a_batch_that_was_made_ahead_is_delivered_only_when_the_consumer_says_so(
    owner: Owner,
) -> None:
    iteration = BatchIterator(owner, ALONE).run_ahead()
    list(islice(iteration, 3))
    run = owner.iteration
    assert run is not None
    iteration.acknowledge()
    assert dict(run.delivery.state.done) == {}
    iteration.give()
    iteration.acknowledge()
    assert dict(run.delivery.state.done) == {0: 60}
    iteration.close()


def test_an_iterator_that_is_not_used_skips_no_epoch_and_ends_no_other(
    table_url: str,
) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=60, shuffle=True) as loader:
        epochs = [rows_of(loader) for _ in range(2)]
        loader.set_epoch(0)
        iter(loader)
        used = iter(loader)
        found = next(used)["row"].tolist()
        iter(loader)
        assert found + rows_of(used) == epochs[0]
        iter(loader)
        assert rows_of(loader) == epochs[1]


def test_an_iteration_ends_the_one_before_when_its_first_batch_is_asked_for(owner: Owner) -> None:
    first, second = iter(owner.loader), iter(owner.loader)
    next(first)
    next(second)
    with pytest.raises(StateError, match="closed before its end"):
        next(first)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_iteration_that_pauses_stops_at_the_end_of_each_epoch(
    table_url: str, is_ahead: bool
) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=60, num_epochs=3) as loader:
        owner = Owner(loader)
        iteration = BatchIterator(owner, ALONE)
        iteration.begin().pauses = True
        if is_ahead:
            iteration.run_ahead()
        for epoch in range(3):
            assert iteration.begin().delivery.state.epoch == epoch
            rows = []
            for _ in range(5):
                rows += next(iteration)["row"].tolist()
                if is_ahead:
                    iteration.give()
                    iteration.acknowledge()
            assert rows == list(range(NUM_ROWS))
            assert next(iteration, None) is None
        assert list(iteration) == []
        assert owner.num_begun == 1
        assert owner.told == [*[False] * 15, True]


def test_at_a_pause_the_state_is_at_the_begin_of_the_next_epoch(table_url: str) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=60, num_epochs=2) as loader:
        iteration = BatchIterator(Owner(loader), ALONE)
        iteration.begin().pauses = True
        assert rows_of(iteration) == list(range(NUM_ROWS))
        state = iteration.state_dict()
        assert (state["epoch"], state["first_epoch"], state["complete"]) == (1, 0, [])
        assert rows_of(iteration) == list(range(NUM_ROWS))
