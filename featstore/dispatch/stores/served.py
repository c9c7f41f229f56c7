"""A handle on a store that a server keeps: what it does while the server does not answer."""

import logging
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import DispatchError, DispatchUnavailableError
from featstore.base.processes import forget_in_child
from featstore.dispatch.stores.base import Store
from featstore.dispatch.stores.endpoint import Endpoint

_LOG = logging.getLogger(__name__)
# Between two attempts: doubled from the first to the second value.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
# What one attempt may take, and of the whole wait: a connection to a host that is gone gives no
# error, and a route that returns is to be noticed within seconds. Also once the wait is over, a
# server that answers has a second.
_ATTEMPT_S, _ATTEMPT_SHARE, LEAST_ATTEMPT_S = 5.0, 1 / 3, 1.0
# An answer that takes longer came out of a partition: TCP had to send the request again.
_LATE_S = 1.0


class ServerIdentity:
    """What all handles of one address know of its server: which one they were first connected to,
    and for how long it has not answered.

    A server that took its place holds nothing of the run. Pickled with the address, so that other
    processes of the run know the server too. Each process counts its own outages: one is the time
    from the sending of a request that failed, or was answered late, to the next answer to any
    handle. Thread-safe.

    Args:
        name: The server's name; None until one was connected to.
        is_durable: Whether the server has a file from which it can come back.
    """

    def __init__(self, name: str | None = None, *, is_durable: bool = False) -> None:
        self._name, self._is_durable = name, is_durable
        self._unanswered_s, self._counted_until_s = 0.0, 0.0
        self._since_s: float | None = None  # The begin of the outage under way.
        self.forget()
        forget_in_child(self)

    def __reduce__(self) -> tuple[Callable[[], "ServerIdentity"], tuple[()]]:
        return partial(ServerIdentity, self._name, is_durable=self._is_durable), ()

    def forget(self) -> None:
        """Takes a new lock in a forked child, which tells of an outage itself."""
        self._lock, self._is_told = threading.Lock(), False

    def is_same(self, name: str, *, is_durable: bool = False) -> bool:
        """Whether this server is the first one. Remembers the first one's name."""
        with self._lock:
            if self._name is None:
                self._name, self._is_durable = name, is_durable
            return self._name == name

    @property
    def is_known(self) -> bool:
        """Whether a server was connected to."""
        return self._name is not None

    @property
    def has_ended(self) -> bool:
        """Whether a server that now refuses connections is gone for good."""
        return self.is_known and not self._is_durable

    def failed(self, sent_s: float) -> bool:
        """Notes that a request got no answer, which was sent at this moment.

        Returns:
            Whether that is to be told: the first time in an outage, and not of a request that was
            sent in an earlier one, which has ended.
        """
        with self._lock:
            self._begin(sent_s)
            is_news = not self._is_told and sent_s >= self._counted_until_s
            self._is_told |= is_news
            return is_news

    def answered(self, sent_s: float) -> float:
        """Notes that a request was answered now, which was sent at this moment.

        Returns:
            The seconds of the outage that this ends, if it was told of; else 0.
        """
        now_s = time.monotonic()
        with self._lock:
            if now_s - sent_s >= _LATE_S:
                self._begin(sent_s)
            took_s = 0.0 if self._since_s is None else now_s - self._since_s
            self._unanswered_s += took_s
            was_told, self._is_told = self._is_told, False
            self._counted_until_s, self._since_s = now_s, None
            return took_s if was_told else 0.0

    def _begin(self, sent_s: float) -> None:
        if self._since_s is None:
            self._since_s = max(sent_s, self._counted_until_s)

    def unanswered_s(self) -> float:
        """The seconds of all outages so far, with that under way."""
        with self._lock:
            pending_s = 0.0 if self._since_s is None else time.monotonic() - self._since_s
            return self._unanswered_s + pending_s


class Patience:
    """Until when the handles of one user of a store wait for a server that does not answer: without
    end until the user is about to end, and then for `wait_s` more, all calls together.

    Safe for threads without a lock: those that end it at once set about the same time.

    Args:
        wait_s: Seconds.
        outer: That of whoever the user works for. The earlier end counts.
    """

    def __init__(self, wait_s: float = 0.0, outer: "Patience | None" = None) -> None:
        self._wait_s, self._outer, self._until_s = wait_s, outer, math.inf

    @property
    def until_s(self) -> float:
        """When it ends, by the monotonic clock."""
        return self._until_s if self._outer is None else min(self._until_s, self._outer.until_s)

    def hurry(self) -> None:
        """Lets it end. Only the first call counts."""
        if self._until_s == math.inf:
            self._until_s = time.monotonic() + self._wait_s


class ServedStore(Store):
    """A handle on a store that a server keeps, safe for threads and for fork.

    A request that gets no answer is sent again, on a new connection, until the wait is over: the
    server is then *unreachable*. One whose data are gone is *lost* at once: it refuses connections
    and has no file from which it could come back, or another server is in its place. After either
    every call raises.

    `_lock` guards the connection and is held during a request: threads that share a handle wait for
    each other. `close` does not wait for it.

    Args:
        endpoint: Where the server is.
        timeout_s: Seconds to wait for a server that does not answer.
        server: What all handles of the address know of the server.
        patience: Until when they wait.
    """

    # Which servers this kind of store has, for messages, and what an attempt without answer raises.
    _servers: str
    _no_answer: tuple[type[Exception], ...]

    def __init__(
        self, endpoint: Endpoint, timeout_s: float, server: ServerIdentity, patience: Patience
    ) -> None:
        self._endpoint, self._timeout_s, self._server = endpoint, timeout_s, server
        self._patience = patience
        # The first failure is the cause; others follow from it.
        self._failure: DispatchError | None = None
        self._lock, self._closed = threading.Lock(), threading.Event()
        forget_in_child(self)

    def close(self) -> None:
        self._closed.set()
        if not self._lock.acquire(blocking=False):
            self._interrupt()
            return
        try:
            self._leave()
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Starts over in a forked child: the connection is the parent's."""
        is_closed = self._closed.is_set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        if is_closed:
            self._closed.set()
        self._abandon()

    def _attempt_s(self) -> float:
        """How many seconds the next attempt may take."""
        return min(_ATTEMPT_S, _ATTEMPT_SHARE * self._timeout_s)

    @abstractmethod
    def _exchange(self, request: Any, within_s: float) -> Any:
        """Makes a connection if there is none, sends the request and returns the answer."""

    @abstractmethod
    def _drop(self) -> None:
        """Ends the connection, on which an answer may be still to come."""

    @abstractmethod
    def _leave(self) -> None:
        """Ends the connection, on which nothing is to come."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Wakes the thread that waits for an answer, if it would not look by itself."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drops the connection in a forked child, and leaves that of the parent alone."""

    def _ask(self, request: Any) -> Any:
        """The answer to a request, however often it must be sent."""
        # A signal handler may raise at any time, too. The reply that is still to come would be
        # taken for that of the next request.
        with self._lock, cleaned_up_on_failure(self._drop):
            answer = self._until_answered(request)
        if self._closed.is_set():
            self.close()  # It found this thread at work, and left the connection to it.
        return answer

    def _until_answered(self, request: Any) -> Any:
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            self._require_usable()
            sent_s = time.monotonic()
            within_s = min(self._attempt_s(), self._left_s(began_s))
            try:
                answer = self._exchange(request, max(LEAST_ATTEMPT_S, within_s))
            except DispatchError:
                raise
            except self._no_answer as error:
                self._drop()
                self._require_usable()
                is_news = self._server.failed(sent_s)
                self._require_patience(error, began_s)
                if is_news:
                    _LOG.warning(
                        "dispatch store %s does not answer: %s; it is waited for, up to %.0f s",
                        self._endpoint.url,
                        first_line(error),
                        self._left_s(began_s),
                    )
                self._closed.wait(min(pause_s, self._left_s(began_s)))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                if took_s := self._server.answered(sent_s):
                    _LOG.info(
                        "dispatch store %s answers again, after %.1f s", self._endpoint.url, took_s
                    )
                return answer

    def _left_s(self, began_s: float) -> float:
        """How many seconds more a request is asked again that was first asked at this moment."""
        return min(began_s + self._timeout_s, self._patience.until_s) - time.monotonic()

    def _require_patience(self, error: Exception, began_s: float) -> None:
        """Raises if the server is lost, or the wait for it is over."""
        if isinstance(error, ConnectionRefusedError) and self._server.has_ended:
            raise self._lost(error) from error
        if self._left_s(began_s) <= 0:
            raise self._unreachable(error, time.monotonic() - began_s) from error

    def _require_usable(self) -> None:
        if self._closed.is_set():
            raise DispatchError(f"this handle of dispatch store {self._endpoint.url} is closed")
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _failed(self, why: str, kind: type[DispatchError] = DispatchError) -> DispatchError:
        """The error for this call and all that follow."""
        text = f"dispatch store {self._endpoint.url}{why}"
        self._failure = self._failure or kind(text)
        return type(self._failure)(*self._failure.args)

    def _replaced(self) -> DispatchError:
        return self._failed(
            " was lost: another server, which holds nothing of this run, is in its place; restart "
            "all workers from their last checkpoint",
            DispatchUnavailableError,
        )

    def _lost(self, error: Exception) -> DispatchError:
        return self._failed(
            f" is lost, and with it the leases of all workers: {first_line(error)}; restart its "
            "server and all workers from their last checkpoint",
            DispatchUnavailableError,
        )

    def _unreachable(self, error: Exception, waited_s: float) -> DispatchError:
        if not self._server.is_known:
            return self._failed(
                f" cannot be reached within {self._timeout_s:g} s: {first_line(error)}; is its "
                f"server running ({self._servers}), and the port open?",
                DispatchUnavailableError,
            )
        return self._failed(
            f" is unreachable: no answer for {waited_s:.1f} s, expected one within "
            f"{self._timeout_s:g} s (for a worker, dispatch.store_wait_s); the last error: "
            f"{first_line(error)}; restart this worker when the server can be reached again",
            DispatchUnavailableError,
        )


def first_line(error: Exception) -> str:
    """The first line of a message: torch appends the native stack."""
    return (str(error).splitlines() or [type(error).__name__])[0]
