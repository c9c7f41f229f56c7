"""Statistics of slots: coverage, distinct values, top values with label rates, list lengths and
quantiles.

The rows are read twice, in bounded memory. The first time duckdb sketches them: distinct counts
(HyperLogLog), candidates for top values and quantiles (t-digest) are approximate. The second time
the candidates and their labels are counted exactly.
"""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.errors import SelectionError, missing_extra, nearest
from featstore.schema import Slot, SlotKind, SlotSchema
from featstore.text_table import text_table

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
LENGTH_QUANTILES = (0.5, 0.9)
NUM_TOP = 10

# Counts that only the extraction can make, from the raw values.
EXTRACTION_COUNTS = (
    "num_nulls_dropped",
    "num_text_errors",
    "num_sign_collisions",
    "num_signs_checked",
)
_ALL_ROWS = -1  # the position, among those of slots, of records that stand for whole rows
_CANDIDATES = pa.schema([("slot", pa.int32()), ("id", pa.int64())])
_COLUMNS = (
    "slot",
    "kind",
    "shape",
    "coverage",
    "distinct",
    "values/row",
    "quantiles or top values (share)",
)
_EXTRACTION_COLUMNS = ("default", "nulls dropped", "text errors", "collisions")


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile:
    """Per-slot statistics of some rows of a table.

    Attributes:
        num_rows: The number of rows profiled.
        label_rates: The mean of each label over all rows; None if there are no rows.
        table: An Arrow table with a row per slot and the columns below.
        source: What the profile was computed from.
        counts: Counts of the extraction over the whole input, by name. Empty unless the profile is
            from stored statistics.

    Columns of `table`:
        slot, number, kind, shape, op: The slot's definition.
        num_present, coverage: The rows in which the slot is not missing, and their share.
        num_values, distinct: All values (of lists: all elements), and an estimate of the different
            ones.
        mean, min, max, quantiles: Of float slots. `quantiles` are those of `QUANTILES`.
        length_mean, length_max, length_quantiles: Of list slots. `length_quantiles` are those of
            `LENGTH_QUANTILES`.
        top: Of id slots, a list of `{value, count, share, label_rates}`. `value` is the sign,
            `share` the share of the slot's values, and `label_rates` the labels' means over the
            rows that hold the value. A row counts as often as its list holds it.
        default_rate: The share of rows in which `default` or `fill` replaced a missing value.
        num_nulls_dropped: Null list elements dropped from the slot's inputs.
        num_text_errors: Texts of the slot's inputs that were not valid UTF-8, or not numbers where
            numbers were expected.
        num_sign_collisions, num_signs_checked: Signs that more than one value had, among the
            different signs compared in samples of each file. Null if the slot has no signs.

    Only stored statistics know the columns from `default_rate` on. Otherwise these are null.
    """

    num_rows: int
    label_rates: Mapping[str, float | None]
    table: pa.Table
    source: str = "from the rows"
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots' names, in the order of the table."""
        return tuple(self.table["slot"].to_pylist())

    def __getitem__(self, slot: str) -> dict[str, Any]:
        """The statistics of one slot, by column name.

        Raises:
            SelectionError: The profile lacks the slot. The message suggests the nearest names.
        """
        if slot not in self.slots:
            raise SelectionError(f"no slot {slot!r} in the profile{nearest(slot, self.slots)}")
        row: dict[str, Any] = self.table.slice(self.slots.index(slot), 1).to_pylist()[0]
        return row

    def text(self, width: int | None = None) -> str:
        """The profile as text, with a table of `width` characters at most if given."""
        rows = list(map(self._cells, self.table.to_pylist()))
        counts = [f"{name}: {number:,}" for name, number in self.counts.items()]
        return "\n".join([self._head(), text_table(rows, self._columns, width=width), *counts])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def as_dict(self) -> dict[str, Any]:
        """The profile as JSON types: the columns of `table` for each slot, and the rest."""
        return {
            "source": self.source,
            "num_rows": self.num_rows,
            "label_rates": dict(self.label_rates),
            "counts": dict(self.counts),
            "slots": self.table.to_pylist(),
        }

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        rows = (
            "".join(f"<td>{html.escape(cell)}</td>" for cell in self._cells(row))
            for row in self.table.to_pylist()
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{html.escape(self._head())}</p><table><tr>{head}</tr>{body}</table>"

    @property
    def _columns(self) -> tuple[str, ...]:
        return _COLUMNS[:-1] + (_EXTRACTION_COLUMNS if self._from_stored else ()) + _COLUMNS[-1:]

    @property
    def _from_stored(self) -> bool:
        return bool(self.table["default_rate"].null_count < self.table.num_rows)

    def _cells(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        *cells, values = _cells(row)
        return (*cells, *(_extraction_cells(row) if self._from_stored else ()), values)

    def _head(self) -> str:
        rates = (f"{name} {_number(rate)}" for name, rate in self.label_rates.items())
        return f"{', '.join([f'{self.num_rows:,} rows', *rates])} ({self.source})"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    per_row = row["num_values"] / row["num_present"] if row["num_present"] else 0.0
    return (
        row["slot"],
        row["kind"],
        row["shape"],
        f"{row['coverage']:.1%}",
        f"{row['distinct']:,}",
        f"{per_row:.3g}",
        _quantiles(row) if row["kind"] == SlotKind.FLOAT else _top(row),
    )


def _extraction_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    collisions, checked = row["num_sign_collisions"], row["num_signs_checked"]
    of_checked = "-" if collisions is None else f"{collisions:,} of {checked:,}"
    return (
        f"{row['default_rate']:.1%}",
        f"{row['num_nulls_dropped']:,}",
        f"{row['num_text_errors']:,}",
        of_checked,
    )


def _quantiles(row: Mapping[str, Any]) -> str:
    return " ".join(map(_number, row["quantiles"] or ()))


def _top(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{top['value']} ({top['share']:.1%})" for top in row["top"][:3])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def numeric_labels(schema: SlotSchema) -> list[str]:
    """The names of the labels that have a mean: those that are not lists or structs."""
    return [label.name for label in schema.labels if not pa.types.is_nested(label.type)]


def profile(
    read: Callable[[], Iterable[pa.RecordBatch]],
    slots: Sequence[Slot],
    labels: Sequence[str] = (),
    *,
    num_top: int = NUM_TOP,
) -> Profile:
    """Profiles rows with duckdb.

    Args:
        read: Yields the rows as batches with the columns of `slots` and `labels`, by name, and
            missing values as null. It is called twice, and must yield the same rows.
        slots: The slots to profile.
        labels: Columns of numbers or booleans.
        num_top: The number of top values per id slot.

    Raises:
        MissingDependencyError: duckdb is not installed.
    """
    with _connect() as connection:
        first = _query(
            connection, _statistics(labels, num_top), _melt(read(), slots, labels), labels
        )
        # approx_top_k gives the values without their counts, which the second query finds.
        counted = {row["slot"]: row for row in first.to_pylist()}
        candidates = [
            {"slot": position, "id": value}
            for position, row in counted.items()
            for value in row["top"] or ()
        ]
        connection.register("candidates", pa.Table.from_pylist(candidates, _CANDIDATES))
        top = _query(connection, _label_rates(labels), _melt(read(), slots, labels), labels)
    all_rows = counted.pop(_ALL_ROWS, {})
    num_rows = all_rows.get("num_records", 0)
    tops = _group(top.to_pylist(), labels)
    rows = [
        _row(slot, counted.get(i, {}), tops.get(i, []), num_rows) for i, slot in enumerate(slots)
    ]
    return Profile(
        num_rows=num_rows,
        label_rates={name: all_rows.get(f"rate{i}") for i, name in enumerate(labels)},
        table=pa.Table.from_pylist(rows, result_schema(labels)),
    )


def _connect() -> Any:
    """An in-memory duckdb connection. The import is here so that tables open without the extra
    `explore`.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise missing_extra("a profile", error) from error
    connection = duckdb.connect()
    # The progress bar would go to standard output. If it is off already, as in a notebook without
    # ipywidgets, duckdb refuses the setting.
    if connection.sql("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]:
        connection.execute("SET enable_progress_bar = false")
    # A hash join holds its right side in memory: as written, the small table of candidates. The
    # optimizer may swap the sides and hold the stream of all rows, whose size it cannot know.
    connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    return connection


def _melted_schema(labels: Sequence[str]) -> pa.Schema:
    return pa.schema(
        [
            ("slot", pa.int32()),
            ("id", pa.int64()),
            ("number", pa.float64()),
            ("length", pa.int64()),
            *((f"label{i}", pa.float64()) for i in range(len(labels))),
        ]
    )


def _melt(
    batches: Iterable[pa.RecordBatch], slots: Sequence[Slot], labels: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows in long format: a record per value and one per list, with its length, `slot` being the
    slot's position; and a record per row, with `_ALL_ROWS` for `slot`.

    So one query groups all slots, and duckdb sees one stream whatever the number of slots.
    """
    schema = _melted_schema(labels)
    for batch in batches:
        rates = [batch[name].cast(pa.float64()) for name in labels]
        yield _records(schema, _ALL_ROWS, batch.num_rows, {}, rates)
        for position, slot in enumerate(slots):
            column = batch[slot.name]
            if slot.is_list:
                lengths = {"length": pc.list_value_length(column).cast(pa.int64())}
                yield _records(schema, position, batch.num_rows, lengths, None)
            values, of_values = column, rates
            if slot.shape:  # the elements of a list each get the labels of their row
                values, rows = pc.list_flatten(column), pc.list_parent_indices(column)
                of_values = [rate.take(rows) for rate in rates]
            yield _records(schema, position, len(values), _typed(slot, values), of_values)


def _typed(slot: Slot, values: pa.Array) -> dict[str, pa.Array]:
    if slot.kind is SlotKind.ID:
        return {"id": values.cast(pa.int64(), safe=False)}
    numbers = values.cast(pa.float64())
    return {"number": pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)}


def _records(
    schema: pa.Schema,
    position: int,
    count: int,
    columns: Mapping[str, pa.Array],
    rates: Sequence[pa.Array] | None,
) -> pa.RecordBatch:
    known = {"slot": pa.array(np.full(count, position, np.int32)), **columns}
    known |= {f"label{i}": rate for i, rate in enumerate(rates or ())}
    arrays = [
        known[field.name] if field.name in known else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _statistics(labels: Sequence[str], num_top: int) -> str:
    rates = "".join(f", avg(label{i}) AS rate{i}" for i in range(len(labels)))
    return f"""
        SELECT slot, count(*) AS num_records, count(id) + count(number) AS num_values,
            approx_count_distinct(id) + approx_count_distinct(number) AS "distinct",
            approx_top_k(id, {num_top}) AS top,
            avg(number) AS mean, min(number) AS min, max(number) AS max,
            approx_quantile(number, {list(QUANTILES)}) AS quantiles,
            count(length) AS num_lists, avg(length) AS length_mean, max(length) AS length_max,
            approx_quantile(length, {list(LENGTH_QUANTILES)}) AS length_quantiles{rates}
        FROM melted GROUP BY slot"""


def _label_rates(labels: Sequence[str]) -> str:
    rates = "".join(f", avg(label{i}) AS rate{i}" for i in range(len(labels)))
    return f"""
        SELECT slot, id AS value, count(*) AS "count"{rates}
        FROM melted JOIN candidates USING (slot, id)
        GROUP BY slot, id ORDER BY slot, "count" DESC, id"""


def _query(
    connection: Any, query: str, melted: Iterator[pa.RecordBatch], labels: Sequence[str]
) -> pa.Table:
    connection.register("melted", pa.RecordBatchReader.from_batches(_melted_schema(labels), melted))
    try:
        return connection.sql(query).to_arrow_table()
    finally:
        connection.unregister("melted")


def _group(
    rows: Iterable[Mapping[str, Any]], labels: Sequence[str]
) -> dict[int, list[dict[str, Any]]]:
    grouped: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        rates = {name: row[f"rate{i}"] for i, name in enumerate(labels)}
        grouped.setdefault(row["slot"], []).append(
            {"value": row["value"], "count": row["count"], "label_rates": rates}
        )
    return grouped


def _row(
    slot: Slot, counted: Mapping[str, Any], top: Sequence[Mapping[str, Any]], num_rows: int
) -> dict[str, Any]:
    num_values = counted.get("num_values", 0)
    present = counted.get("num_lists", 0) if slot.is_list else num_values // (slot.width or 1)
    copied = ("mean", "min", "max", "quantiles", "length_mean", "length_max", "length_quantiles")
    return {
        **presence(slot, present, num_rows),
        "num_values": num_values,
        "distinct": counted.get("distinct", 0),
        **{name: counted.get(name) for name in copied},
        "top": [{**value, "share": value["count"] / num_values} for value in top],
    }


def presence(slot: Slot, num_present: int, num_rows: int) -> dict[str, Any]:
    """The first columns of a slot's row of `Profile.table`: its definition and coverage."""
    return {
        "slot": slot.name,
        "number": slot.number,
        "kind": str(slot.kind),
        "shape": slot.shape_text,
        "op": slot.op,
        "num_present": num_present,
        "coverage": num_present / num_rows if num_rows else 0.0,
    }


def result_schema(labels: Sequence[str]) -> pa.Schema:
    """The Arrow schema of `Profile.table`."""
    rates = pa.struct([(name, pa.float64()) for name in labels])
    top = pa.struct(
        [
            ("value", pa.int64()),
            ("count", pa.int64()),
            ("share", pa.float64()),
            ("label_rates", rates),
        ]
    )
    return pa.schema(
        [
            ("slot", pa.string()),
            ("number", pa.int64()),
            ("kind", pa.string()),
            ("shape", pa.string()),
            ("op", pa.string()),
            ("num_present", pa.int64()),
            ("coverage", pa.float64()),
            ("num_values", pa.int64()),
            ("distinct", pa.int64()),
            *((name, pa.float64()) for name in ("mean", "min", "max")),
            ("quantiles", pa.list_(pa.float64())),
            ("length_mean", pa.float64()),
            ("length_max", pa.int64()),
            ("length_quantiles", pa.list_(pa.float64())),
            ("top", pa.list_(top)),
            ("default_rate", pa.float64()),
            *((name, pa.int64()) for name in EXTRACTION_COUNTS),
        ]
    )
