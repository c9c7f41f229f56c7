"""Columns as numpy arrays, on their way to tensors; without torch."""

import numpy as np

from featstore.reading.buffers import Array, Ragged, Values


def writable(values: Values) -> Values:
    """The same memory under arrays that call themselves writable: torch knows no read-only tensors
    and warns of them.
    """
    if isinstance(values, Ragged):
        return Ragged(_lent(values.values), values.offsets)
    return _lent(values)


def _lent(array: Array) -> Array:
    return array if array.flags.writeable else np.asarray(_Lent(array))


class _Lent:
    """Shows an array's memory as writable; numpy keeps this object, and so the memory, as long as a
    view lives.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.owner = array


def bfloat16_bits(values: Array) -> Array:
    """float32 values rounded to bfloat16, half to even, as uint16; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
