"""A SQLite connection that threads share and that no fork inherits."""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable


class ForkSafeConnection:
    """One connection in each process, opened at its first use, safe for threads and for fork.

    An open SQLite connection must not be carried through a fork: the child would believe that it
    holds file locks which only the parent holds. All connections are therefore closed just before a
    fork, and opened again at the next use, on both sides. No transaction may be left open where
    code of others runs, which may fork.

        with connections.lock:  # for this thread alone until the end of the block
            connections.opened()

    Args:
        connect: Opens the connection. It must hold no reference to whoever holds this object.
        closed: Makes the error that `opened` raises after `close`, and holds none either.
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], closed: Callable[[], Exception]
    ) -> None:
        self._connect, self._closed, self._is_closed = connect, closed, False
        with _making:
            self._link = _Link()
        self.lock = self._link.lock
        # Dropped without `close()`, perhaps by the garbage collector in another thread.
        weakref.finalize(self, self._link.drop).atexit = False

    def opened(self) -> sqlite3.Connection:
        """The connection, for as long as the caller holds `lock`."""
        if self._link.connection is None:
            if self._is_closed:
                raise self._closed()
            self._link.connection = self._connect()
        return self._link.connection

    @staticmethod
    def disconnect_all() -> None:
        """Closes all connections of this process, once nobody uses them. They are opened again at
        their next use. Not to be called by who holds a `lock`.
        """
        with _making:
            try:
                _before_fork()
            finally:
                _after_fork()

    def close(self) -> None:
        """Closes the connection for good, in this process."""
        with self.lock:
            self._is_closed = True
            self._link.disconnect()


class _Link:
    """The connection of one handle. It is known to the hook around forks until it is closed, also
    when the handle is gone already.

    `lock` guards the connection. A thread that holds it never takes `_making`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        _links.add(self)

    def disconnect(self) -> None:
        """Closes the connection. The caller holds `lock`."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def drop(self) -> None:
        """The handle is gone. Runs as a finalizer, in any thread and at any time, so it waits for
        no lock: only the hook around forks can hold this one, and then closes the connection.
        """
        if self.lock.acquire(blocking=False):
            try:
                self.disconnect()
            finally:
                self.lock.release()
        _links.discard(self)


_links: set[_Link] = set()
_forking: list[_Link] = []
# Held from before a fork until after it, so that no other thread makes a handle or forks in
# between: the child would inherit an open connection. Lock order: `_making` first, then the locks
# of links. Nobody makes a handle while holding one of those; finalizers, which may run at any
# time, make none. It is reentrant all the same, so that a finalizer that did would not wait for its
# own thread.
_making = threading.RLock()


def _before_fork() -> None:
    """Closes all connections, and lets nobody open one until `_after_fork`."""
    _making.acquire()
    for link in list(_links):  # Made at once: finalizers remove links at any time.
        link.lock.acquire()
        _forking.append(link)
        link.disconnect()


def _after_fork() -> None:
    while _forking:
        _forking.pop().lock.release()
    _making.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
