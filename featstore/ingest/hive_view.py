"""The query of a view that shows missing values as null, in words that Spark and Hive both know."""

import pyarrow as pa

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.ingest.join_query import quote

# False for NaN in both: Spark orders NaN above infinity, Hive does not order it at all.
_IS_NUMBER = "{} <= CAST('Infinity' AS DOUBLE)"


def view_query(schema: SlotSchema, table: str) -> str:
    """Returns a SELECT of all columns of a registered table, partition keys last. Pure.

    What is null are the marks of missing values, and NaN in any column, as in `Table.duckdb()`.

    Args:
        schema: The schema of the table's snapshot.
        table: The registered table, as `db.table`.
    """
    slots = {slot.name: slot for slot in schema.slots}
    columns = (
        f"{_value(quote(field.name), field.type, slots.get(field.name))} AS {quote(field.name)}"
        for field in schema.to_arrow(partition_keys=True)
    )
    database, _, name = table.partition(".")
    return f"SELECT {', '.join(columns)} FROM {quote(database)}.{quote(name)}"


def _value(column: str, type_: pa.DataType, slot: Slot | None) -> str:
    if slot is None:
        is_float = pa.types.is_floating(type_)
        return f"CASE WHEN {_IS_NUMBER.format(column)} THEN {column} END" if is_float else column
    if not slot.has_marks:
        return column
    if not slot.shape:
        return f"CASE WHEN {_is_mark(slot, column)} THEN NULL ELSE {column} END"
    # A list is missing if all of its elements are marks: if the least and the greatest are. The
    # first branch keeps Spark from looking at elements that are not there, which it refuses.
    num_marks = slot.width or 1
    ends = [f"sort_array({column})[{at}]" for at in sorted({0, num_marks - 1})]
    are_marks = " AND ".join(_is_mark(slot, end) for end in ends)
    return (
        f"CASE WHEN size({column}) <> {num_marks} THEN {column} WHEN {are_marks} THEN NULL "
        f"ELSE {column} END"
    )


def _is_mark(slot: Slot, value: str) -> str:
    return f"{value} = 0" if slot.kind is SlotKind.ID else f"NOT ({_IS_NUMBER.format(value)})"
