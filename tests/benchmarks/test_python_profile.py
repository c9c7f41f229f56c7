"""CPU time is told by the Python function that takes it."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from loader_parts.python_profile import functions_of, python_profile

HERE = Path(__file__).parent
STACKS = """\
Stack (most recent call first):
  File "/lib/python3.11/threading.py", line 320 in wait
  File "/house/featstore/loader/pipeline.py", line 60 in get
  File "/house/featstore/loader/iteration.py", line 10 in slices
Stack (most recent call first):
  File "/house/featstore/reading/pages.py", line 7 in _decoded
Stack (most recent call first):
  File "/house/featstore/reading/pages.py", line 9 in _decoded
Stack (most recent call first):
  File "/house/benchmarks/loader.py", line 1 in <module>
"""


def _count() -> int:
    total = 0
    for number in range(500_000):
        total += number & 3
    return total


def _epoch() -> Iterator[int]:
    """A thread that works, and one that only waits for it."""
    results = list[int]()
    worker = threading.Thread(target=lambda: results.append(_count()))
    worker.start()
    worker.join()
    return iter(results)


def test_a_sample_counts_for_the_innermost_function_of_the_package() -> None:
    assert functions_of(STACKS.splitlines(), Path("/house/featstore")) == {
        "reading/pages.py:_decoded": 0.5,
        "loader/pipeline.py:get": 0.25,
        "outside": 0.25,
    }


def test_the_function_that_works_is_told_and_the_signal_is_harmless_afterwards() -> None:
    shares = python_profile(_epoch, 0.5, HERE)
    assert max(shares, key=lambda name: shares[name]) == "test_python_profile.py:_count"
    assert shares["test_python_profile.py:_count"] > 0.8
    signal.raise_signal(signal.SIGPROF)
