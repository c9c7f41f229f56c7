"""Which threads read, and free, memory of Python that Arrow is given."""

import threading

import pytest


def threads_of_bytes(patch: pytest.MonkeyPatch, kind: type) -> list[tuple[int, int]]:
    """For whatever `read` of a kind of file returns from now on, once it is freed: the thread that
    read it, and the one that freed it.
    """
    threads: list[tuple[int, int]] = []
    read = kind.read  # type: ignore[attr-defined]

    class Watched(bytes):
        thread: int

        def __del__(self) -> None:
            threads.append((self.thread, threading.get_ident()))

    def watched(*given: object) -> Watched:
        found = Watched(read(*given))
        found.thread = threading.get_ident()
        return found

    patch.setattr(kind, "read", watched)
    return threads
