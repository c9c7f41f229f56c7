"""Columns of texts and numbers in Arrow, made and read without `pa.array`, `pa.scalar` and
`to_numpy`, which import pandas.
"""

import hashlib
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = npt.NDArray[Any]


def texts(values: Iterable[str]) -> pa.Array:
    """Texts as large_binary."""
    data = [value.encode("utf-8", "surrogateescape") for value in values]
    ends = array("q", accumulate(map(len, data), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(data), buffers)


def numbers(values: Iterable[int] | Numbers) -> pa.Array:
    """Numbers as int64, likewise."""
    data = np.fromiter(values, np.int64) if not isinstance(values, np.ndarray) else values
    buffer = pa.py_buffer(data.astype(np.int64, copy=False))
    return pa.Array.from_buffers(pa.int64(), len(data), [None, buffer])


def narrow(column: pa.Array) -> pa.Array:
    """The numbers in 32 bits, if all fit."""
    try:
        return column.cast(pa.uint32())
    except pa.ArrowInvalid:
        return column


def lines(*parts: pa.Array | str) -> pa.Array:
    """A text for each row: its values, and the texts that are the same for each."""
    values = [
        texts([part])[0]
        if isinstance(part, str)
        else part.cast(pa.string()).cast(pa.large_binary())
        if pa.types.is_integer(part.type)
        else part
        for part in parts
    ]
    return pc.binary_join_element_wise(*values, texts([""])[0])


def sha256_of(found: pa.Array, before: str = "") -> str:
    """The sha256, in hex, over the sorted texts."""
    state = hashlib.sha256(before.encode())
    state.update(found.take(pc.sort_indices(found)).buffers()[2] or b"")
    return state.hexdigest()


def text_of(data: bytes) -> str:
    """The text of a value of `texts`."""
    # A local name need not be UTF-8, so paths and URLs are bytes.
    return data.decode("utf-8", "surrogateescape")
