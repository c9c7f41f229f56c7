"""Threads in which requests wait for a remote's answers."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from featstore.files.transfer import RangeResponse

# How long `close` waits for threads whose answers are not wanted any more.
_LEAVE_S = 1.0


class RequestThreads:
    """Threads that send requests ahead, one for each request in flight. They are reused, also for
    further files: with other threads computing, starting one takes as long as a short answer. Used
    by one thread, which closes them.

    Unlike those of a ThreadPoolExecutor they are daemons, and `close` does not wait for one that a
    stalled remote holds up.
    """

    def __init__(self) -> None:
        self._requests: SimpleQueue[
            tuple[Callable[[], RangeResponse], Future[RangeResponse]] | None
        ] = SimpleQueue()
        self._threads = list[threading.Thread]()
        self._answers = list[Future[RangeResponse]]()

    def send(self, request: Callable[[], RangeResponse]) -> Future[RangeResponse]:
        """Calls `request` in a thread; its result or error is that of the future."""
        answer = Future[RangeResponse]()
        self.drop_answers()
        self._answers.append(answer)
        self._requests.put((request, answer))
        if len(self._answers) > len(self._threads):
            thread = threading.Thread(target=self._run, name="featstore-ask", daemon=True)
            self._threads.append(thread)
            thread.start()
        return answer

    def drop_answers(self) -> None:
        """Lets go of answers that have come, and so of connections whose bytes nobody reads."""
        self._answers = [answer for answer in self._answers if not answer.done()]

    def close(self) -> None:
        """Ends the threads. One that a stalled remote holds up ends later, when the client
        returns.
        """
        for _ in self._threads:
            self._requests.put(None)
        deadline = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (entry := self._requests.get()) is not None:
            request, answer = entry
            try:
                answer.set_result(request())
            except BaseException as error:  # noqa: BLE001  a thread's boundary: who waits raises it
                answer.set_exception(error)
            # An answer that is not wanted any more must not stay until the next request.
            del entry, request, answer
