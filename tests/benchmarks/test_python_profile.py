"""CPU time of threads is told by the Python function that takes it."""

import threading
from collections.abc import Iterator

from loader_parts.python_profile import python_profile


def _count() -> int:
    return sum(number & 3 for number in range(200_000))


def _epoch() -> Iterator[int]:
    """A thread that works, and one that only waits for it."""
    results = list[int]()
    worker = threading.Thread(target=lambda: results.append(_count()), name="worker")
    worker.start()
    worker.join()
    return iter(results)


def test_the_function_that_works_is_told_with_its_thread_and_file() -> None:
    shares = python_profile(_epoch, cpu_s=0.5)
    working = {name: share for name, share in shares.items() if name.startswith("worker ")}
    assert sum(working.values()) > 0.8
    (name, *_) = shares
    assert name == "worker benchmarks/test_python_profile.py:_count.<locals>.<genexpr>"
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_no_more_functions_are_told_than_asked_for() -> None:
    assert len(python_profile(_epoch, cpu_s=0.1, num_functions=1)) == 1
