"""The thread that keeps a living worker's leases."""

import contextlib
import threading
from collections.abc import Callable

from featstore.dispatch.stores.address import Store
from featstore.errors import DispatchError


class Renewer:
    """Renews leases at an even pace with a store handle of its own, which it closes; ends when `closed` is set."""

    def __init__(self, store: Store, interval_s: float, renew: Callable[[Store], None], closed: threading.Event) -> None:
        self._store, self._interval_s, self._renew, self._closed = store, interval_s, renew, closed
        self._thread = threading.Thread(target=self._run, name="featstore-lease-renewal", daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._store), contextlib.suppress(DispatchError):
            while not self._closed.wait(self._interval_s):
                self._renew(self._store)
