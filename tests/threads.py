"""Work in threads of the tests' process."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(*works: Callable[[], object], timeout_s: float = 300) -> Iterator[None]:
    """Each of these works runs in a thread of its own beside the block, and must end so long after
    it.
    """
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(timeout_s)
        assert not thread.is_alive(), "a thread hangs"


def run_together(*works: Callable[[], object], timeout_s: float = 300) -> None:
    with beside(*works, timeout_s=timeout_s):
        pass
