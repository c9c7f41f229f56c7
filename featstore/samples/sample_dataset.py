"""`SampleDataset`: the rows of a table by index and by id, in any order, for many readers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from featstore.base.closing import Closing, when_gone
from featstore.base.errors import (
    ConfigError,
    SelectionError,
    StateError,
    UnknownSampleError,
    nearest,
    require_integer,
)
from featstore.base.host import num_cores
from featstore.base.named_errors import NamedErrors
from featstore.loader.request.matching import (
    TableLike,
    matching_files,
    naming_table,
    resolved,
)
from featstore.loader.request.options import as_options
from featstore.loader.request.request import HistoriesOption, Request
from featstore.loader.request.train_config import column_arguments, load_of_table
from featstore.reading.buffers import Array
from featstore.samples.decoded_rows import SampleBatch
from featstore.samples.indices import positions_of
from featstore.samples.lookups import can_be_ids, ids_of_type
from featstore.samples.open_samples import OpenSamples, SamplePlan
from featstore.staging.budget import format_bytes
from featstore.staging.options import Staging
from featstore.statistics.stale_groups import ERROR
from featstore.table.snapshot import Snapshot
from featstore.tensors.batch import Batch

_AUTO = "auto"


class SampleDataset(Dataset[Batch], Closing):
    """The rows of a table as samples, by index and by id, in any order.

    The selected columns are decoded once per host, into memory-mapped files of the staging
    directory; each further process maps the same memory. Every result is a `Batch`, and
    `DataLoader(dataset, batch_size=4096, shuffle=True)` gives batches of that many rows, each by
    one gather, whatever the sampler and the number of workers.

    `dataset[i]` is a batch of one row; a slice or a list of indices is a batch of its rows.
    Negative indices count from the end. A pickled dataset, as spawned workers get it, opens the
    same files.

    Batches are read-only by contract, as the loader's are: those of consecutive rows are views of
    the mapped memory.

    Not thread-safe. `close()`, which the end of a `with` block calls, lets the decoded columns be
    evicted, and removes them if `staging` names no directory.

    Args:
        table: An open table, its snapshot, or the path or URL of a Delta table, or of a directory
            or glob of Parquet files.
        slots: Names, globs, or mappings `{name, buckets, max_len, pad, keep,
            pad_side, dtype}`.
        labels: Scalar numeric columns, delivered as float32 (num_rows,). `{name, null}` says what a
            null label does: `raise`, `drop` the row, or become a number.
        weight: A scalar numeric column, delivered as `batch.weight`, float32 (num_rows,).
        extras: Columns delivered as an Arrow table, `batch.extras`.
        where: SQL condition over partition keys and columns; None takes all rows.
        histories: Histories that are shorter than extracted, `{name: {max_len, window}}`.
        id_column: A column that is not a slot, with a unique value in each row, for `ids` and
            `by_id`.
        staging: Where data files are staged and decoded, and how much room there is. None takes a
            private directory.
        stale_groups: `error` if a slot group is stale in the files read, or `missing` to read its
            slots as missing there.
        decode_threads: The number of decoding threads. `auto` takes all cores.
        progress: Whether to show a progress bar of decoding on standard error.

    Raises:
        ConfigError: An option is invalid.
        SelectionError: A column is not in the table, or `where` is invalid or matches no file.
        BudgetError: The decoded columns do not fit into `staging.budget_bytes`.
        TableNotFoundError: There is no table at `table`.
        StaleGroupError: A slot group that is read is stale.
        DataFileError: A data file cannot be read.
        MissingValueError: A label or the weight is null, and no option says what to do.
        StagingError: The disk is full, or fails.
    """

    def __init__(
        self,
        table: TableLike | Snapshot | str | Path,
        *,
        slots: Iterable[str | Mapping[str, Any]],
        labels: Iterable[str | Mapping[str, Any]] = (),
        weight: str | None = None,
        extras: Iterable[str] = (),
        where: str | None = None,
        histories: HistoriesOption | None = None,
        id_column: str | None = None,
        staging: Staging | Mapping[str, Any] | None = None,
        stale_groups: str = ERROR,
        decode_threads: int | str = _AUTO,
        progress: bool = False,
    ) -> None:
        self._is_closed = False
        with naming_table(table):
            columns = {
                "slots": slots,
                "labels": labels,
                "weight": weight,
                "extras": extras,
                "where": where,
                "histories": histories,
            }
            snapshot, request = resolved(table, columns, stale_groups)
            if request.unique_slots:
                name = next(each.history.name for each in request.histories if each.unique)
                raise ConfigError(
                    f"histories.{name}.unique: expected false, since batches of a SampleDataset "
                    "have each row's own events, found true: leave it out"
                )
            self._named_errors = NamedErrors(snapshot.url)
            self._plan = SamplePlan(
                request=request,
                files=tuple(matching_files(snapshot, request).values()),
                staging=as_options(Staging, staging, "staging") or Staging(),
                num_threads=num_cores()
                if decode_threads == _AUTO
                else require_integer("decode_threads", decode_threads),
                id_column=None if id_column is None else _id_field(request, id_column),
            )
            self._open: OpenSamples | None = OpenSamples(self._plan, progress=progress)
        self._num_samples = self._open.num_samples
        # Also at the end of a worker; never in a forked copy, which uses the same files.
        self._release: Callable[[], object] = when_gone(self, self._open.close)

    def __len__(self) -> int:
        """The number of samples."""
        return self._num_samples

    def __getitem__(self, index: Any) -> Batch:
        """Samples by index.

        Args:
            index: An integer, a slice, or a sequence, array or tensor of integers.

        Raises:
            SampleIndexError: There is no such sample, or it is none of them. An IndexError.
            StagingError: Decoded columns were written to, or truncated, by somebody else.
        """
        with self._named_errors:
            return self._samples.batch(positions_of(index, self._num_samples))

    def __getitems__(self, indices: Sequence[int]) -> list[Batch]:
        """The samples of a DataLoader's batch, gathered at once: a list of one batch, as what a
        `collate_fn` gets. The default one takes it out of the list.
        """
        return [self[indices]]

    def lengths(self, slot: str) -> Array:
        """How many values of a slot each sample has, after `max_len`: int64 (num_samples,). Values
        are not read.

        Args:
            slot: The name of a list slot that is selected without `pad`.

        Raises:
            ConfigError: It is none.
        """
        return self._samples.lengths(self._plan.request.list_slot("lengths", slot))

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all samples, in their order.

        Raises:
            ConfigError: The dataset has no `id_column`.
        """
        self._require_ids()
        return self._samples.ids()

    def by_id(self, ids: Iterable[Any]) -> Batch:
        """The samples with these ids, in this order.

        The first call makes an index of all ids, in the staging directory, for all processes.

        Raises:
            UnknownSampleError: No sample has one of them. A KeyError.
            ConfigError: The dataset has no `id_column`.
            DataFileError: Two samples have the same id.
            TypeError: One is not of the column's type, or would have to be rounded or cut to fit.
        """
        field, wanted = self._require_ids(), list(ids)
        positions = self._samples.find(ids_of_type(wanted, field.type))
        if unknown := [wanted[place] for place in np.flatnonzero(positions < 0).tolist()]:
            raise UnknownSampleError(
                f"id_column {field.name!r}: no sample has {', '.join(map(repr, unknown[:3]))}"
                + (f", nor {len(unknown) - 3} others" if len(unknown) > 3 else "")
            )
        return self._samples.batch(positions)

    @property
    def num_files(self) -> int:
        """The number of data files that hold the samples."""
        return len(self._plan.files)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the staging budget that the decoded columns and indices take."""
        return self._samples.held_bytes

    def close(self) -> None:
        """Lets the decoded columns be evicted. May be called more than once."""
        self._is_closed, self._open = True, None
        self._release()

    def __repr__(self) -> str:
        return (
            f"SampleDataset(num_samples={self._num_samples}, "
            f"slots={[item.slot.name for item in self._plan.request.slots]})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Where the samples are, instead of the samples."""
        opened = self._samples
        plan = replace(opened.plan, checked_states=opened.checked_states)
        named = self._named_errors
        return {"plan": plan, "num_samples": self._num_samples, "named_errors": named}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._plan, self._num_samples = state["plan"], state["num_samples"]
        self._named_errors = state["named_errors"]
        self._is_closed, self._open = False, None
        self._release = lambda: None

    @property
    def _samples(self) -> OpenSamples:
        if self._is_closed:
            raise StateError("this SampleDataset is closed: make it anew")
        if self._open is None:
            self._open = OpenSamples(self._plan)
            self._release = when_gone(self, self._open.close)
            if self._open.num_samples != self._num_samples:
                raise StateError(
                    f"SampleDataset: expected {self._num_samples} samples, as where it was made, "
                    f"found {self._open.num_samples}: make it anew"
                )
        return self._open

    def _require_ids(self) -> pa.Field:
        if self._plan.id_column is None:
            raise ConfigError(
                "id_column: expected the column of ids, to find samples by id, found none: name a "
                "column that the table keeps, `SampleDataset(..., id_column='request_id')`"
            )
        return self._plan.id_column


def _id_field(request: Request, name: str) -> pa.Field:
    schema = request.schema
    field = next((field for field in schema.others if field.name == name), None)
    if field is None and name not in schema:
        known = [field.name for field in schema.others]
        raise SelectionError(
            f"id_column: no column {name!r} beside the slots of the table{nearest(name, known)}"
        )
    if field is None or not can_be_ids(field.type):
        found = "a slot" if field is None else field.type
        raise ConfigError(
            f"id_column: {name!r}: expected a column of text, integers or timestamps without "
            f"nanoseconds that is not a slot, found {found}"
        )
    return field.with_nullable(True)


def _collated(batches: Sequence[Batch], **_: Any) -> Batch:
    """What `torch.utils.data.default_collate` makes of batches: one of all their rows."""
    return batches[0] if len(batches) == 1 else Batch.concat(batches)


default_collate_fn_map[SampleBatch] = _collated


@dataclass(frozen=True, kw_only=True)
class DecodedReport:
    """What `warm_decoded` found or made in a cache.

    Attributes:
        num_samples: The samples of a `SampleDataset` with the options of the config.
        num_files: The data files that they are of.
        size_bytes: What their decoded columns, and indices, take of the budget.
    """

    num_samples: int
    num_files: int
    size_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_samples:,} samples of {self.num_files:,} files: "
            f"{format_bytes(self.size_bytes)} of decoded columns are in the cache"
        )


def warm_decoded(config_url: str, *, table: str | None = None) -> DecodedReport:
    """Decodes the columns that a training config selects into its `staging.directory`, where each
    `SampleDataset` with the same `slots`, `labels`, `weight`, `extras` and `where` finds them.

    Args:
        config_url: Path or URL of the training config.
        table: Replaces the config's table.

    Raises:
        ConfigError: The config is invalid, or names no `staging.directory`.
        Everything that `SampleDataset` raises.
    """
    config = load_of_table(config_url, table)
    if "tables" in config:
        raise ConfigError(
            "tables: expected `table`, since a SampleDataset is of one table, found `tables`: warm "
            "each of them with a config of its own"
        )
    options = as_options(Staging, config.get("staging"), "staging") or Staging()
    options.require_directory()
    chosen = {**column_arguments(config), "staging": options}
    chosen.pop("negatives", None)  # A training run leaves rows out, a SampleDataset does not.
    with SampleDataset(str(config["table"]), **chosen, progress=True) as dataset:
        return DecodedReport(
            num_samples=len(dataset),
            num_files=dataset.num_files,
            size_bytes=dataset.decoded_bytes,
        )
