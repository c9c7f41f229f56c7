"""`FeatureLoader`: from a table and a selection of its slots to batches."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from featstore.base.closing import Closing
from featstore.base.errors import ConfigError, require_integer
from featstore.dispatch.options import AUTO, Dispatch
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock
from featstore.loader.batches.bad_files import ERROR
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.stats import OnStats, on_stats_options
from featstore.loader.batches.transform import Transform
from featstore.loader.description import described
from featstore.loader.device import DeviceFeed
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.iteration.step_agreement import JOIN
from featstore.loader.mixed_source import MixedIterator, MixedSource
from featstore.loader.mixed_state import merge_any_states
from featstore.loader.plan.follow import Follow
from featstore.loader.plan.ordering import Ordering
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.candidates import Candidates
from featstore.loader.request.matching import TableLike
from featstore.loader.request.request import HistoriesOption, Negatives
from featstore.loader.request.train_config import load_train_config, mixed_tables
from featstore.loader.table_source import TableSource
from featstore.loader.tensorflow_dataset import tensorflow_dataset
from featstore.staging.options import Staging
from featstore.statistics.stale_groups import ERROR as STALE_ERROR
from featstore.table.snapshot import Snapshot
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Device
from featstore.tensors.numpy_batch import NumpyFeed


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
            null.
        batch_size: Rows per batch; with `batch`, the most rows.
        batch: A cap on the values of a list slot in a batch, `{max_values: 60000, of: history}`: a
            batch ends before the row that would exceed it.
        where: SQL condition over partition keys and columns; None reads all rows.
        seed: Seed of the order of splits and of shuffling.
        num_epochs: Epochs per iteration of the loader.
        drop_last: Whether to leave out a last batch that ended for lack of rows.
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
        histories: How histories are delivered, by name: `{clicks: {max_len: 500, window: 30d,
            unique: true}}`: shorter than extracted, and each event of a batch once. Slots of them
            are selected in `slots`.
        candidates: Items that are drawn for each row from a table of them, `{pool, per_row, id,
            by, slots, where, version}`: `batch.candidates` and `batch.log_q`.
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

    def __init__(
        self,
        table: TableLike | Snapshot | str | Path,
        *,
        slots: Iterable[str | Mapping[str, Any]],
        labels: Iterable[str | Mapping[str, Any]] = (),
        weight: str | None = None,
        extras: Iterable[str] = (),
        batch_size: int = 8192,
        batch: BatchCap | Mapping[str, Any] | None = None,
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
        histories: HistoriesOption | None = None,
        candidates: Candidates | Mapping[str, Any] | None = None,
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
        description = described(
            table,
            slots=slots,
            labels=labels,
            weight=weight,
            extras=extras,
            batch_size=batch_size,
            batch=batch,
            where=where,
            seed=seed,
            num_epochs=num_epochs,
            drop_last=drop_last,
            order=order,
            shuffle=shuffle,
            staging=staging,
            dispatch=dispatch,
            follow=follow,
            tail=tail,
            memory_budget=memory_budget,
            decode_threads=decode_threads,
            negatives=negatives,
            histories=histories,
            candidates=candidates,
            transform=transform,
            on_stats=on_stats,
            on_bad_file=on_bad_file,
            stale_groups=stale_groups,
            progress=progress,
            debug=debug,
        )
        self._source: TableSource | MixedSource = TableSource(description, self._clock)

    @classmethod
    def from_config(
        cls, source: str | Path | Mapping[str, Any], **overrides: Any
    ) -> "FeatureLoader":
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
        if "tables" not in config:
            return cls(**config)
        loader = cls.__new__(cls)
        on_stats = on_stats_options(config.get("on_stats"))
        loader._source = MixedSource(mixed_tables(config), on_stats)
        return loader

    merge_states = staticmethod(merge_any_states)
    # What leases are judged by; tests have one in simulated time.
    _clock: Clock = SYSTEM_CLOCK

    def __repr__(self) -> str:
        return f"FeatureLoader({self._source})"

    def __iter__(self) -> BatchIterator | MixedIterator:
        return self._source.__iter__()

    @property
    def num_epochs(self) -> int:
        """How many epochs each iteration reads."""
        return self._source.num_epochs

    def __len__(self) -> int:
        """The exact number of batches that this process, with its DataLoader workers, gets from the
        next iteration in static order.

        Raises:
            TypeError: The order is another one, the loader follows a table, or `where`,
                `negatives`, `null: drop` or row masks leave out rows that have to be read first.
        """
        return self._source.num_batches()

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
            ConfigError: The loader has a `transform`, candidates or tail `pad`, or a slot is
                bfloat16.
        """
        source = self._source
        if isinstance(source, MixedSource):
            raise ConfigError("to_tf(): expected a loader of one table, found a mixture")
        if source.job.makes_batches or source.job.tail.pads:
            raise ConfigError(
                "to_tf(): expected a loader without transform and tail pad, and without "
                "candidates: what they make is not known before the first batch; use the dataset's "
                "map(), and tail drop, and numpy() for candidates"
            )
        return tensorflow_dataset(self.numpy(), source.job.request)

    def ack(self) -> None:
        """Counts the last batch as delivered now, not only when the next one is asked for."""
        self._source.ack()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, and ends the one under way.

        A loaded state is dropped, unless its iteration began with the same epoch; then the rest of
        that epoch follows.

        Args:
            epoch: Number of the epoch, from 0. The order of rows follows from it and the seed.

        Raises:
            ConfigError: `epoch` is not an integer of 0 or more.
        """
        self._source.set_epoch(require_integer("epoch", epoch, minimum=0))

    def state_dict(self) -> dict[str, Any]:
        """What this process has delivered. May be called between any two batches.

        Returns:
            Small JSON data. Merge the states of several workers with `merge_states`.

        Raises:
            StateError: DataLoader workers of this process read the batches, so each of them has a
                state of its own.
        """
        return self._source.state_dict()

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
        self._source.load_state_dict(state)

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
        return self._source.recorded_order(epoch)

    def stats(self) -> dict[str, Any]:
        """Metrics of this process since the loader was made. May be called from any thread.

        Returns:
            Counts, and seconds under names that end with `_s`. `wait_s`: how long the consumer
            waited for batches. `decode_s`: how long reading and decoding took. `stages`: busy and
            waiting seconds, bytes, rows and retries of `staging`, `decode`, `assemble`, `transform`
            and `delivery`. `slots`: for each column that was read, its `bytes` as stored, and its
            part of the busy seconds of the stages `decode` and `assemble`. `queues`: what waits now
            between two threads, and what is made and reserved ahead of the loop. `memory`: the
            memory budget, and what is held of it now and was at most. `worker`: which
            process this is: `host`, `rank`, `index` and `num_workers`, DataLoader workers counted.
        """
        return self._source.stats()

    def verdict(self) -> str:
        """What this process's last epoch waited for and what would help, in one line; empty before
        the end of the first. Where DataLoader workers read the batches, it says where theirs are.

        Also logged at level info by `featstore.loader`.
        """
        return self._source.verdict()

    def close(self) -> None:
        """Ends the iteration under way, removes temporary files and frees memory.

        May be called from any thread and more than once. The loader may be iterated again.

        Raises:
            DispatchError: The store did not answer, and may lack what was acknowledged last. All
                is closed nevertheless. Not always raised where all was told before.
        """
        self._source.close()
