"""Calls of the kernels that gather, of which tests change one argument."""

from typing import Any

import numpy as np

from featstore.native import kernels

# Numbers of a column in a piece, and of a gathered column.
PIECE = ("values_in", "values_at", "num_values", "offsets_in", "offsets_at", "offset_width", "rows")
GATHERED = ("column", "width", "of_row", "to", "offsets_to")
VALUES, LISTS = 0, 1


def arguments(num_rows: int = 3, offset_type: Any = np.int32) -> dict[str, Any]:
    """Rows of one piece, in two parts: of a column of values, which are 0 and up, and of one of
    lists, of three of these each. Those of both columns are written to one output, last first.
    """
    order = np.arange(num_rows)[::-1]
    cuts = np.array([0, num_rows // 2, num_rows])
    sizes = np.diff(cuts)
    width = np.dtype(offset_type).itemsize
    offsets = np.concatenate([np.arange(size + 1) * 3 for size in sizes])
    starts = [cuts[:-1], num_rows + 3 * cuts[:-1], cuts[:-1] + np.arange(2)]
    return {
        "buffers": (
            np.arange(3 * num_rows),
            (np.arange(num_rows + 1) * 3).astype(offset_type),
        ),
        "numbers": np.array(
            [
                [0, 0, num_rows, 0, 0, 0, num_rows],
                [0, 0, 3 * num_rows, 1, 0, width, num_rows],
            ]
        ),
        "columns": np.array([[0, 8, 1, 0, 0], [1, 8, 0, 0, 1]]),
        "rows": order.astype(np.uint32),
        "row_bits": int(num_rows).bit_length(),
        "cuts": cuts,
        "starts": 8 * np.array(starts),
        "found": np.concatenate([3 * order, offsets]),
        "outs": (np.zeros(4 * num_rows, np.int64), np.zeros(num_rows + 2, np.int64)),
        "num_threads": 1,
    }


def gather_columns(of: dict[str, Any]) -> None:
    kernels.gather_columns(
        of.get("pieces", ((of["buffers"], of["numbers"]),)),
        *(of["columns"], of["rows"], of["row_bits"], False, of["cuts"]),
        *(of["starts"], of["found"], of["outs"], of["num_threads"]),
    )


def gather_offsets(of: dict[str, Any]) -> None:
    """Looks up the lists, which are the second of the columns."""
    columns = of.get("lists", of["columns"][LISTS:])
    kernels.gather_offsets(
        of.get("pieces", ((of["buffers"], of["numbers"]),)),
        *(columns, of["rows"], of["row_bits"], False, of["cuts"], of["found"]),
    )
