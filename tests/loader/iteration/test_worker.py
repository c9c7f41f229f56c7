"""Which worker a process is, by what its launcher and its DataLoader say."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from featstore.loader.iteration.worker import LoaderWorker


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


class Here(IterableDataset[LoaderWorker]):
    """Where each worker of a DataLoader finds itself."""

    def __iter__(self) -> Iterator[LoaderWorker]:
        yield LoaderWorker.here()


def places() -> list[LoaderWorker]:
    return list(DataLoader(Here(), batch_size=None, num_workers=2, multiprocessing_context="fork"))


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_rank_gets_the_same_batches_in_the_same_order_with_any_number_of_workers(
    num_ranks: int, per_rank: int
) -> None:
    for rank in range(num_ranks):
        asked_in_turn = [
            LoaderWorker(
                index=rank * per_rank + worker,
                num_workers=num_ranks * per_rank,
                session="s",
                is_dataloader=True,
                rank=rank,
                num_ranks=num_ranks,
            )
            for worker in range(per_rank)
        ]
        assert [worker.static_index for worker in asked_in_turn] == list(
            range(rank, num_ranks * per_rank, num_ranks)
        )
        assert {worker.num_siblings for worker in asked_in_turn} == {per_rank}


def test_a_process_of_its_own_is_the_only_worker() -> None:
    worker = LoaderWorker.here()
    assert (worker.index, worker.num_workers, worker.rank, worker.num_ranks) == (0, 1, 0, 1)
    assert not worker.is_dataloader
    assert not worker.in_step


@pytest.mark.parametrize(("world", "in_step"), [("1", False), ("", False), ("3", True)])
def test_a_rank_of_a_launcher_is_the_worker_of_its_number(
    monkeypatch: pytest.MonkeyPatch, world: str, in_step: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("RANK", "2" if in_step else "")
    worker = LoaderWorker.here()
    assert (worker.index, worker.num_workers, worker.in_step) == (
        (2, 3, True) if in_step else (0, 1, False)
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_a_dataloader_in_a_rank_are_numbered_through_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    found, others = places(), places()
    assert [(worker.index, worker.num_workers) for worker in found] == [(2, 6), (3, 6)]
    assert all(worker.is_dataloader and worker.in_step for worker in found)
    assert len({worker.session for worker in found}) == 1
    assert found[0].session != others[0].session
