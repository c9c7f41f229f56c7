"""Where Arrow takes memory from while rows are extracted."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Within the block Arrow takes memory from the C library, which keeps what one batch freed for the next.

    Arrow's own pool returns it to the system within milliseconds, and the system clears each page that it gives again: a sixth
    of an extraction of 400 slots. Of a process's threads all are concerned, and none is harmed.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
