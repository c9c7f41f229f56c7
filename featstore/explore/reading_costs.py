"""What reading each slot costs: its bytes in the files, and the time that decoding takes."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featstore.base.schema import Slot
from featstore.base.table_result import TableResult, number_text
from featstore.explore.plots.frame import Figure
from featstore.explore.plots.slot_bars import plot_costs
from featstore.loader.plan.column_sizes import ColumnSizes
from featstore.reading.aligned import aligned_reader
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile

NUM_FILES = 4  # whose first row group is decoded
_NUM_ROUNDS = 3  # the fastest counts: caches are warm, and other work on the machine counts less
_NUM_REPEATS = 3  # of a row group in one call

SCHEMA = pa.schema(
    [
        ("slot", pa.string()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("shape", pa.string()),
        ("stored_bytes", pa.int64()),
        ("stored_bytes_per_row", pa.float64()),
        ("values_per_row", pa.float64()),
        ("decode_ns_per_row", pa.float64()),
    ]
)
_HEADERS = ("slot", "kind", "shape", "bytes/row", "stored values/row", "decoding ns/row", "of all")


@dataclass(frozen=True, kw_only=True, repr=False)
class ReadingCosts(TableResult):
    """What reading each slot costs. Made by `Table.reading_costs`.

    Attributes:
        num_rows: The rows of the files whose bytes were counted.
        num_decoded_rows: The rows that were decoded to measure the time.
        table: An Arrow table with a row per slot and the columns below.

    Columns of `table`:
        slot, number, kind, shape: The slot.
        stored_bytes, stored_bytes_per_row: The compressed bytes of the slot, from footers.
        values_per_row: The mean number of stored values: a missing one and an empty list take the
            place of one, where a profile counts values of rows that are not missing.
        decode_ns_per_row: The CPU time of reading and decoding a row's values on one core, by the
            kernels of the loader. Null if no decoded file has the slot.
    """

    num_rows: int
    num_decoded_rows: int
    table: pa.Table

    def as_dict(self) -> dict[str, Any]:
        """The costs as JSON types."""
        return {
            "num_rows": self.num_rows,
            "num_decoded_rows": self.num_decoded_rows,
            "slots": self.table.to_pylist(),
        }

    def plot_costs(self) -> "Figure":
        """Bars of each slot's stored bytes and decoding time a row, as a matplotlib Figure. Slots
        that take most time come first.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_costs(self.table)

    def _head(self) -> str:
        stored = sum(self.table["stored_bytes_per_row"].to_pylist())
        time_ns = sum(ns or 0.0 for ns in self.table["decode_ns_per_row"].to_pylist())
        bytes_text = (
            f"a row of these slots: {stored:,.1f} bytes stored (over {self.num_rows:,} rows; "
            f"labels, kept columns and footers are left out)"
        )
        if not self.num_decoded_rows:
            return bytes_text
        return (
            f"{bytes_text}, {time_ns:,.0f} ns of CPU to decode (measured on "
            f"{self.num_decoded_rows:,} rows)"
        )

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Slots that take most time come first."""
        rows = sorted(self.table.to_pylist(), key=lambda row: -(row["decode_ns_per_row"] or 0.0))
        total = sum(row["decode_ns_per_row"] or 0.0 for row in rows)
        return _HEADERS, [
            (
                row["slot"],
                row["kind"],
                row["shape"],
                number_text(row["stored_bytes_per_row"]),
                f"{row['values_per_row']:.3g}",
                number_text(row["decode_ns_per_row"]),
                f"{(row['decode_ns_per_row'] or 0.0) / total:.1%}" if total else "-",
            )
            for row in rows
        ]


def reading_costs(
    sizes: ColumnSizes,
    slots: Sequence[Slot],
    opened: Iterable[tuple[OpenFile, Sequence[OpenFile]]],
    *,
    cpu_clock_ns: Callable[[], int] = time.thread_time_ns,
) -> ReadingCosts:
    """Measures what reading slots costs.

    Args:
        sizes: The bytes and values of the slots, from footers.
        slots: The slots.
        opened: The base file of each data file, and the files of its slot groups. Their first row
            groups are decoded.
        cpu_clock_ns: The CPU time of this thread, in ns.

    Raises:
        DataFileError: A file is damaged, or a column has another type.
    """
    cpu_ns = dict.fromkeys((slot.name for slot in slots), 0.0)
    num_rows = dict.fromkeys(cpu_ns, 0)
    num_decoded_rows = 0
    for base, groups in opened:
        if base.row_group_rows:
            num_decoded_rows += base.row_group_rows[0]
            for slot in slots:
                spent_ns = _decode_ns(base, groups, slot, cpu_clock_ns)
                if spent_ns is not None:
                    cpu_ns[slot.name] += spent_ns
                    num_rows[slot.name] += base.row_group_rows[0]
    rows = [
        {
            "slot": slot.name,
            "number": slot.number,
            "kind": str(slot.kind),
            "shape": slot.shape_text,
            "stored_bytes": sizes.stored_bytes[slot.name],
            "stored_bytes_per_row": sizes.bytes_per_row(slot.name),
            "values_per_row": sizes.values_per_row(slot.name),
            "decode_ns_per_row": cpu_ns[slot.name] / num_rows[slot.name]
            if num_rows[slot.name]
            else None,
        }
        for slot in slots
    ]
    return ReadingCosts(
        num_rows=sizes.num_rows,
        num_decoded_rows=num_decoded_rows,
        table=pa.Table.from_pylist(rows, SCHEMA),
    )


def _decode_ns(
    base: OpenFile, groups: Sequence[OpenFile], slot: Slot, cpu_clock_ns: Callable[[], int]
) -> float | None:
    """The CPU time of decoding a slot of the first row group, in ns; None if no file has it.

    It is what each further row group adds to a call. What a call costs once (0.1 ms, more than a
    small row group of one slot) is left out, since a loader reads all slots in one.
    """
    selection = Selection(slots=(slot,))
    reader = aligned_reader(base, groups, selection, num_threads=1, as_values=True)
    if reader.columns.slots[slot.name] is None:
        return None

    def fastest_ns(num_repeats: int) -> int:
        rounds = []
        for _ in range(_NUM_ROUNDS):
            before_ns = cpu_clock_ns()
            reader.read([0] * num_repeats).slot(slot)
            rounds.append(cpu_clock_ns() - before_ns)
        return min(rounds)

    one_ns = fastest_ns(1)
    return max(0, fastest_ns(1 + _NUM_REPEATS) - one_ns) / _NUM_REPEATS
