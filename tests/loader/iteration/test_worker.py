"""Which worker a process is, by what its launcher and its DataLoader say."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from featstore.dispatch.receipt import receipts
from featstore.loader.iteration.worker import LoaderWorker, host_name, worker_name
from tests.programs import run_on_host


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("FEATSTORE_WORKER", raising=False)


PROGRAM = """
import sys
import featstore

table, store, is_last = sys.argv[1], sys.argv[2], sys.argv[3] == "last"
dispatch = {"store": store, "run_id": "r"}
with featstore.FeatureLoader(table, slots=["row"], batch_size=20, dispatch=dispatch) as loader:
    for batch in loader:
        loader.ack()
        if not is_last:
            break
"""


class Here(IterableDataset[LoaderWorker]):
    """Where each worker of a DataLoader finds itself."""

    def __iter__(self) -> Iterator[LoaderWorker]:
        yield LoaderWorker.here()


class Name(IterableDataset[str]):
    """What each worker of a DataLoader is called."""

    def __iter__(self) -> Iterator[str]:
        yield worker_name()


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


def test_a_worker_is_named_by_host_process_and_digits_that_are_new_each_time() -> None:
    found = {worker_name() for _ in range(100)}
    assert len(found) == 100
    assert all(re.fullmatch(rf"{host_name()}-{os.getpid()}-[0-9a-f]{{6}}", name) for name in found)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("trainer-7f9c.training.svc.cluster.local", "trainer-7f9c"),
        ("worker", "worker"),
        ("(none)", "_none_"),
        ("a" + 62 * "b" + "-17", 60 * "b" + "-17"),
    ],
)
def test_a_host_is_named_up_to_its_first_dot_in_characters_that_fit_anywhere(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert host_name() == name


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_any_value_of_the_variable_makes_a_name_that_is_short_and_safe(value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEATSTORE_WORKER", value.encode(errors="replace").decode())
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,63}-[0-9a-f]{6}", worker_name())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_dataloader_share_the_variable_and_no_name(
    monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setenv("FEATSTORE_WORKER", "eval/7")
    names = list(DataLoader(Name(), None, num_workers=2, multiprocessing_context=start))
    assert len({*names, worker_name()}) == 3
    assert all(re.fullmatch(r"eval_7-[0-9a-f]{6}", name) for name in names)


@pytest.mark.slow
def test_process_1_of_each_of_three_hosts_has_a_name_of_its_own(
    table_url: str, tmp_path: Path
) -> None:
    """The third of them starts again, and reads the rest."""
    store = f"sqlite://{tmp_path}/x.db"
    hosts = ["trainer-b", "trainer-c", "trainer-a", "trainer-a"]
    for host, what in zip(hosts, ("first", "first", "first", "last"), strict=True):
        run_on_host(f"{host}.training.svc", PROGRAM, table_url, store, what)
    (receipt,) = receipts(store, "r").values()
    assert receipt.missing == 0
    assert set(receipt.indices.values()) == {0}
    names = [re.fullmatch(r"(.*)-1-[0-9a-f]{6}", name) for name in receipt.workers]
    assert sorted(name[1] for name in names if name) == sorted(hosts)
