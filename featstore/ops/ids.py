"""Operators on discrete values: hash and cross.

Their results are *value hashes*: a struct with one field per member, its h(value), in declared
order, or a flat list of such structs. A row is null where a member is missing. Only a slot turns
them into signs (see `slots`), so a field is hashed once however many slots and crosses use it.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.ops.arrays import (
    Integers,
    Mask,
    array_of,
    either,
    list_of,
    nulls_of,
    offsets_of,
    stored_offsets_of,
    struct_of,
    validity_of,
    values_of,
)
from featstore.ops.hashing import value_hash
from featstore.ops.lists import element_type, is_list, offsets_from, ranges_of, truncate_lists

_MAX_COMBINATIONS = 2**31 - 1


def is_hashed(arrow_type: pa.DataType) -> bool:
    """Whether this is the type of value hashes, or of lists of them."""
    return bool(pa.types.is_struct(element_type(arrow_type)))


def hashed_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the value hashes of an input, which is none itself.

    Raises:
        TypeError: Values of this type may not be hashed.
    """
    value = element_type(arrow_type)
    if pa.types.is_floating(value) or pa.types.is_map(value):
        raise TypeError(
            "string, long, boolean, timestamp, or a list of these (floats are never hashed: "
            "bucketize them first)"
        )
    return _members_type(1, is_list(arrow_type))


def hash_values(array: pa.Array) -> pa.Array:
    """Hashes each value or list element to value hashes of one member."""
    if is_list(array.type):
        return list_of(stored_offsets_of(array), hash_values(array.values), validity_of(array))
    hashes = value_hash(array)
    return struct_of([hashes], validity_of(hashes), _members_type(1, as_list=False))


def hash_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if params["max_len"] is not None and not is_list(types[0]):
        raise ValueError("`max_len` is for lists")
    return types[0]


def hash_operator(
    hashes: pa.Array, *, max_len: int | None, truncate: str, counts: Counter[str]
) -> pa.Array:
    """h(value); of a list the first or last `max_len` elements, order and duplicates kept."""
    return (
        truncate_lists(hashes, max_len=max_len, truncate=truncate)
        if is_list(hashes.type)
        else hashes
    )


def cross_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    has_list = any(is_list(arrow_type) for arrow_type in types)
    if params["max_cross"] is not None and not has_list:
        raise ValueError("`max_cross` is for crosses with a list")
    return _members_type(sum(element_type(arrow_type).num_fields for arrow_type in types), has_list)


def cross(*hashes: pa.Array, max_cross: int | None, counts: Counter[str]) -> pa.Array:
    """The members' hashes side by side; with lists, one entry per combination of elements.

    Combinations are ordered with the first member outermost, and a row keeps the first `max_cross`
    of them. A row is missing where a member is missing, else `[]` where a list member is empty.
    """
    nulls = functools.reduce(either, map(nulls_of, hashes))
    if not any(is_list(member.type) for member in hashes):
        fields = [field for member in hashes for field in fields_of(member)]
        return struct_of(fields, nulls, _members_type(len(fields), as_list=False))
    lengths = [_lengths(member) for member in hashes]
    num_combined = _count_combinations(lengths, nulls, max_cross)
    num_lists = sum(is_list(member.type) for member in hashes)
    taken = (
        _beside_one_list(hashes, num_combined)
        if num_lists == 1
        else _combinations(hashes, lengths, num_combined)
    )
    return list_of(offsets_from(num_combined), struct_of(taken), nulls)


def fields_of(hashes: pa.StructArray) -> list[pa.Array]:
    """The hashes of each member, int64 (num_values,); undefined where the struct is null."""
    return [hashes.field(i) for i in range(hashes.type.num_fields)]


def _beside_one_list(hashes: Sequence[pa.Array], num_combined: Integers) -> list[pa.Array]:
    """The same as `_combinations` makes of a single list: its first elements in each row, and the
    other members repeated.
    """
    taken = list[NDArray[np.int64]]()
    for member in hashes:
        if is_list(member.type):
            starts = offsets_of(member)[:-1]
            fields = map(values_of, fields_of(member.values))
            taken += [ranges_of(field, starts, num_combined) for field in fields]
        else:
            taken += [np.repeat(values_of(field), num_combined) for field in fields_of(member)]
    return list(map(array_of, taken))


def _combinations(
    hashes: Sequence[pa.Array], lengths: list[Integers], num_combined: Integers
) -> list[pa.Array]:
    """Each member's fields at every combination of every row, `(sum(num_combined),)`.

    No row with a missing member has combinations, so none of the fields is null.
    """
    rows = np.repeat(np.arange(len(num_combined)), num_combined)
    # The number of a combination within its row is a mixed-radix number whose digits are positions
    # in the members' lists; the last member is the least significant digit.
    rank = np.arange(len(rows)) - offsets_from(num_combined)[rows]
    num_lists = sum(is_list(member.type) for member in hashes)
    taken: list[pa.Array] = []
    for member, length in zip(reversed(hashes), reversed(lengths), strict=True):
        at = rows
        values = member
        if is_list(member.type):
            inner, num_lists = rank, num_lists - 1
            if num_lists:  # The outermost list has the most significant digit: all that is left.
                rank, inner = np.divmod(rank, length[rows])
            at, values = offsets_of(member)[rows] + inner, member.values
        taken = [array_of(values_of(field)[at]) for field in fields_of(values)] + taken
    return taken


def _count_combinations(
    lengths: list[Integers], nulls: Mask | None, max_cross: int | None
) -> Integers:
    """Combinations of each row; ValueError where a batch has more than a list array can hold."""
    # The product may exceed int64 before it is capped.
    counts = np.ones(len(lengths[0]))
    for length in lengths:
        counts *= length
    if max_cross is not None:
        counts = np.minimum(counts, max_cross)
    if nulls is not None:
        counts[nulls] = 0
    if counts.sum() > _MAX_COMBINATIONS:
        raise ValueError(
            f"expected at most {_MAX_COMBINATIONS} combinations in a batch, found "
            f"{counts.sum():.3g}: set max_cross"
        )
    return counts.astype(np.int64)


def _lengths(member: pa.Array) -> Integers:
    return np.diff(offsets_of(member)) if is_list(member.type) else np.ones(len(member), np.int64)


@functools.cache
def _members_type(num_members: int, as_list: bool) -> pa.DataType:
    members = pa.struct([pa.field(str(i), pa.int64()) for i in range(num_members)])
    return pa.list_(members) if as_list else members
