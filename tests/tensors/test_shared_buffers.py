"""Memory that two processes share and that serves again."""

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from featstore.tensors.shared_batches import SharedBuffer, SharedBufferPool, are_supported, opened
from tests.forks import in_a_fork

pytestmark = pytest.mark.skipif(
    not are_supported(), reason="no memfd, or descriptors cannot be opened through /proc"
)


@pytest.fixture
def pool() -> SharedBufferPool:
    return SharedBufferPool()


def sent(pool: SharedBufferPool, content: bytes) -> SharedBuffer:
    """A buffer with this content, which nobody here refers to any more."""
    buffer, memory = pool.take(len(content))
    memory[:] = np.frombuffer(content, np.uint8)
    assert buffer.may_be_sent(memory.ctypes.data)
    return buffer


def test_what_one_wrote_the_other_reads_in_the_same_memory(pool: SharedBufferPool) -> None:
    memory = opened(sent(pool, b"batch").address, 5)
    assert memory.tobytes() == b"batch"
    again = opened(pool._buffers[0].address, 5)
    memory[0] = ord("B")
    assert again.tobytes() == b"Batch"


def test_a_piece_is_taken_again_once_the_receiver_needs_it_no_longer(
    pool: SharedBufferPool,
) -> None:
    buffer = sent(pool, bytes(1000))
    received = torch.from_numpy(opened(buffer.address, 1000))
    view = received[10:20].view(torch.int16)
    del received
    assert pool.take(1000)[0] is not buffer
    del view
    gc.collect()
    assert pool.take(1000)[0] is buffer


def test_a_piece_that_is_under_way_is_not_taken(pool: SharedBufferPool) -> None:
    buffer = sent(pool, bytes(1000))
    assert pool.take(1000)[0] is not buffer


def test_a_piece_that_the_writer_refers_to_is_not_taken(pool: SharedBufferPool) -> None:
    buffer, memory = pool.take(1000)
    tensor = torch.from_numpy(memory)
    del memory
    assert pool.take(1000)[0] is not buffer
    del tensor
    assert pool.take(1000)[0] is buffer


def test_a_piece_is_sent_to_one_receiver_at_a_time(pool: SharedBufferPool) -> None:
    buffer, kept = pool.take(8)
    place = kept.ctypes.data
    assert not buffer.may_be_sent(place + 8)
    assert buffer.may_be_sent(place)
    assert not buffer.may_be_sent(place)
    del kept
    received = opened(buffer.address, 8)
    assert not buffer.may_be_sent(place)
    del received
    assert buffer.may_be_sent(place)


def test_a_piece_that_is_too_small_makes_room_for_a_larger_one(pool: SharedBufferPool) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for num_bytes in (100, 1000, 10_000, 100_000):
        pool.take(num_bytes)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_of_many_pieces_that_came_back_only_some_are_kept(pool: SharedBufferPool) -> None:
    taken = [pool.take(1000) for _ in range(20)]
    assert len({id(buffer) for buffer, _ in taken}) == 20
    del taken
    pool.take(1000)
    assert len(pool._buffers) <= 3


def test_a_copy_of_the_receiver_that_was_forked_off_gives_nothing_back(
    pool: SharedBufferPool,
) -> None:
    buffer = sent(pool, b"12345678")
    received = opened(buffer.address, 8)
    held = [received]
    assert in_a_fork(held.clear) == 0
    assert not buffer.is_free
    del received


def test_what_a_forked_copy_may_still_see_is_not_written_to_again(pool: SharedBufferPool) -> None:
    """Neither what its parent had received, nor what its parent had made."""
    buffer, (mine, memory) = sent(pool, b"12345678"), pool.take(8)
    received = opened(buffer.address, 8)
    assert in_a_fork(int) == 0
    del received, memory
    assert pool.take(8)[0] not in (buffer, mine)
    again = pool.take(8)[0]
    assert pool.take(8)[0] is again


def test_a_process_that_was_forked_off_takes_none_of_its_parents_pieces(
    pool: SharedBufferPool,
) -> None:
    buffer, memory = pool.take(8)
    memory[:] = 1

    def take_and_send() -> bool:
        taken, other = pool.take(8)
        other[:] = 2
        return taken is buffer or buffer.may_be_sent(memory.ctypes.data)

    assert in_a_fork(take_and_send) == 0
    assert memory.tolist() == [1] * 8


MAKER = """
import pickle, sys
from featstore.tensors.shared_batches import SharedBufferPool
buffer, memory = SharedBufferPool().take(8)
memory[:] = 7
assert buffer.may_be_sent(memory.ctypes.data)
sys.stdout.buffer.write(pickle.dumps(buffer.address))
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_piece_of_another_process_is_there_as_long_as_that_process_or_whoever_has_opened_it() -> (
    None
):
    with subprocess.Popen(
        [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        address = pickle.load(process.stdout)
        received = opened(address, 8)
        process.communicate()
    assert received.tolist() == [7] * 8
    with pytest.raises(OSError, match="No such"):
        opened(address, 8)


def test_a_descriptor_that_is_another_file_by_now_is_refused(pool: SharedBufferPool) -> None:
    address = sent(pool, b"12345678").address
    pool._buffers.clear()
    gc.collect()
    file = os.open(Path(__file__), os.O_RDWR)
    try:
        assert file == address.descriptor
        with pytest.raises(FileNotFoundError, match="another one"):
            opened(address, 8)
    finally:
        os.close(file)
