"""`FeatureLoader`: from a table and a selection of its slots to batches.

The one module where dispatch, staging, reading and tensors meet.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from featstore.base.byte_sizes import parse_bytes
from featstore.base.cleanup import when_gone
from featstore.base.closing import Closing
from featstore.base.errors import ConfigError, StateError, require_boolean, require_integer
from featstore.base.named_errors import NamedErrors
from featstore.base.text_table import short_names
from featstore.decoded.decoded_files import DecodedFiles
from featstore.decoded.staging_source import staging_source
from featstore.dispatch.options import AUTO, END, Dispatch
from featstore.dispatch.orders import WorkerInfo
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock
from featstore.loader.batches.bad_files import ERROR, SKIP, checked
from featstore.loader.batches.transform import Transform, checked_transform
from featstore.loader.device import DeviceFeed
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.iteration.feed import Resources
from featstore.loader.iteration.iteration import Iteration
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Rendezvous
from featstore.loader.iteration.staging_share import (
    decoded_room,
    divided,
    limited,
    share_of,
    staging_for,
)
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import JOIN, require_in_step, tail_of
from featstore.loader.iteration.worker import LoaderWorker, require_exact_states
from featstore.loader.mixed_loader import MixedLoader, mixed_loader
from featstore.loader.mixed_state import merge_any_states
from featstore.loader.numpy_feed import NumpyFeed
from featstore.loader.on_stats import OnStats, StatsCalls, on_stats_options
from featstore.loader.plan.data_files import Census, Listing
from featstore.loader.plan.follow import Follow, Following
from featstore.loader.plan.ordering import DYNAMIC, RANK, STATIC, Ordering
from featstore.loader.plan.sections import in_sections, matching_in_sections, section_key
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.plan.split_list import PackedSplits, WholeFiles
from featstore.loader.plan.splitting import make_splits, split_size
from featstore.loader.request.matching import (
    Listed,
    SelectedFiles,
    matching,
    matching_files,
    require_fresh_files,
    selected,
)
from featstore.loader.request.negatives import Negatives
from featstore.loader.request.option_values import as_options
from featstore.loader.request.request import Request, resolve
from featstore.loader.request.tables import TableLike, naming_table_errors, snapshot_of
from featstore.loader.request.train_config import load_train_config
from featstore.loader.tensorflow_dataset import tensorflow_dataset
from featstore.selection.where import parse_where
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.statistics.stale_groups import ERROR as STALE_ERROR
from featstore.statistics.stale_groups import reading
from featstore.table.open import open_snapshot, open_without_files, stream_data_files
from featstore.table.snapshot import DataFile, Snapshot
from featstore.tensors.batch import Batch, Device
from featstore.tensors.buffer_pool import BufferPools

_LOG = logging.getLogger(__name__)


class FeatureLoader(IterableDataset[Batch], Closing):
    """Batches of the selected slots of a table.

    Iterate the loader, or wrap it as `DataLoader(loader, batch_size=None, num_workers=k)`, whose
    workers share each epoch, every row once. Each iteration reads the next `num_epochs` epochs. It
    begins when its first batch is asked for, and then ends the one before. A batch counts as
    delivered when the next one is asked for, or at `ack()`.

    Not thread-safe: one thread iterates and calls the other methods. Only `close()`, which the end
    of a `with` block calls, may come from any thread. docs/loader.md describes each option.

    Args:
        table: An open table, its snapshot, or the path or URL of a Delta table, or of a directory
            or glob of Parquet files.
        slots: Names, globs, or mappings `{name, buckets, max_len, pad, keep,
            pad_side, dtype}`.
        labels: Scalar numeric columns, delivered as float32 (num_rows,). `{name, null}` says what a
            null label does: `raise`, `drop` the row, or become a number.
        weight: A scalar numeric column, delivered as `batch.weight`, float32 (num_rows,).
        extras: Columns delivered as an Arrow table, `batch.extras`, with null where `where` sees
            null: in a plain directory 0 is missing in columns of integers.
        batch_size: Rows per batch.
        where: SQL condition over partition keys and columns; None reads all rows.
        seed: Seed of the order of splits and of shuffling.
        num_epochs: Epochs per iteration of the loader.
        drop_last: Whether to leave out a last batch with fewer than `batch_size` rows.
        order: Which worker reads which rows: `dynamic`, `static`, `rank` or `replay`, or options
            such as `{kind: rank, mini_epochs: 4}`.
        shuffle: How rows are permuted and mixed; True takes the defaults, None or False keeps the
            order of the rows in each file.
        staging: How data files come to the local disk. None reads local files in place and stages
            remote ones, or what is selected of them, in a private directory.
        dispatch: Where workers meet: `auto`, the URL of a store, or options.
        follow: Whether to continue with new partitions of a Delta table, forever or as options such
            as `{until: "dt >= '2026-11-08'"}` say.
        tail: What happens when ranks have different numbers of batches. `join`: each rank ends with
            its own last batch. `drop`: all stop when the first one has no more. `pad`: ranks
            without more batches get batches with `is_padding` true until the last rank ends.
        memory_budget: Bytes that decoded rows may take at once in a process, those being decoded
            included; a quarter of it is for the working memory of the decoders. A number, or text
            such as `512MB`. Larger row groups are decoded in slices. `auto` is 1 GB, or
            512 MB if rows are shuffled, and less if all workers of the host would take more than a
            quarter of its memory.
        decode_threads: In how many threads a process decodes, at most 16. `auto` is its share of
            the host's cores, and one in a worker of a DataLoader.
        negatives: Keeps a share of the rows whose label is 0, `{label, rate, seed, column}`, and
            raises their weight to match.
        transform: A function over each batch, called in another thread, or its name
            `package.module:function`.
        on_stats: A function that is called with `stats()` while the loader runs, its name as
            `package.module:function`, or options such as `{call: ..., every_s: 60}`.
        on_bad_file: `error`, or `skip` to continue without files that cannot be read, with a
            warning for each.
        stale_groups: `error` if a slot group that is read is stale somewhere in what is read,
            because the base files that its files belong to were replaced; or `missing` to read its
            slots as missing there.
        progress: Whether to show a progress bar on standard error.
        debug: Whether to detect in-place writes to batches. This reads every byte of every batch.

    Raises:
        ConfigError: An option is invalid, or options contradict each other.
        SelectionError: A column is not in the table, or `where` is invalid or matches no file.
        BudgetError: The files that are open at once do not fit into the staging budget.
        TableNotFoundError: There is no table at `table`.
        StaleGroupError: A slot group that is read is stale.
        DataFileError: A data file cannot be read. Mostly raised during iteration.
        StoreError: The operating system failed, as of a disk, or a store did. Mostly raised during
            iteration.
    """

    @naming_table_errors
    def __init__(
        self,
        table: TableLike | Snapshot | str | Path,
        *,
        slots: Iterable[str | Mapping[str, Any]],
        labels: Iterable[str | Mapping[str, Any]] = (),
        weight: str | None = None,
        extras: Iterable[str] = (),
        batch_size: int = 8192,
        where: str | None = None,
        seed: int = 0,
        num_epochs: int = 1,
        drop_last: bool = False,
        order: Ordering | Mapping[str, Any] | str = "dynamic",
        shuffle: Shuffle | Mapping[str, Any] | bool | None = None,
        staging: Staging | Mapping[str, Any] | None = None,
        dispatch: Dispatch | Mapping[str, Any] | str = "auto",
        follow: Follow | Mapping[str, Any] | bool = False,
        tail: str = JOIN.name,
        memory_budget: int | str = AUTO,
        decode_threads: int | str = AUTO,
        negatives: Negatives | Mapping[str, Any] | None = None,
        transform: Transform | str | None = None,
        on_stats: OnStats
        | Mapping[str, Any]
        | Callable[[dict[str, Any]], object]
        | str
        | None = None,
        on_bad_file: str = ERROR,
        stale_groups: str = STALE_ERROR,
        progress: bool = False,
        debug: bool = False,
    ) -> None:
        ordering = (
            as_options(Ordering, {"kind": order} if isinstance(order, str) else order, "order")
            or Ordering()
        )
        options = (
            as_options(
                Dispatch, {"store": dispatch} if isinstance(dispatch, str) else dispatch, "dispatch"
            )
            or Dispatch()
        )
        # Data files that can be streamed later are left out if they will be.
        opened = open_without_files if ordering.kind == RANK else open_snapshot
        snapshot = reading(snapshot_of(table, opened), stale_groups)
        self._named_errors = NamedErrors(snapshot.url)
        drawn = as_options(Negatives, negatives, "negatives")
        request = resolve(
            snapshot.schema,
            slots=slots,
            labels=labels,
            weight=weight,
            extras=extras,
            where=where,
            negatives=drawn,
        )
        if snapshot.groups:
            require_fresh_files(snapshot, matching(snapshot, request), request)
        mixed = _shuffle(shuffle)
        key = section_key(mixed, snapshot.schema, ordering)
        size = split_size(options)
        cut = partial(make_splits, size=size, accepts_bad=on_bad_file == SKIP)
        files: Mapping[str, Listed] = {}
        splits: Sequence[Split] = ()
        if ordering.kind != RANK:
            files = selected_files = in_sections(matching_files(snapshot, request), key)
            splits = (
                WholeFiles(selected_files)
                if size is None
                else PackedSplits(selected_files, _cut_in_order(selected_files, cut))
            )
        self._job = Job(
            request=request,
            files=files,
            splits=splits,
            cut=cut,
            ordering=ordering,
            table=snapshot.digest if snapshot.data_files or ordering.kind != RANK else "",
            seed=require_integer("seed", seed, minimum=0),
            num_epochs=require_integer("num_epochs", num_epochs),
            batch_size=require_integer("batch_size", batch_size),
            drop_last=require_boolean("drop_last", drop_last),
            shuffle=mixed,
            section_key=key,
            budget_bytes=(
                None if memory_budget == AUTO else parse_bytes(memory_budget, "memory_budget")
            ),
            decode_threads=(
                None
                if decode_threads == AUTO
                else require_integer("decode_threads", decode_threads)
            ),
            terms=options.terms,
            in_step=None if options.in_step == AUTO else bool(options.in_step),
            ends_finished=options.finished == END,
            follow=_follow(follow, snapshot, request, key),
            tail=tail_of(tail),
            transform=checked_transform(transform),
            debug=require_boolean("debug", debug),
            progress=require_boolean("progress", progress),
            on_bad_file=checked(on_bad_file),
        )
        require_in_step(self._job.tail, options.in_step)
        if self._job.follow is not None:
            _require_followable(self._job)
        if ordering.kind == RANK:
            self._job = self._job.in_parts(_listing(snapshot, request, cut))
            files = _largest(self._job.census, snapshot, request)
        with_files = replace(self._job, files=files)
        self._staging = staging_for(as_options(Staging, staging, "staging"), with_files)
        most_open = limited(self._staging, with_files).most_open
        self._job = replace(self._job, most_open=most_open)
        self._rendezvous = Rendezvous(options, self._job.key, num_epochs, self._clock)
        self._resources = Resources()
        self._stats_calls = StatsCalls(on_stats_options(on_stats))
        self._restored: LoaderState | None = None
        self._share: LoaderState | None = None
        self._iteration: Iteration | None = None
        self._pid = os.getpid()
        when_gone(self, self._rendezvous.remove)

    @classmethod
    def from_config(
        cls, source: str | Path | Mapping[str, Any], **overrides: Any
    ) -> "FeatureLoader | MixedLoader":
        """Makes the loader that a training config describes: with `tables` in place of `table`, one
        that draws batches of several tables, with the same methods.

        Args:
            source: Path or URL of a YAML file, or a mapping. Its keys are the parameters of
                `FeatureLoader`. A relative `table` is relative to the working directory.
            overrides: Parameters that replace keys of the config.

        Raises:
            ConfigError: The config cannot be parsed, has an unknown key, or lacks `table` or
                `slots`; and everything that `FeatureLoader` raises.
        """
        config = load_train_config(source, overrides)
        return mixed_loader(config, cls) if "tables" in config else cls(**config)

    merge_states = staticmethod(merge_any_states)
    # What leases are judged by; tests have one in simulated time.
    _clock: Clock = SYSTEM_CLOCK

    def __repr__(self) -> str:
        request = self._job.request
        slots = short_names([one.slot.name for one in request.slots])
        labels = [label.name for label in request.labels]
        return f"FeatureLoader(slots={slots}, labels={labels}, batch_size={self._job.batch_size})"

    def __iter__(self) -> BatchIterator:
        worker = LoaderWorker.here()
        require_exact_states(worker.num_ranks)
        return BatchIterator(self, worker)

    @property
    def num_epochs(self) -> int:
        """How many epochs each iteration reads."""
        return self._rendezvous.num_epochs

    @property
    def named_errors(self) -> NamedErrors:
        """Names the table in errors of the operating system. Asked for by `BatchIterator`."""
        return self._named_errors

    @property
    def is_awaiting_shares(self) -> bool:
        """Whether the next iteration begins with a state of which other DataLoader workers have
        their parts. Asked by `BatchIterator`.
        """
        return self._share is not None

    def begin_iteration(self, worker: LoaderWorker) -> Iteration:
        """Begins a new iteration, and ends the one under way. Called by `BatchIterator`.

        Args:
            worker: Which worker this process is.
        """
        self._adopt()
        if self._iteration is not None:
            self._iteration.close()
        if self._share is not None:
            self._restored, self._share = self._rendezvous.unite(self._share, worker), None
        meeting = self._rendezvous.begin(worker)
        start = self._start(meeting.number, meeting.first_epoch, worker)
        self._iteration = Iteration(self._job, meeting, start, self._resources_here())
        return self._iteration

    def tell_stats(self, *, is_last: bool) -> None:
        """Calls the function `on_stats` if it is time to. Called by `BatchIterator`.

        Args:
            is_last: Whether the iteration has ended by itself.
        """
        self._stats_calls.tell(self.stats, is_last=is_last)

    def __len__(self) -> int:
        """The exact number of batches that this process, with its DataLoader workers, gets from the
        next iteration in static order.

        Raises:
            TypeError: The order is another one, the loader follows a table, or `where`, `negatives`
                or `null: drop` filter rows that have to be read first.
        """
        if self._job.ordering.kind != STATIC:
            raise TypeError(
                f"a loader in {self._job.ordering.kind} order has no len(): how many batches a "
                "worker gets depends on how fast the others are or which files are its own; count "
                "rows instead, or choose order static"
            )
        if self._job.follow is not None:
            raise TypeError(
                "a loader that follows a table has no len(): nobody knows how many partitions will "
                "come"
            )
        if self._job.filters_rows:
            raise TypeError(
                "this loader has no len(): which rows are left out by `where`, `negatives`, or "
                "`null: drop` of a label, is known only when they are read"
            )
        worker = LoaderWorker.here()
        start = self._start(*self._rendezvous.next_iteration(), worker)
        one_per_rank = replace(worker, index=worker.rank, num_workers=worker.num_ranks)
        num_steps = self._job.num_steps(start, one_per_rank)
        own = self._job.num_static_batches(
            start, WorkerInfo(index=worker.rank, num_workers=worker.num_ranks)
        )
        return own if num_steps is None else num_steps

    def __bool__(self) -> bool:
        return True

    def to_device(self, device: Device, *, prefetch: int = 2) -> DeviceFeed:
        """Iterates like the loader, with batches that a separate thread has moved to `device`.

        Args:
            device: A torch device, or its name.
            prefetch: Number of batches that are copied ahead of the loop, at least 1.

        Returns:
            An iterable of batches. The loader's state follows the loop, not the copies.

        Raises:
            ConfigError: `prefetch` is below 1.
        """
        return DeviceFeed(self, device, prefetch=prefetch)

    def numpy(self) -> NumpyFeed:
        """Iterates like the loader, with read-only numpy arrays in place of tensors.

        Returns:
            An iterable of `NumpyBatch`: `slots`, `labels`, `weight`, `extras`. Nothing is copied,
            and the loader's state follows the loop.
        """
        return NumpyFeed(self)

    def to_tf(self) -> Any:
        """The batches as a `tf.data.Dataset`. Each iteration of the dataset is one of the loader.

        The loader's state counts a batch when the dataset asks for the next one, which may be
        before it is trained on, as Keras's `fit` asks ahead.

        Returns:
            Elements are `(slots, labels)`, or `(slots, labels, weight)` if there are weights:
            dicts of tensors by name. Lists are ragged tensors.

        Raises:
            MissingDependencyError: tensorflow is not installed.
            ConfigError: The loader has a `transform` or tail `pad`, or a slot is bfloat16.
        """
        if self._job.transform is not None or self._job.tail.pads:
            raise ConfigError(
                "to_tf(): expected a loader without transform and tail pad: what they make is not "
                "known before the first batch; use the dataset's map(), and tail drop"
            )
        return tensorflow_dataset(self.numpy(), self._job.request)

    def ack(self) -> None:
        """Counts the last batch as delivered now, not only when the next one is asked for."""
        self._adopt()
        if self._iteration is not None:
            self._iteration.acknowledge()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, and ends the one under way.

        A loaded state is dropped, unless its iteration began with the same epoch; then the rest of
        that epoch follows.

        Args:
            epoch: Number of the epoch, from 0. The order of rows follows from it and the seed.

        Raises:
            ConfigError: `epoch` is not an integer of 0 or more.
        """
        self._rendezvous.set_epoch(require_integer("epoch", epoch, minimum=0))
        if self._restored is not None and self._restored.first_epoch != epoch:
            self._restored = None
        self._forget_iteration()

    def state_dict(self) -> dict[str, Any]:
        """What this process has delivered. May be called between any two batches.

        Returns:
            Small JSON data. Merge the states of several workers with `merge_states`.

        Raises:
            StateError: DataLoader workers of this process read the batches, so each of them has a
                state of its own.
        """
        self._adopt()
        if self._share is not None:
            return self._share.to_json()
        if self._iteration is not None:
            return self._iteration.delivery.state.to_json()
        if self._rendezvous.has_workers():
            raise StateError(
                "state_dict(): the batches were read by DataLoader workers, and this process does "
                "not know how far they are: call ack() and state_dict() in each worker, where "
                "get_worker_info().dataset is its dataset, and unite the states with "
                "FeatureLoader.merge_states"
            )
        return self._start(*self._rendezvous.next_iteration(), LoaderWorker.here()).to_json()

    def require_fit(self, state: Mapping[str, Any]) -> LoaderState:
        """The state, parsed. StateError if it is of another table, selection, seed or format.

        Args:
            state: As of `load_state_dict`.
        """
        saved = LoaderState.from_json(state)
        saved.require_fit(self._job.at(saved.followed).start(0, 0, LoaderWorker.here()))
        return saved

    def share_with(self, num_loaders: int) -> None:
        """Makes this loader one of several that one loop reads in turn, before its first iteration.
        It takes an equal part of memory, threads and staging budget, and does not wait for rows
        that living workers hold, as these may wait for it.

        Args:
            num_loaders: How many there are, this one included.
        """
        self._job = replace(self._job, num_sharing=num_loaders, in_step=True)
        if (options := self._staging) is None:
            return
        if options.directory is None:
            self._staging = options = divided(options, num_loaders)
        self._staging = staging_for(options, self._job)
        self._job = replace(self._job, most_open=limited(options, self._job).most_open)

    @property
    def job(self) -> Job:
        """What is read and how."""
        return self._job

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where the state was saved, on any number of workers.

        Args:
            state: The state of a single worker, or the merged state of all workers of one step. In
                a DataLoader worker it may be the state of this worker alone, as torchdata's
                StatefulDataLoader hands it out; the workers then merge theirs when the first batch
                is asked for.

        Raises:
            StateError: The state belongs to another table, selection, seed or format, it lacks
                workers of its step, or DataLoader workers still run, which would not get the state.
        """
        saved, worker = self.require_fit(state), LoaderWorker.here()
        self._adopt()
        if worker.is_dataloader and len(saved.workers) == 1:
            saved.require_own(worker.index, worker.num_workers)
            self._forget_iteration()
            self._share = saved
            return
        saved.require_complete()
        if self._rendezvous.has_living_workers():
            raise StateError(
                "load_state_dict(): DataLoader workers of this loader still run, and would not "
                "hear of the state: end them (delete the DataLoader, or its iterator), load the "
                "state, and make a new DataLoader"
            )
        self._forget_iteration()
        self._restored = saved
        self._rendezvous.restore(saved.digest, saved.first_epoch, worker)

    def recorded_order(self, epoch: int | None = None) -> dict[str, Any]:
        """Which worker read which rows, in which order, in an epoch of order `dynamic`.

        Covers all workers that share the store, as far as they have acknowledged. Call it in any of
        them at the end of the epoch, before the store is gone.

        Args:
            epoch: Number of the epoch; None is the newest.

        Returns:
            Small JSON data for `order={"kind": "replay", "recording": ...}`.

        Raises:
            DispatchError: The store has no such epoch.
        """
        self._adopt()
        return self._rendezvous.recording(epoch).to_json()

    def stats(self) -> dict[str, Any]:
        """Metrics of this process since the loader was made. May be called from any thread.

        Returns:
            Counts, and seconds under names that end with `_s`. `wait_s`: how long the consumer
            waited for batches. `decode_s`: how long reading and decoding took. `stages`: busy and
            waiting seconds, bytes, rows and retries of `staging`, `decode`, `assemble`, `transform`
            and `delivery`. `slots`: for each column that was read, its `bytes` as stored, and its
            part of the busy seconds of the stages `decode` and `assemble`. `worker`: which process
            this is: `rank`, `index` and `num_workers`, with DataLoader workers counted.
        """
        stager, worker = self._resources.stager, LoaderWorker.here()
        staged = vars(stager.stats()) if stager else {}
        told = {f"staging_{name}": value for name, value in staged.items()}
        parts = {
            "stages": self._resources.stats.stages(staged),
            "slots": self._resources.stats.slots(),
            "worker": {
                "rank": worker.rank,
                "index": worker.index,
                "num_workers": worker.num_workers,
            },
        }
        return {**self._resources.stats.to_dict(), "staging_staged_bytes": 0, **told, **parts}

    def verdict(self) -> str:
        """What this process's last epoch waited for and what would help, in one line; empty before
        the end of the first. Where DataLoader workers read the batches, it says where theirs are.

        Also logged at level info by `featstore.loader`.
        """
        if not self._resources.stats.verdict and self._rendezvous.has_workers():
            return (
                "DataLoader workers read the batches: each logs its own verdict at level info "
                "(logger featstore.loader), and on_stats gets its numbers"
            )
        return self._resources.stats.verdict

    def close(self) -> None:
        """Ends the iteration under way, removes temporary files and frees memory.

        May be called from any thread and more than once. The loader may be iterated again.
        """
        self._adopt()
        with self._named_errors:
            if self._iteration is not None:
                self._iteration.close()
            self._name_left_open()
            if (stager := self._resources.stager) is not None:
                stager.close()
            self._resources = replace(self._resources, stager=None, pools=BufferPools())
            self._rendezvous.close()

    def _name_left_open(self) -> None:
        """Logs the rows that ranks in step left unread in the last iteration."""
        if (
            self._in_step
            and self._job.ordering.is_dynamic
            and (left_open := self._rendezvous.left_open()) is not None
        ):
            left_open.log_unread()

    @property
    def _in_step(self) -> bool:
        return LoaderWorker.here().in_step if self._job.in_step is None else self._job.in_step

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process gets: all but the iteration, the stager and the metrics."""
        require_exact_states(LoaderWorker.here().num_ranks)
        # A spawned worker knows nothing of the process group that was initialised here.
        job = replace(self._job, in_step=True) if self._in_step else self._job
        return self.__dict__ | {"_job": job, "_iteration": None, "_resources": Resources()}

    def _adopt(self) -> None:
        """After a fork, drops the objects whose threads exist only in the parent."""
        if self._pid != os.getpid():
            self._pid, self._iteration, self._resources = os.getpid(), None, Resources()

    def _forget_iteration(self) -> None:
        self._adopt()
        if self._iteration is not None:
            self._iteration.close()
        self._iteration = None

    def _start(self, number: int, first_epoch: int, worker: LoaderWorker) -> LoaderState:
        """Where the iteration of this number begins: the first one after a restore begins where the
        state says, if the state is of the same epoch.
        """
        if self._restored is not None and number == 0 and first_epoch == self._restored.first_epoch:
            return self._job.resumed(self._restored, worker)
        return self._job.start(first_epoch, first_epoch, worker)

    def _resources_here(self) -> Resources:
        """What this process has for an iteration. The stager is begun when it is first needed."""
        if self._staging is None or self._resources.stager is not None:
            return self._resources
        options, worker = self._staging, get_worker_info()
        # A loop asks loaders in turn as a DataLoader asks its workers.
        num_in_turn = worker.num_workers if worker else int(self._job.num_sharing > 1)
        if num_in_turn:
            self._job = limited(options, self._job, num_in_turn)
            options = share_of(options, self._job, num_in_turn)
        selection = self._job.request.selection
        stager = Stager(
            options, staging_source(selection, accepts_bad=self._job.on_bad_file == SKIP)
        )
        decoded = None
        if options.decoded:
            room_bytes = decoded_room(options, self._job, num_in_turn)
            decoded = DecodedFiles(stager, selection, room_bytes)
        when_gone(self, stager.close)
        self._resources = replace(self._resources, stager=stager, decoded=decoded)
        return self._resources


def _shuffle(shuffle: Shuffle | Mapping[str, Any] | bool | None) -> Shuffle | None:
    if isinstance(shuffle, bool):
        return Shuffle() if shuffle else None
    return as_options(Shuffle, shuffle, "shuffle")


def _follow(
    follow: Follow | Mapping[str, Any] | bool,
    snapshot: Snapshot,
    request: Request,
    key: pa.Field | None,
) -> Following | None:
    """How the table is followed. ConfigError if the table cannot be followed."""
    if follow is False:
        return None
    options = as_options(Follow, {} if follow is True else follow, "follow") or Follow()
    if snapshot.version is None:
        raise ConfigError(
            "follow: expected a Delta table, each partition of which is read once, found plain "
            "Parquet files"
        )
    until = (
        None
        if options.until is None
        else parse_where(options.until, {f.name: f.type for f in snapshot.schema.partition_keys})
    )
    select = partial(matching_in_sections, request=request, key=key)
    return Following(
        options=options,
        url=snapshot.url,
        version=snapshot.version,
        until=until,
        select=select,
        require=partial(require_fresh_files, request=request),
        reads_stale=snapshot.reads_stale,
    )


def _require_followable(job: Job) -> None:
    if job.num_epochs != 1:
        raise ConfigError(
            f"follow: each partition is read once: expected num_epochs 1, found num_epochs "
            f"{job.num_epochs}"
        )
    if job.ordering.kind not in (DYNAMIC, STATIC):
        raise ConfigError(f"follow: expected order dynamic or static, found {job.ordering.kind}")


def _listing(
    snapshot: Snapshot, request: Request, cut: Callable[[Iterable[DataFile]], Iterator[Split]]
) -> Listing:
    """Streams the snapshot's files. Does not keep them if the snapshot can be opened again."""
    kept = snapshot if snapshot.version is None else replace(snapshot, data_files=())
    return Listing(
        stream=partial(stream_data_files, kept), select=partial(selected, kept, request), cut=cut
    )


def _cut_in_order(
    files: SelectedFiles, cut: Callable[[Iterable[DataFile]], Iterator[Split]]
) -> Iterator[tuple[int, Split]]:
    """The splits of files, each with the index of its file."""
    for index, (file, _) in enumerate(files.values()):
        for split in cut((file,)):
            yield index, split


def _largest(census: Census | None, snapshot: Snapshot, request: Request) -> Mapping[str, Listed]:
    """The largest files. SelectionError if `where` matches no file of the table."""
    assert census is not None
    if census.num_splits == 0 and request.where is not None:
        return matching_files(
            replace(snapshot, data_files=tuple(stream_data_files(snapshot))), request
        )
    return census.largest
