"""A row as four arrays, for formats of samples: ids, floats (the label among them), and the values
and lengths of its lists.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

Sample = dict[str, np.ndarray]


def kinds(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of the columns of each kind."""
    found: dict[str, list[str]] = {"ids": [], "floats": [], "lists": []}
    for field in schema:
        is_id = field.type == pa.int64()
        found["lists" if pa.types.is_list(field.type) else "ids" if is_id else "floats"] += [
            field.name
        ]
    return found


def pack(table: pa.Table) -> Iterator[Sample]:
    """The rows of a table."""
    of, rows = kinds(table.schema), np.arange(table.num_rows)
    ids = [table[name].fill_null(0).to_numpy() for name in of["ids"]]
    floats = [table[name].cast(pa.float32()).fill_null(np.nan).to_numpy() for name in of["floats"]]
    lists = [table[name].combine_chunks() for name in of["lists"]]
    lengths = [one.value_lengths().fill_null(0).to_numpy() for one in lists]
    owners = [np.repeat(rows, length) for length in lengths]
    order = np.argsort(np.concatenate([rows[:0], *owners]), kind="stable")
    flat = [rows[:0], *(one.flatten().to_numpy(zero_copy_only=False) for one in lists)]
    ends = np.cumsum(np.sum([0 * rows, *lengths], axis=0))
    values = np.split(np.concatenate(flat)[order], ends[:-1])
    columns = [np.stack(part, 1) if part else np.empty((len(rows), 0)) for part in (ids, floats)]
    sizes = np.stack(lengths, 1) if lengths else np.empty((len(rows), 0))
    for row in rows:
        yield {
            "ids": columns[0][row],
            "floats": columns[1][row].astype(np.float32),
            "values": values[row].astype(np.int64),
            "lengths": sizes[row].astype(np.int64),
        }


def unpack(
    samples: Sequence[Sample], of: dict[str, list[str]], columns: Sequence[str]
) -> dict[str, Any]:
    """The columns of a batch of samples."""
    ids, floats, lengths = (
        np.stack([one[part] for one in samples]).T for part in ("ids", "floats", "lengths")
    )
    values = np.concatenate([one["values"] for one in samples])
    begins = (np.cumsum(lengths.T).reshape(lengths.T.shape) - lengths.T).T
    found: dict[str, Any] = {}
    for name in columns:
        if name in of["lists"]:
            length, begin = (part[of["lists"].index(name)] for part in (lengths, begins))
            offsets = np.concatenate([[0], np.cumsum(length)])
            places = np.repeat(begin - offsets[:-1], length) + np.arange(offsets[-1])
            found[name] = torch.from_numpy(values[places]), torch.from_numpy(offsets)
        elif name in of["ids"]:
            found[name] = torch.from_numpy(ids[of["ids"].index(name)].copy())
        else:
            found[name] = torch.from_numpy(floats[of["floats"].index(name)].copy())
    return found
