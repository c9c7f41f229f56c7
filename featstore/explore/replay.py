"""Replay: recomputes logged raw rows and compares them with the rows of a table, in order.

It proves that what was logged online, or by an earlier version, gives the stored values today.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.redaction import redact
from featstore.explore.table import Table, open_table
from featstore.extraction.units.extractor import Extractor, check_no_histories
from featstore.extraction.units.raw import Unit, find_raw_files, plan_units
from featstore.extraction.units.unit import extract_unit
from featstore.reading.tables import marks_to_nulls, nan_to_null
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.statistics.stale_groups import ERROR
from featstore.table.metadata import require_input_order
from featstore.table.parquet_dir import texts_of

_MAX_EXAMPLES = 3
_WHOLE_FILES = 2**62  # rows per unit: more than any file has, so that units are whole partitions


@dataclass(frozen=True, kw_only=True)
class Example:
    """One value that differs.

    Attributes:
        partition: The values of the partition keys.
        row: The row's position among the partition's raw rows, from 0, without skipped ones.
        in_table: The stored value; None if missing.
        recomputed: The value of the raw row; None if missing.
    """

    partition: Mapping[str, str]
    row: int
    in_table: object
    recomputed: object

    def __str__(self) -> str:
        where = "".join(f"{key}={value} " for key, value in self.partition.items())
        return (
            f"{where}row {self.row}: {self.in_table!r} in the table, {self.recomputed!r} recomputed"
        )


@dataclass(kw_only=True)
class ColumnReport:
    """The differences of one column.

    Attributes:
        num_mismatch: Rows whose values differ and are both present.
        num_missing: Rows whose value is missing in the table only.
        num_extra: Rows whose value is missing in the recomputed row only.
        examples: The first differences.
    """

    num_mismatch: int = 0
    num_missing: int = 0
    num_extra: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def num_different(self) -> int:
        """All rows that differ."""
        return self.num_mismatch + self.num_missing + self.num_extra

    def add(self, example: Example) -> None:
        """Counts a difference, and keeps the first few as examples."""
        self.num_missing += example.in_table is None
        self.num_extra += example.recomputed is None
        self.num_mismatch += example.in_table is not None and example.recomputed is not None
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(example)

    def __str__(self) -> str:
        counts = (
            f"{self.num_mismatch:,} mismatch, {self.num_missing:,} missing, {self.num_extra:,} "
            f"extra"
        )
        return "\n".join([counts, *(f"    {example}" for example in self.examples)])


@dataclass(kw_only=True)
class ReplayReport:
    """The result of a replay.

    Attributes:
        table_url: The table.
        columns: The differences by column, for all columns compared.
        not_replayed: Slots of the table that the spec lacks.
        num_rows: Rows compared.
        num_rows_skipped: Raw rows skipped as malformed, as `on_error` says.
        num_rows_missing: Rows that the table lacks.
        num_rows_extra: Rows that the raw log lacks.
    """

    table_url: str = field(repr=False)
    columns: dict[str, ColumnReport]
    not_replayed: tuple[str, ...] = ()
    num_rows: int = 0
    num_rows_skipped: int = 0
    num_rows_missing: int = 0
    num_rows_extra: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no differences. Rows skipped as malformed do not count."""
        return not (
            self.num_rows_missing
            or self.num_rows_extra
            or any(c.num_different for c in self.columns.values())
        )

    def __str__(self) -> str:
        lines = [
            f"{name}: {column}" for name, column in self.columns.items() if column.num_different
        ]
        if self.num_rows_missing or self.num_rows_extra:
            lines.append(
                f"rows: {self.num_rows_missing:,} missing in the table, {self.num_rows_extra:,} "
                f"extra in the table"
            )
        if self.not_replayed:
            lines.append(f"not in the spec, not compared: {', '.join(self.not_replayed)}")
        if self.num_rows_skipped:
            lines.append(
                f"rows: {self.num_rows_skipped:,} raw rows skipped as malformed, as `on_error` says"
            )
        columns = (
            f"{self.num_rows:,} rows of {len(self.columns):,} columns compared with "
            f"{redact(self.table_url)}"
        )
        return "\n".join([*lines, f"{columns}: {'equal' if self.ok else 'different'}"])


def replay(
    spec: Spec | str | Path,
    raw_url: str,
    table_url: str,
    *,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    stale_groups: str = ERROR,
) -> ReplayReport:
    """Extracts raw rows again and compares them with the table's rows of the same partitions, in
    order.

    Slots are matched by number, other columns by name. Memory holds a batch and a row group.

    Args:
        spec: The spec, or the URL of its YAML file.
        raw_url: The raw Parquet files that were extracted by file input, in the same order.
        table_url: The table.
        partition: Partition values for all of the input.
        partition_from_path: Partition keys whose values come from `key=value/` directories.
        stale_groups: As of `open_table`.

    Raises:
        SpecError, InputError, OperatorError: As for `featstore.extract`.
        InputError: Also where rows are clustered, so not in the order of the raw rows.
        TableNotFoundError: There is no table at the URL.
        StaleGroupError: A slot group with slots of the spec is stale in these partitions.
    """
    parsed = spec if isinstance(spec, Spec) else load_spec(spec)
    check_no_histories(parsed, "a replay")
    extractor = Extractor(parsed)
    files = find_raw_files(raw_url, partition or {}, partition_from_path, parsed.raw_types)
    units = plan_units(files, _WHOLE_FILES)
    table = open_table(table_url, stale_groups=stale_groups)
    keys = {key.name for key in table.schema.partition_keys}
    for unit in units:
        if unit.partition.keys() != keys:
            expected = ", ".join(sorted(keys)) or "none"
            raise InputError(
                f"{redact(table_url)}: expected its partition keys ({expected}), found "
                f"{dict(unit.partition)}"
            )
    names = extractor.schema.column_names
    numbers = {slot.number for slot in extractor.schema}
    report = ReplayReport(
        table_url=table_url,
        columns={name: ColumnReport() for name in names},
        not_replayed=tuple(
            s.name for s in table.slots if s.number not in numbers and s.name not in names
        ),
    )
    for unit in units:
        _replay_unit(extractor, unit, table, report)
    report.num_rows_skipped = extractor.findings.num_rows_skipped
    return report


def _replay_unit(extractor: Extractor, unit: Unit, table: Table, report: ReplayReport) -> None:
    schema = replace(extractor.schema, partition_keys=table.schema.partition_keys)
    files = table.snapshot.in_partitions([unit.partition])
    require_input_order(
        ((file.path, text) for file, text in texts_of(files)),
        "replay compares",
        "replay a table that was extracted without it: its rows have the same values",
    )
    # The table is read with the spec's schema, so that slots are matched by number.
    stored = Table(replace(table.snapshot, schema=schema, data_files=files))
    fields = extractor.schema.to_arrow(nullable=True)
    recomputed_batches = (_with_nulls(extractor, batch) for batch in extract_unit(unit, extractor))
    stored_batches = (batch.select(fields.names) for batch in stored.to_batches())
    first_row = 0
    for recomputed, in_table in pair_slices(recomputed_batches, stored_batches):
        if recomputed is None or in_table is None:
            report.num_rows_missing += 0 if recomputed is None else recomputed.num_rows
            report.num_rows_extra += 0 if in_table is None else in_table.num_rows
            continue
        for name, column in report.columns.items():
            _compare(recomputed[name], in_table[name], column, unit.partition, first_row)
        first_row += recomputed.num_rows
    report.num_rows += first_row


def _with_nulls(extractor: Extractor, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as rows are read from a table: missing values as null, and NaN as null in columns
    that are not slots.
    """
    table = marks_to_nulls(pa.Table.from_batches([batch]), extractor.schema.slots)
    for column in extractor.schema.others:
        index = table.schema.get_field_index(column.name)
        table = table.set_column(index, table.field(index), nan_to_null(table.column(index)))
    return table.combine_chunks().to_batches()[0] if len(table) else batch


def pair_slices(
    left: Iterable[pa.RecordBatch], right: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
    """Slices both sides into pairs of batches with equal numbers of rows. When one side has ended,
    the other's batches are paired with None.
    """
    lefts, rights = ((batch for batch in side if batch.num_rows) for side in (left, right))
    one, other = next(lefts, None), next(rights, None)
    while one is not None and other is not None:
        num_rows = min(one.num_rows, other.num_rows)
        yield one.slice(0, num_rows), other.slice(0, num_rows)
        one = one.slice(num_rows) if one.num_rows > num_rows else next(lefts, None)
        other = other.slice(num_rows) if other.num_rows > num_rows else next(rights, None)
    while one is not None or other is not None:
        yield one, other
        one, other = next(lefts, None), next(rights, None)


def _compare(
    recomputed: pa.Array,
    in_table: pa.Array,
    report: ColumnReport,
    partition: Mapping[str, str],
    first_row: int,
) -> None:
    # Rows are compared one by one only in columns that differ (or have NaN).
    if recomputed.equals(in_table):
        return
    pairs = zip(recomputed.to_pylist(), in_table.to_pylist(), strict=True)
    for row, (value, stored) in enumerate(pairs, first_row):
        both_nan = value != value and stored != stored
        if value != stored and not both_nan:
            report.add(Example(partition=partition, row=row, in_table=stored, recomputed=value))
