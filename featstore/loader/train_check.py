"""Checks a training config without training: what `featstore train check` prints."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import pyarrow as pa

from featstore.base.errors import MissingValueError
from featstore.base.redaction import redact
from featstore.base.schema import SlotKind
from featstore.base.text_table import Printed, text_table
from featstore.loader.description import described, mixed_descriptions
from featstore.loader.iteration.candidates import CandidatePool
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Rendezvous
from featstore.loader.iteration.slice_source import rows_in_place
from featstore.loader.plan.column_sizes import ColumnSizes, events_per_row
from featstore.loader.plan.ordering import DYNAMIC, EVEN_SPLITS, splits_of_shares, uneven_shares
from featstore.loader.request.decode import null_error
from featstore.loader.request.matching import matching_files
from featstore.loader.request.options import SlotRequest
from featstore.loader.request.request import RAISE, Request
from featstore.loader.request.train_config import load_of_table, mixed_tables
from featstore.spec.value_names import ValueNames
from featstore.staging.budget import format_bytes
from featstore.staging.options import Staging
from featstore.statistics.values_file import find_names
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, Snapshot
from featstore.tensors.column_arrays import CANDIDATE, CANDIDATE_LENGTHS
from featstore.tensors.columns import Column, Jagged, SharedJagged

_OFFSET_BYTES, _RANGE_BYTES = 8, 3 * 8
_ITEM_BYTES = {"int32": 4, "float16": 2, "bfloat16": 2}
# Footers that are read for the bytes of columns, of files spread evenly over the sorted paths.
_MAX_FOOTERS = 16
# Numbers of ranks of which the shares of an epoch are shown.
_NUM_RANKS = (2, 4, 8)
# How many values of a list are shown at each of its ends.
_SHOWN_AT_AN_END = 5
_HEADERS = ("name", "role", "kind", "batch", "dtype", "stored B/row", "batch B/row")
_ALIGN = ("left", "left", "left", "left", "left", "right", "right")


@dataclass(frozen=True, kw_only=True)
class CheckedColumn:
    """A column of the batches, or one that is only read for them.

    Attributes:
        name: The name.
        role: `slot`, `label`, `weight`, `extra`, `candidate`, or `read`: such as of `where`, and of
            where the histories of rows lie.
        kind: `id` or `float` for a slot; the Arrow type of another column.
        batch: The shape in a batch of B rows, such as `[B]`, `[B, 20]` or `jagged`; `-` if it is
            only read.
        dtype: The dtype in a batch.
        stored_bytes_per_row: What is read of the files, compressed.
        batch_bytes_per_row: What it takes in a batch. For lists it is an estimate from the number
            of values in the footers, where an empty list counts as one value; for histories from
            the lengths of rows in some row groups.
        is_limit: Whether batches may take less than that: `max_len` or `window` shorten lists, or
            rows share the events of a history (`unique`).
    """

    name: str
    role: str
    kind: str
    batch: str
    dtype: str
    stored_bytes_per_row: float
    batch_bytes_per_row: float
    is_limit: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainCheck(Printed):
    """What a training config reads, and what its batches hold.

    Attributes:
        config: The config.
        table: The table, without secrets.
        version: The version of the table; None for plain Parquet.
        num_files: The data files whose partitions can match `where`.
        num_splits: The splits of one epoch.
        num_rows: The rows of these files that are not deleted. Fewer are delivered if `where`
            chooses among them.
        files_bytes: The bytes of these files, all of their columns.
        order: Which worker reads which rows.
        num_footers: The files of which the bytes per row are a mean.
        columns: The columns of the batches, and those that are only read.
        cache_bytes: The budget of a staging directory to which whole files may go; None if there is
            none.
        candidates: What is drawn for each row, and the memory of its pool: `per_row`, `num_items`,
            and `pool_bytes`, which each process takes. None if nothing is.
        null_labels: What a run says of null labels and weights, unless `where`, `negatives` or row
            masks leave their rows out. Not part of `as_dict`.
        head: The first rows, as a batch holds them, by column. None where they were not asked for.
        names: What their ids mean, as far as the table knows. Not part of `as_dict`.
    """

    config: str
    table: str
    version: int | None
    num_files: int
    num_splits: int
    num_rows: int
    files_bytes: int
    order: str
    num_footers: int
    columns: tuple[CheckedColumn, ...]
    cache_bytes: int | None = None
    candidates: Mapping[str, int] | None = None
    null_labels: tuple[str, ...] = ()
    head: Mapping[str, Sequence[Any]] | None = field(default=None)
    names: ValueNames = field(default=ValueNames(), repr=False)

    @property
    def stored_bytes_per_row(self) -> float:
        """Of all columns."""
        return sum(column.stored_bytes_per_row for column in self.columns)

    @property
    def batch_bytes_per_row(self) -> float:
        """Of all columns."""
        return sum(column.batch_bytes_per_row for column in self.columns)

    @property
    def is_limit(self) -> bool:
        """Of any column."""
        return any(column.is_limit for column in self.columns)

    def text(self, width: int | None = None) -> str:
        """The check as text, with tables of `width` characters at most if given."""
        rows = [
            (*texts, f"{stored:,.1f}", _at_most(batch, is_limit))
            for *texts, stored, batch, is_limit in map(astuple, self.columns)
        ]
        parts = [text_table(rows, _HEADERS, align=_ALIGN, width=width), self._summary()]
        if self.head is not None:
            num_rows = max((len(values) for values in self.head.values()), default=0)
            texts = [
                (name, *(_value_text(value, name, self.names) for value in values))
                for name, values in self.head.items()
            ]
            headers = ("column", *(f"row {i}" for i in range(num_rows)))
            parts.append(text_table(texts, headers, width=width) if num_rows else "no row matches")
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The check as JSON types."""
        fields = asdict(replace(self, names=ValueNames()))
        del fields["names"], fields["null_labels"]
        return fields | {
            "stored_bytes_per_row": self.stored_bytes_per_row,
            "batch_bytes_per_row": self.batch_bytes_per_row,
            "is_limit": self.is_limit,
        }

    def _summary(self) -> str:
        at = "" if self.version is None else f", version {self.version}"
        epoch_bytes = round(self.stored_bytes_per_row * self.num_rows)
        share = epoch_bytes / max(1, self.files_bytes)
        lines = [
            f"{self.table}{at}: {self.num_rows:,} rows in {self.num_files:,} files, "
            f"{self.num_splits:,} splits",
            *self._shares(),
            f"a row: {self.stored_bytes_per_row:,.1f} bytes stored, "
            f"{_at_most(self.batch_bytes_per_row, self.is_limit)} in a batch "
            f"(means over {self.num_footers:,} files); an epoch reads "
            f"{format_bytes(epoch_bytes)}, {share:.0%} of the bytes of the files",
            *self._notes(epoch_bytes),
        ]
        return "\n".join(lines)

    def _notes(self, epoch_bytes: int) -> Iterator[str]:
        """What there is to say of whole files that the cache cannot hold where it holds the
        selected columns, and of null labels.
        """
        if self.cache_bytes is not None and epoch_bytes <= self.cache_bytes < self.files_bytes:
            yield (
                f"staging: whole files take {format_bytes(self.files_bytes)}, more than the budget "
                f"of {format_bytes(self.cache_bytes)}: if they are staged whole, each epoch "
                "downloads again what was evicted; mode ranges keeps the selected columns, and "
                "what lies between"
            )
        if (drawn := self.candidates) is not None:
            yield (
                f"candidates: {drawn['per_row']} of {drawn['num_items']:,} items for each row; the "
                f"pool takes {format_bytes(drawn['pool_bytes'])} of memory in each process"
            )
        has_numbers = any(column.role in ("label", "weight") for column in self.columns)
        if has_numbers and self.num_footers != self.num_files:
            yield f"null labels and weights: looked for in {self.num_footers:,} of the files"
        for text in self.null_labels:
            yield f"{text} (unless `where` or a row mask leaves them out)"

    def _shares(self) -> Iterator[str]:
        """The splits of ranks that train in step; nothing if those of eight are nearly equal."""
        if self.order == DYNAMIC and uneven_shares(self.num_splits, _NUM_RANKS[-1]):
            shares = ", ".join(
                f"{ranks} ranks {_span(*splits_of_shares(self.num_splits, ranks))}"
                for ranks in _NUM_RANKS
            )
            yield (
                f"splits of ranks in step: {shares}; {EVEN_SPLITS} for each are even enough "
                "(dispatch.split_rows)"
            )


@dataclass(frozen=True, kw_only=True)
class MixedCheck(Printed):
    """What a training config with `tables` reads.

    Attributes:
        config: The config.
        stop: When an epoch ends: `first_exhausted` or `all_exhausted`.
        shares: Each table's share of the batches, from 0 to 1.
        tables: What is read of each.
    """

    config: str
    stop: str
    shares: tuple[float, ...]
    tables: tuple[TrainCheck, ...]

    def text(self, width: int | None = None) -> str:
        """The checks as text, with tables of `width` characters at most if given."""
        parts = [f"{len(self.tables)} tables, stop {self.stop}"]
        for i, (share, table) in enumerate(zip(self.shares, self.tables, strict=True)):
            parts.append(f"tables[{i}], {share:.1%} of the batches\n\n{table.text(width)}")
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The checks as JSON types."""
        return {
            "config": self.config,
            "stop": self.stop,
            "shares": list(self.shares),
            "tables": [table.as_dict() for table in self.tables],
        }


def check(config_url: str, *, head: int = 0, table: str | None = None) -> TrainCheck | MixedCheck:
    """Checks everything about a training config that a run checks before its first batch.

    Args:
        config_url: Path or URL of the training config.
        head: How many of the first rows to read. They are read in place, in the order of the files,
            and neither the config's dispatch store nor its staging directory is touched.
        table: Replaces the config's table.

    Raises:
        ConfigError: The config is invalid, or options do not fit the table or each other.
        SelectionError: A column is not in the table, or `where` is invalid or matches no file.
        TableNotFoundError: There is no table.
        BudgetError: The files that are open at once do not fit into the staging budget.
        DataFileError: A data file cannot be read.
        MissingValueError: A label or the weight is null in rows of the files whose footers are
            read, and nothing is said of it (`null`), nor may `where` leave these rows out.
    """
    config = load_of_table(config_url, table)
    if "tables" not in config:
        return _check(config_url, config, head)
    mixed = mixed_tables(config)
    mixed_descriptions(mixed)
    return MixedCheck(
        config=redact(config_url),
        stop=mixed.stop,
        shares=tuple(weight / sum(mixed.weights) for weight in mixed.weights),
        tables=tuple(_check(config_url, each, head) for each in mixed.configs),
    )


def _check(config_url: str, config: Mapping[str, Any], head: int) -> TrainCheck:
    """The check of one table."""
    snapshot = open_snapshot(str(config["table"]))
    made = described(**{**config, "table": snapshot})
    Rendezvous(made.dispatch, made.job.key, made.job.num_epochs).close()
    request = made.job.request
    matching = matching_files(snapshot, request)
    files = [file for file, _ in matching.values()]
    sampled = _sampled(files)
    sizes = ColumnSizes.of(sampled, request.selection)
    nulls = _nulls(request, sizes, redact(snapshot.url))
    is_filtered = request.where is not None and not matching.are_decided
    leaves_out = is_filtered or request.negatives is not None or matching.files.has_masks
    if nulls and not leaves_out:
        raise nulls[0]
    first = _head(replace(made.job, files=matching), files, head) if head else None
    return TrainCheck(
        config=redact(config_url),
        table=redact(snapshot.url),
        version=snapshot.version,
        num_files=len(files),
        num_splits=sum(1 for _ in made.job.cut(files)),
        num_rows=sum(file.num_left for file in files),
        files_bytes=sum(part.size_bytes for file in files for part in file.parts),
        order=made.job.ordering.kind,
        num_footers=len(sampled),
        columns=(
            *_columns(request, sizes, sampled),
            *(_candidates(made.pool) if made.pool else ()),
        ),
        cache_bytes=_cache_bytes(made.staging, snapshot),
        candidates=None if made.pool is None else _drawn(made.pool),
        null_labels=tuple(map(str, nulls)),
        head=first,
        names=_names(snapshot, request, first) if first else ValueNames(),
    )


def _drawn(pool: CandidatePool) -> dict[str, int]:
    """What is drawn of a pool, which is read as a run reads it."""
    items = pool.load()
    return {
        "per_row": pool.options.per_row,
        "num_items": len(items),
        "pool_bytes": items.num_bytes,
    }


def _nulls(request: Request, sizes: ColumnSizes, table: str) -> list[MissingValueError]:
    """What a run would raise of labels and the weight that are null in rows of the read files."""
    return [
        null_error(
            number,
            "weight" if number is request.weight else "label",
            table,
            sizes.num_nulls[number.name],
            sizes.num_rows,
        )
        for number in request.numbers
        if number.null == RAISE and sizes.num_nulls[number.name]
    ]


def _cache_bytes(staging: Staging | None, snapshot: Snapshot) -> int | None:
    if staging is None or staging.directory is None or staging.mode == "ranges":
        return None
    return (
        staging.num_budget_bytes
        if staging.stages(next(snapshot.data_files.urls, snapshot.url))
        else None
    )


def _columns(
    request: Request, sizes: ColumnSizes, files: Sequence[DataFile]
) -> Iterator[CheckedColumn]:
    # Ages are made of the events' times, which count once.
    times = {each.ages[0][0].name: each.history.times for each in request.histories if each.ages}
    num_events = events_per_row(request.histories, files)
    windows = {each.history.name for each in request.histories if each.oldest_us is not None}
    for item in request.slots:
        source = times.get(item.slot.name, item.slot)
        events = None if item.history is None else num_events[item.history]
        column = _slot_column(item, sizes.bytes_per_row(source.name), sizes, events)
        column = replace(column, is_limit=column.is_limit or item.history in windows)
        if item.slot.name in request.unique_slots:
            num_bytes = column.batch_bytes_per_row - _OFFSET_BYTES + _RANGE_BYTES
            column = replace(column, batch="unique", batch_bytes_per_row=num_bytes, is_limit=True)
        yield column
    shown = {*(item.slot.name for item in request.slots), *(slot.name for slot in times.values())}
    others = [("label", label.field) for label in request.labels]
    others += [("weight", request.weight.field)] if request.weight is not None else []
    others += [("extra", extra) for extra in request.extras]
    for role, column in others:
        is_extra, stored = role == "extra", sizes.bytes_per_row(column.name)
        yield CheckedColumn(
            name=column.name,
            role=role,
            kind=str(column.type),
            batch="Arrow" if is_extra else "[B]",
            dtype=str(column.type) if is_extra else "float32",
            stored_bytes_per_row=stored,
            batch_bytes_per_row=_arrow_bytes(column.type, stored) if is_extra else 4,
        )
        shown.add(column.name)
    selection = request.selection
    read = [(slot.name, str(slot.kind)) for slot in selection.slots]
    read += [(other.name, str(other.type)) for other in selection.others]
    for name, kind in read:
        if name not in shown:
            yield CheckedColumn(
                name=name,
                role="read",
                kind=kind,
                batch="-",
                dtype="-",
                stored_bytes_per_row=sizes.bytes_per_row(name),
                batch_bytes_per_row=0,
            )


def _candidates(pool: CandidatePool) -> Iterator[CheckedColumn]:
    """The slots of the items of each row, which are read once, and `log_q`."""
    per_row, request = pool.options.per_row, pool.job.request
    sizes = ColumnSizes.of(_sampled(list(pool.job.files.files)), request.selection)
    for item in request.slots:
        column = _slot_column(item, 0, sizes)
        own_bytes = _OFFSET_BYTES if item.is_jagged else 0  # Of rows; of items there are lengths.
        yield replace(
            column,
            role="candidate",
            batch=column.batch.replace("[B", f"[B, {per_row}"),
            batch_bytes_per_row=per_row * column.batch_bytes_per_row + own_bytes,
        )
    yield CheckedColumn(
        name="log_q",
        role="candidate",
        kind="float",
        batch=f"[B, {per_row}]",
        dtype="float32",
        stored_bytes_per_row=0,
        batch_bytes_per_row=4 * per_row,
    )


def _sampled(files: Sequence[DataFile]) -> Sequence[DataFile]:
    """Files whose footers are read. The newest are among them: where labels are not known yet, they
    are so there.
    """
    return files[:: -max(1, -(-len(files) // _MAX_FOOTERS))]


def _slot_column(
    item: SlotRequest, stored_bytes: float, sizes: ColumnSizes, num_events: float | None = None
) -> CheckedColumn:
    """Of a slot of a history: with the events that a row has."""
    slot = item.slot
    dtype, width, is_jagged = item.batch_dtype, item.batch_width, item.is_jagged
    item_bytes = _ITEM_BYTES.get(dtype, 8 if slot.kind is SlotKind.ID else 4)
    num_items = sizes.values_per_row(slot.name) if is_jagged else (width or 1)
    num_items = num_items if num_events is None else num_events
    is_cut = item.max_len is not None
    num_items = min(num_items, item.max_len or num_items)
    return CheckedColumn(
        name=slot.name,
        role="slot",
        kind=str(slot.kind),
        batch="jagged" if is_jagged else "[B]" if width is None else f"[B, {width}]",
        dtype=dtype,
        stored_bytes_per_row=stored_bytes,
        batch_bytes_per_row=num_items * item_bytes + (_OFFSET_BYTES if is_jagged else 0),
        is_limit=is_cut,
    )


def _at_most(num_bytes: float, is_limit: bool) -> str:
    return f"{'at most ' if is_limit else ''}{num_bytes:,.1f}"


def _arrow_bytes(type_: pa.DataType, stored_bytes: float) -> float:
    """The bytes of a value in Arrow memory; of types without a fixed width, its stored bytes."""
    try:
        return float(type_.bit_width / 8)
    except ValueError:
        return stored_bytes


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _head(job: Job, files: Sequence[DataFile], num_rows: int) -> dict[str, list[Any]]:
    """The first rows of the files by column of a batch: slots, labels, weight and extras."""
    job = replace(job, batch_size=num_rows, cap=None, shuffle=None)
    with closing(rows_in_place(job, job.cut(files))) as slices:
        if (found := next(slices, None)) is None:
            return {}
        batch = found.batch()
    rows = {
        name: _as_list(column)
        for (role, name), column in batch.made().items()
        if role not in (CANDIDATE, CANDIDATE_LENGTHS)
    }
    for name, column in batch.candidates.items():
        of_items, step = _as_list(column), len(column) // len(batch)
        if isinstance(column, Jagged):  # The lists of a row follow one another.
            of_items = [of_items[i : i + step] for i in range(0, len(of_items), step)]
        rows[f"candidates {name}"] = of_items
    return rows | {name: batch.extras[name].to_pylist() for name in batch.extras.column_names}


def _as_list(column: Column) -> list[Any]:
    if isinstance(column, SharedJagged):
        column = column.expand()
    return [row.tolist() for row in column] if isinstance(column, Jagged) else column.tolist()


def _value_text(value: object, name: str, names: ValueNames) -> str:
    """A value of a column; ids of the slots in `names` as their texts, or as short signs. A long
    list by its first and last values.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        texts = [_value_text(item, name, names) for item in value]
        if len(texts) > 2 * _SHOWN_AT_AN_END:
            between = f"... ({len(texts):,} values) ..."
            texts[_SHOWN_AT_AN_END:-_SHOWN_AT_AN_END] = [between]
        return " ".join(texts) or "(empty)"
    if isinstance(value, int) and value and name in names.by_slot:
        return names.text(name, value)
    return str(value)


def _names(snapshot: Snapshot, request: Request, head: Mapping[str, Sequence[Any]]) -> ValueNames:
    """What the ids of the first rows mean: of all id slots, also those without a known text.
    Buckets are no ids any more.
    """
    slots = [
        item.slot.name
        for item in request.slots
        if item.slot.kind is SlotKind.ID and item.buckets is None and item.slot.name in head
    ]
    found = find_names(snapshot, {name: set(_flat(head[name])) for name in slots})
    return ValueNames(by_slot={name: found.by_slot.get(name, {}) for name in slots})


def _flat(values: Sequence[Any]) -> Iterator[int]:
    for value in values:
        yield from value if isinstance(value, list) else [value]
