"""One epoch in order `dynamic`: what a worker claims, and whom it waits for at the end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from types import TracebackType

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Split
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim, WaitFor
from featstore.errors import DataFileError
from featstore.files.storage import local_path, open_read
from featstore.loader.plan.shuffle import split_boundaries
from featstore.loader.run.delivery import Delivery
from featstore.loader.run.iterations import StartedIteration
from featstore.loader.run.job import Job
from featstore.loader.run.reporting import Reports
from featstore.reading.open_file import OpenFile
from featstore.table.snapshot import DataFile


class DynamicEpoch:
    """The claims of one worker in one epoch. A context manager: at its end the store is told what
    was delivered, and what is left of the claims is given back.

    Attributes:
        found_all_done: At the end: nothing was left to claim from the first.
        quarantined: At the end: the splits that no worker could read.
    """

    def __init__(
        self,
        job: Job,
        started: StartedIteration,
        epoch: int,
        *,
        worker: str,
        in_step: bool,
        delivery: Delivery,
        reports: Reports,
        is_staged: Callable[[DataFile], bool],
    ) -> None:
        """`in_step`: whether the worker is one of several ranks that train in step."""
        self._job, self._started, self._epoch, self._in_step = job, started, epoch, in_step
        self._delivery, self._reports = delivery, reports
        self._has_claimed = self._is_last_sibling = False
        self.found_all_done, self.quarantined = False, list[str]()
        if in_step:
            started.left_open.log_unread()
        self._coordinator = Coordinator(
            started.address,
            plan=job.plan(epoch),
            prefix=started.prefix,
            worker=worker,
            terms=replace(job.terms, in_step=in_step),
            done=delivery.done,
            clock=started.clock,
            boundaries=self._boundaries,
            is_staged=lambda path: is_staged(job.files[path][0]),
        )
        reports.begin(self._coordinator)

    def rounds(self) -> Iterator[Iterable[Claim]]:
        """Claims that can be had without waiting for others, round after round. The next round
        begins when all of the last one is delivered, and waits for what others hold.
        """
        while not self._is_closed and (first := self._awaited()) is not None:
            self._has_claimed = True
            yield chain([first], self._coordinator.claims(WaitFor.NOTHING))
            if self._delivery.has_failed and not self._is_closed:
                self._reports.settle()  # It is offered again, until it is quarantined.
        if not self._is_closed:
            self.found_all_done = not self._has_claimed and bool(self._coordinator.found_all_done)
            self.quarantined = self._coordinator.quarantined

    def note_left_open(self) -> None:
        """Notes that the epoch ends for this worker while others may still hold rows of it."""
        # Of a DataLoader's workers the last one says so.
        is_last = not self._started.is_dataloader or self._is_last_sibling
        if is_last and not self._is_closed and not self._coordinator.is_done:
            self._started.left_open.note(EpochKeys(self._started.prefix, self._epoch))

    def __enter__(self) -> "DynamicEpoch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as ending:  # From the last line to the first.
            ending.callback(self._reports.end)
            ending.callback(self._coordinator.close)
            ending.callback(self._reports.settle_if_it_can)
            if isinstance(error, Exception):
                # A loop that is behind gets the batches from before an error.
                self._delivery.wait()

    @property
    def _is_closed(self) -> bool:
        return self._delivery.is_closed

    def _awaited(self) -> Claim | None:
        """A claim for a worker that holds none, as whoever waits for leases of others must: they
        may be waiting too.

        A rank that trains in step with others cannot deliver its last batch before this one goes
        on, so nobody waits for those that live. A DataLoader asks its workers in turn, so only the
        last of them to end waits for workers elsewhere: while it waits the others have nothing to
        deliver. Independent workers wait until every lease is final.
        """
        claims = self._coordinator.claims
        if self._started.is_dataloader and not self._is_last_sibling:
            claim = next(claims(WaitFor.NOTHING), None)
            self._is_last_sibling = claim is None and self._started.is_last_sibling(self._epoch)
            if not self._is_last_sibling:
                return claim
        return next(claims(WaitFor.SILENT if self._in_step else WaitFor.ALL), None)

    def _boundaries(self, split: Split) -> Sequence[int]:
        """Where a split of another worker may be cut: nowhere in a file that cannot be read, as its
        own worker will say. Opens the file.
        """
        url = self._job.files[split.path][0].url
        window_rows = self._job.shuffle.window_rows if self._job.shuffle else None
        try:
            with closing(OpenFile(local_path(url) or open_read(url), split.path)) as file:
                return split_boundaries(split, file.row_group_rows, window_rows)
        except (DataFileError, OSError):
            return ()
