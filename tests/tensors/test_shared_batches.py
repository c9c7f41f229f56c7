"""Batches between processes: one shared-memory buffer each."""

import gc
import multiprocessing
import os
import pickle
import resource
import signal
from contextlib import nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from featstore.base.errors import SharedMemoryError, WorkerError
from featstore.tensors import shared_batches as module
from featstore.tensors.batch import Batch
from featstore.tensors.shared_batches import SharedColumns, shared
from tests.loader.conftest import loader_for
from tests.process import num_descriptors

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def content(batch: Batch) -> list[object]:
    columns = [batch[name] for name in batch.slots] + list(batch.labels.values())
    parts = [(c,) if torch.is_tensor(c) else (c.values, c.offsets) for c in columns]
    return [
        *(part.numpy().tobytes() for tensors in parts for part in tensors),
        batch.num_rows,
        batch.extras.to_pydict(),
    ]


@pytest.fixture
def batch(table_url: str) -> Batch:
    """A batch of a loader that has come to its end, and so has no file open."""
    with loader_for(table_url) as loader:
        return list(loader)[1]


def columns_of(batch: Batch) -> SharedColumns:
    assert isinstance(batch.columns, SharedColumns)
    return batch.columns


def is_shared(batch: Batch) -> bool:
    return isinstance(batch.columns, SharedColumns)


def test_a_shared_batch_is_equal_and_lies_in_one_piece_of_memory_with_its_extras(
    batch: Batch,
) -> None:
    found = shared(batch)
    assert is_shared(found)
    assert not is_shared(batch)
    assert content(found) == content(batch)
    memory = columns_of(found).memory
    begin, buffers = (
        memory.data_ptr(),
        [buffer for chunk in found.extras["note"].chunks for buffer in chunk.buffers()],
    )
    assert all(
        begin <= buffer.address < begin + len(memory) for buffer in buffers if buffer is not None
    )


def test_a_batch_without_extras_has_none_after_the_journey(table_url: str) -> None:
    with loader_for(table_url, extras=[]) as loader:
        assert shared(next(iter(loader))).extras.num_columns == 0


def test_a_batch_is_sent_as_it_is_and_its_memory_serves_again(batch: Batch) -> None:
    kept = shared(batch)
    before, places = num_descriptors(), set()
    for _ in range(10):
        found = shared(batch)
        places.add(columns_of(found).memory.data_ptr())
        message = ForkingPickler.dumps(found)
        assert len(message) < 3000
        del found
        received = pickle.loads(message)
        assert content(received) == content(batch)
        del received
    assert len(places) == 1
    assert num_descriptors() <= before + 2
    assert content(kept) == content(batch)


def test_a_batch_that_is_sent_twice_reaches_both_receivers(batch: Batch) -> None:
    found = shared(batch)
    messages = [ForkingPickler.dumps(found), ForkingPickler.dumps(found)]
    first, second = map(pickle.loads, messages)
    assert first.columns.memory.data_ptr() != second.columns.memory.data_ptr()
    del first, found
    shared(batch)["row"].zero_()
    assert content(second) == content(batch)


def test_a_received_batch_that_is_sent_on_is_a_copy(batch: Batch) -> None:
    received = pickle.loads(ForkingPickler.dumps(batch))
    further = pickle.loads(ForkingPickler.dumps(received))
    del received
    for _ in range(3):
        shared(batch)["row"].zero_()
    assert content(further) == content(batch)


def test_extras_stay_what_they_are_when_torch_has_moved_the_tensors_elsewhere(batch: Batch) -> None:
    expected = batch.extras.to_pydict()
    for found in (shared(batch), pickle.loads(ForkingPickler.dumps(batch))):
        extras = found.extras
        found["row"].share_memory_()
        del found
        for _ in range(3):
            again = shared(batch)
            columns = columns_of(again)
            assert columns.shared_buffer is not None
            columns.shared_buffer.memory(len(columns.memory))[:] = 255
            del columns
        assert extras.to_pydict() == expected


def test_a_batch_of_which_a_tensor_was_sent_by_itself_is_sent_as_a_copy(batch: Batch) -> None:
    found = shared(batch)
    kept = ForkingPickler.dumps(found["row"])  # to be received, it must not be thrown away
    others = [shared(batch) for _ in range(3)]
    for other in others:
        other["row"].zero_()
    assert content(pickle.loads(ForkingPickler.dumps(found))) == content(batch)
    assert torch.equal(pickle.loads(kept), batch["row"])


def test_too_few_descriptors_are_told_with_what_to_do() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(
            SharedMemoryError,
            match=r"Too many open files.*give the container more descriptors \(ulimit -n\)",
        ):
            module._taken(10**7)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def send_and_die(results: Any, table_url: str) -> None:
    with loader_for(table_url) as loader:
        results.send_bytes(ForkingPickler.dumps(next(iter(loader))))
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_died_before_its_batch_was_received_is_named(table_url: str) -> None:
    results, sender = multiprocessing.Pipe(duplex=False)
    spawning = multiprocessing.get_context("spawn")
    worker = spawning.Process(target=send_and_die, args=(sender, table_url))
    worker.start()
    message = results.recv_bytes()
    assert worker.pid is not None
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody was told yet
    said = rf"^DataLoader worker \(pid {worker.pid}\) died before its batch was received"
    with pytest.raises(WorkerError, match=said):
        pickle.loads(message)
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    with pytest.raises(WorkerError, match=said):
        pickle.loads(message)


def test_a_batch_that_cannot_be_opened_for_want_of_descriptors_is_told(batch: Batch) -> None:
    message = ForkingPickler.dumps(shared(batch))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(SharedMemoryError, match=r"cannot be read: .*Too many open files"):
            pickle.loads(message)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_batch_costs_one_descriptor_where_torch_passes_it(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "are_supported", lambda: False)
    gc.collect()  # What earlier tests left is closed now, and not meanwhile.
    before = num_descriptors()
    found = shared(batch)
    assert is_shared(found)
    assert num_descriptors() == before + 1
    message = ForkingPickler.dumps(found)
    received = pickle.loads(message)
    assert content(received) == content(batch)
    assert received.columns.memory.is_shared()


def test_the_batches_of_workers_cost_one_descriptor_each(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = iter(DataLoader(loader, batch_size=None, num_workers=1))
        kept = [next(batches)]
        gc.collect()
        before = num_descriptors()
        kept += [next(batches) for _ in range(8)]
        assert num_descriptors() == before + 8
        assert all(is_shared(batch) for batch in kept)
        expected = list(loader_for(table_url))
        assert [content(batch) for batch in kept] == [content(batch) for batch in expected[:9]]
        del batches


def test_a_batch_from_a_worker_may_be_copied_pickled_and_moved_on(table_url: str) -> None:
    with loader_for(table_url) as loader:
        (first, *_) = DataLoader(loader, batch_size=None, num_workers=1)
    assert is_shared(first)
    for other in (first.clone(), first.to("cpu"), pickle.loads(pickle.dumps(first))):
        assert content(other) == content(first)
    assert first.to("meta")["row"].is_meta


def test_a_pinning_dataloader_works_where_nothing_can_be_pinned(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = DataLoader(loader, batch_size=None, num_workers=2, pin_memory=True)
        with (
            nullcontext()
            if torch.accelerator.is_available()
            else pytest.warns(UserWarning, match="no accelerator is found")
        ):
            rows = [row for batch in batches for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(280))


@pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="pins memory, which needs an accelerator"
)
def test_a_pinned_batch_of_a_worker_is_one_pinned_buffer(table_url: str) -> None:
    with loader_for(table_url) as loader:
        for batch in DataLoader(loader, batch_size=None, num_workers=2, pin_memory=True):
            assert batch.columns.is_pinned
            assert batch["row"].is_pinned()


@pytest.mark.parametrize("take", [module._taken, module._shared_memory])
def test_no_room_in_shared_memory_is_told_with_what_to_do(take: Any) -> None:
    with pytest.raises(
        SharedMemoryError,
        match=r"no room in shared memory: .*give the container more.*smaller batch_size",
    ):
        take(10**15)


def test_extras_of_every_type_arrive(batch: Batch) -> None:
    table = pa.table(
        {"a": [[1], None, []], "b": ["x", None, "z"], "c": pa.array([1, 2, 1]).dictionary_encode()}
    )
    found = shared(Batch(batch.columns, num_rows=batch.num_rows, extras=table.slice(1)))
    assert found.extras.equals(table.slice(1))
