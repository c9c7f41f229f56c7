"""The life of a loader of one table: its iterations, its state, and what it keeps between them."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from torch.utils.data import get_worker_info

from featstore.base.closing import when_gone
from featstore.base.errors import DispatchError, StateError
from featstore.base.named_errors import NamedErrors
from featstore.base.processes import OwnProcess
from featstore.base.text_table import short_names
from featstore.decoded.decoding import DecodedFiles
from featstore.decoded.file_sources import staging_source
from featstore.dispatch.orders import WorkerInfo
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock
from featstore.files.lineage import LineageDataset
from featstore.loader.batches.bad_files import SKIP
from featstore.loader.batches.stats import NOTHING_WAITS, OnStats, StatsCalls, batch_fill
from featstore.loader.description import LoaderDescription
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.iteration.iteration import Iteration
from featstore.loader.iteration.rendezvous import Rendezvous
from featstore.loader.iteration.slice_source import Resources
from featstore.loader.iteration.staging_share import decoded_room, limited, share_of
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.worker import LoaderWorker, host_name, require_exact_states
from featstore.loader.plan.ordering import STATIC
from featstore.staging.stager import Stager
from featstore.tensors.buffer_pool import BufferPools

_VERDICTS_OF_WORKERS = (
    "DataLoader workers read the batches: each logs its own verdict at level info (logger "
    "featstore.loader), and on_stats gets its numbers"
)


class UnderWay(Protocol):
    """An iteration."""

    def acknowledge(self) -> None:
        """Counts the batches that the consumer has as delivered."""

    def close(self) -> None:
        """Ends it. May be called more than once."""


Current = TypeVar("Current", bound=UnderWay)


class Life(Generic[Current]):
    """What loaders of one table and of several have in common: the iteration under way in this
    process, and whom it tells of its metrics.

    Args:
        on_stats: What is called with metrics.

    Attributes:
        iteration: It; None before the first.
    """

    def __init__(self, on_stats: OnStats | None) -> None:
        self.iteration: Current | None = None
        self._process, self._stats_calls = OwnProcess(), StatsCalls(on_stats)

    def stats(self) -> dict[str, Any]:
        raise NotImplementedError

    def tell_stats(self, *, is_last: bool) -> None:
        """Calls the function `on_stats` if it is time to.

        Args:
            is_last: Whether the iteration has ended by itself.
        """
        self._stats_calls.tell(self.stats, is_last=is_last)

    def ack(self) -> None:
        """Counts the last batch as delivered."""
        self._adopt()
        if self.iteration is not None:
            self.iteration.acknowledge()

    def forget(self) -> None:
        """Ends the iteration under way."""
        self._adopt()
        if self.iteration is not None:
            self.iteration.close()
        self.iteration = None

    def _adopt(self) -> None:
        """After a fork, drops the objects whose threads exist only in the parent."""
        if not self._process.is_this():
            self._process = OwnProcess()
            self._drop()

    def _drop(self) -> None:
        self.iteration = None


class TableSource(Life[Iteration]):
    """A loader of one table. `FeatureLoader` says what its methods do.

    Args:
        description: What it is made of.
        clock: The clock by which leases are judged.

    Attributes:
        job: What is read and how.
        named_errors: Names the table in errors of the operating system.
        num_epochs: How many epochs each iteration reads.
    """

    def __init__(self, description: LoaderDescription, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(description.on_stats)
        self.job, self._staging = description.job, description.staging
        self._table = LineageDataset(url=description.url, version=description.version)
        if description.pool is not None:
            description.pool.load()  # Before workers are forked, which then share it.
        self.num_epochs = self.job.num_epochs
        self.named_errors = NamedErrors(description.url)
        self._rendezvous = Rendezvous(
            description.dispatch, self.job.key, self.job.num_epochs, clock
        )
        self._resources = Resources()
        self._restored: LoaderState | None = None
        self._share: LoaderState | None = None
        when_gone(self, self._rendezvous.remove)

    def __str__(self) -> str:
        slots = short_names([one.slot.name for one in self.job.request.slots])
        labels = [label.name for label in self.job.request.labels]
        return f"slots={slots}, labels={labels}, batch_size={self.job.batch_size}"

    def __iter__(self) -> BatchIterator:
        worker = LoaderWorker.here()
        require_exact_states(worker.num_ranks)
        return BatchIterator(self, worker)

    @property
    def is_awaiting_shares(self) -> bool:
        """Whether the next iteration begins with a state of which other DataLoader workers have
        their parts.
        """
        return self._share is not None

    def begin_iteration(self, worker: LoaderWorker) -> Iteration:
        """Begins a new iteration, and ends the one under way.

        Args:
            worker: Which worker this process is.
        """
        self.job.require_dealt(worker)
        self.forget()
        if self._share is not None:
            self._restored, self._share = self._rendezvous.unite(self._share, worker), None
        meeting = self._rendezvous.begin(worker)
        start = self._start(meeting.number, meeting.first_epoch, worker)
        resources = self._resources_here()
        self.iteration = Iteration(self.job, meeting, start, resources)
        self.iteration.tell_lineage(self._table)
        return self.iteration

    def num_batches(self) -> int:
        """The length of the next iteration."""
        if self.job.ordering.kind != STATIC:
            raise TypeError(
                f"a loader in {self.job.ordering.kind} order has no len(): how many batches a "
                "worker gets depends on how fast the others are or which files are its own; count "
                "rows instead, or choose order static"
            )
        if self.job.follow is not None:
            raise TypeError(
                "a loader that follows a table has no len(): nobody knows how many partitions will "
                "come"
            )
        if self.job.filters_rows:
            raise TypeError(
                "this loader has no len(): which rows are left out by `where`, `negatives`, "
                "`null: drop` of a label, or a row mask of the table, is known only when they are "
                "read"
            )
        if self.job.cap is not None:
            raise TypeError(
                "a loader with `batch: {max_values: ...}` has no len(): where its batches end is "
                "known only when the lengths of their lists are read"
            )
        worker = LoaderWorker.here()
        start = self._start(*self._rendezvous.next_iteration(), worker)
        one_per_rank = replace(worker, index=worker.rank, num_workers=worker.num_ranks)
        num_steps = self.job.num_steps(start, one_per_rank)
        own = self.job.num_static_batches(
            start, WorkerInfo(index=worker.rank, num_workers=worker.num_ranks)
        )
        return own if num_steps is None else num_steps

    def set_epoch(self, epoch: int) -> None:
        self._rendezvous.set_epoch(epoch)
        if self._restored is not None and self._restored.first_epoch != epoch:
            self._restored = None
        self.forget()

    def state_dict(self) -> dict[str, Any]:
        self._adopt()
        if self._share is not None:
            return self._share.to_json()
        if self.iteration is not None:
            return self.iteration.delivery.state.to_json()
        if self._rendezvous.has_workers():
            raise StateError(
                "state_dict(): the batches were read by DataLoader workers, and this process does "
                "not know how far they are: call ack() and state_dict() in each worker, where "
                "get_worker_info().dataset is its dataset, and unite the states with "
                "FeatureLoader.merge_states"
            )
        return self._start(*self._rendezvous.next_iteration(), LoaderWorker.here()).to_json()

    def require_fit(self, state: Mapping[str, Any]) -> LoaderState:
        """The state, parsed. StateError if it is of another table, selection, seed or format."""
        saved = LoaderState.from_json(state)
        saved.require_fit(self.job.at(saved.followed).start(0, 0, LoaderWorker.here()))
        return saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved, worker = self.require_fit(state), LoaderWorker.here()
        self._adopt()
        if worker.is_dataloader and len(saved.workers) == 1:
            saved.require_own(worker.index, worker.num_workers)
            self.forget()
            self._share = saved
            return
        saved.require_complete()
        if self._rendezvous.has_living_workers():
            raise StateError(
                "load_state_dict(): DataLoader workers of this loader still run, and would not "
                "hear of the state: end them (delete the DataLoader, or its iterator), load the "
                "state, and make a new DataLoader"
            )
        self.forget()
        self._restored = saved
        self._rendezvous.restore(saved.digest, saved.first_epoch, worker)

    def recorded_order(self, epoch: int | None) -> dict[str, Any]:
        self._adopt()
        return self._rendezvous.recording(epoch).to_json()

    def stats(self) -> dict[str, Any]:
        stager, worker = self._resources.stager, LoaderWorker.here()
        staged = vars(stager.stats()) if stager else {}
        told = {f"staging_{name}": value for name, value in staged.items()}
        iteration = self.iteration
        parts = {
            "queues": NOTHING_WAITS if iteration is None else iteration.queues,
            "memory": self._resources.stats.memory(),
            "stages": self._resources.stats.stages(staged),
            "slots": self._resources.stats.slots(),
            "worker": {
                "host": host_name(),
                "rank": worker.rank,
                "index": worker.index,
                "num_workers": worker.num_workers,
            },
        }
        if self.job.cap is not None:
            counts = self._resources.stats.counts
            parts["batch"] = batch_fill(counts, self.job.cap.max_values)
        return {**self._resources.stats.to_dict(), "staging_staged_bytes": 0, **told, **parts}

    def verdict(self) -> str:
        if self._resources.stats.verdict or self.iteration is not None:
            return self._resources.stats.verdict
        try:
            has_workers = self._rendezvous.has_workers(briefly=True)
        except DispatchError as error:
            return f"whether DataLoader workers read the batches is not known: {error}"
        return _VERDICTS_OF_WORKERS if has_workers else ""

    def close(self) -> None:
        self._adopt()
        stager = self._resources.stager
        # Runs from the last line to the first, even if one fails.
        with self.named_errors, ExitStack() as parts:
            parts.callback(self._rendezvous.close)
            self._resources = replace(self._resources, stager=None, pools=BufferPools())
            if stager is not None:
                parts.callback(stager.close)
            if self._in_step and self.job.ordering.is_dynamic:
                parts.callback(self._rendezvous.log_left_open)
            if self.iteration is not None:
                parts.callback(self.iteration.close)

    @property
    def _in_step(self) -> bool:
        return LoaderWorker.here().in_step if self.job.in_step is None else self.job.in_step

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process gets: all but the iteration, the stager and the metrics."""
        require_exact_states(LoaderWorker.here().num_ranks)
        # A spawned worker knows nothing of the process group that was initialised here.
        job = replace(self.job, in_step=True) if self._in_step else self.job
        return self.__dict__ | {"job": job, "iteration": None, "_resources": Resources()}

    def _drop(self) -> None:
        super()._drop()
        self._resources = Resources()

    def _start(self, number: int, first_epoch: int, worker: LoaderWorker) -> LoaderState:
        """Where the iteration of this number begins: the first one after a restore begins where the
        state says, if the state is of the same epoch.
        """
        if self._restored is not None and number == 0 and first_epoch == self._restored.first_epoch:
            return self.job.resumed(self._restored, worker)
        return self.job.start(first_epoch, first_epoch, worker)

    def _resources_here(self) -> Resources:
        """What this process has for an iteration. The stager is begun when it is first needed."""
        if self._staging is None or self._resources.stager is not None:
            return self._resources
        options, worker = self._staging, get_worker_info()
        # A loop asks loaders in turn as a DataLoader asks its workers.
        num_in_turn = worker.num_workers if worker else int(self.job.num_sharing > 1)
        if num_in_turn:
            self.job = limited(options, self.job, num_in_turn)
            options = share_of(options, self.job, num_in_turn)
        selection = self.job.request.selection
        stager = Stager(
            options, staging_source(selection, accepts_bad=self.job.on_bad_file == SKIP)
        )
        decoded = None
        if options.decoded:
            room_bytes = decoded_room(options, self.job, num_in_turn)
            decoded = DecodedFiles(stager, selection, room_bytes)
        when_gone(self, stager.close)
        self._resources = replace(self._resources, stager=stager, decoded=decoded)
        return self._resources
