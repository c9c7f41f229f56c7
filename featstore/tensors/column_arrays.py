"""What comes before tensors: the keys of a batch's columns, and numpy arrays as torch takes them.
Imports no torch.
"""

from collections.abc import Mapping

import numpy as np

from featstore.base.processes import cached_property
from featstore.reading.buffers import Array, BatchValues, Ragged, SharedLists

Key = tuple[str, str]
SLOT, LABEL, WEIGHT = "slot", "label", "weight"
# Of candidates: a slot's values, of a list those of all candidates of a row; the lengths of each of
# these lists, (num_rows, per_row); and the log of the probabilities with which they are drawn.
CANDIDATE, CANDIDATE_LENGTHS, LOG_Q = "candidate", "candidate lengths", "log q"
# What candidates are drawn by, which is in no batch: the row's identity and its own item.
ROW_KEY, OWN_ITEM = ("row", "key"), ("row", "own item")
_ROLES = (SLOT, LABEL, WEIGHT, CANDIDATE, CANDIDATE_LENGTHS, LOG_Q)


class Keys(tuple[Key, ...]):
    """The roles and names of columns, slots first. Batches share one object, so that names are
    looked up only once.
    """

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each role."""
        return {role: tuple(name for of, name in self if of == role) for role in _ROLES}


def writable(values: BatchValues) -> BatchValues:
    """The same memory as arrays that claim to be writable. torch has no read-only tensors, and
    warns of read-only arrays.
    """
    if isinstance(values, Ragged):
        return Ragged(_as_writable(values.values), values.offsets)
    if isinstance(values, SharedLists):
        return SharedLists(_as_writable(values.values), values.ranges)
    return _as_writable(values)


def _as_writable(array: Array) -> Array:
    if array.flags.writeable:
        return array
    view = _WritableView(array)
    found = np.asarray(view)
    # Of no use any more. Whoever drops the last view would have to free it, too.
    del view.__array_interface__
    return found


class _WritableView:
    """Shows an array's memory as writable. numpy keeps this object, and with it the memory, alive
    as long as a view of it exists.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__  # made anew at each look
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.owner = array if array.base is None else array.base


def bfloat16_bits(values: Array) -> Array:
    """float32 values rounded to bfloat16, half to even, as uint16. NaN stays NaN."""
    # bfloat16 has the upper 16 bits of a float32. Adding 0x7FFF plus the lowest kept bit carries
    # into it exactly if the lower half is above one half, or is one half and the kept bit is odd.
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
