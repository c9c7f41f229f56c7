"""How long a stage waited until what it made was taken from it."""

import time
from collections.abc import Generator
from typing import TypeVar

from featstore.loader.stats import Stats

Item = TypeVar("Item")


def paced(items: Generator[Item, None, None], stats: Stats, name: str) -> Generator[Item, None, None]:
    """The items; the time between one and the asking for the next is the queue's that they go into, and counted as `name`."""
    try:
        for item in items:
            started = time.perf_counter()
            yield item
            stats.seconds[name] += time.perf_counter() - started
            del item
    finally:
        items.close()
