"""Operators on maps: lookup (a map by one key or a list) and match (a map of maps by two keys).

Keys are compared as text: a long is looked up by its decimal text. Where a map has a key twice, the
last value counts, as the Parquet format says.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from featstore.ops.arrays import (
    Integers,
    Mask,
    array_of,
    either,
    list_of,
    nulls_of,
    offsets_of,
    values_of,
)
from featstore.ops.elements import combine, combine_type
from featstore.ops.lists import drop_elements, element_type, is_list

_KEYS = "string or long"


def is_map(arrow_type: pa.DataType) -> bool:
    """Whether rows of this type are maps."""
    return bool(pa.types.is_map(arrow_type))


def map_of(
    offsets: Integers, entries: pa.StructArray, nulls: Mask | None, arrow_type: pa.DataType
) -> pa.MapArray:
    """A map array over structs of key and value.

    Args:
        offsets: Integers `(num_rows + 1,)`.
        entries: The entries of all rows, none of them null.
        nulls: True where a row is null, `(num_rows,)`; None for no nulls.
        arrow_type: The map type of the result.
    """
    names = [arrow_type.key_field, arrow_type.item_field]
    fields = pa.StructArray.from_arrays([entries.field(0), entries.field(1)], fields=names)
    return list_of(offsets, fields, nulls, arrow_type)


def entries_of(array: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """The keys and the values of all rows of a map array, without those outside its slice."""
    offsets = offsets_of(array)
    first, length = offsets[0], offsets[-1] - offsets[0]
    return array.keys.slice(first, length), array.items.slice(first, length)


def lookup_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    maps, keys = types
    if not is_map(maps) or is_map(maps.item_type):
        raise TypeError("a map<string, long, double or string> and its key")
    if not _is_key(element_type(keys)):
        raise TypeError(f"a map and a key ({_KEYS}, or a list of these)")
    if params["combiner"] is None:
        return pa.list_(maps.item_type) if is_list(keys) else maps.item_type
    if not is_list(keys):
        raise ValueError("`combiner` is for a list of keys")
    return combine_type([pa.list_(maps.item_type)], params)


def lookup(
    maps: pa.MapArray, keys: pa.Array, *, combiner: str | None, counts: Counter[str]
) -> pa.Array:
    """map[key]; missing where the map or the key is missing, or the map has no such key.

    For a list of keys, the values that are found in the order of the keys, or their `combiner` (see
    `combine`).
    """
    _, items = entries_of(maps)
    if not is_list(keys.type):
        found = _find_in_own_row(maps, keys)
        return _values_at(items, found)
    rows = np.repeat(np.arange(len(keys)), np.diff(offsets_of(keys)))
    found = _find(maps, keys.values, rows)
    nulls = either(nulls_of(keys), nulls_of(maps))
    if (missing := nulls_of(maps)) is not None:
        found[missing[rows]] = -1
    lists = drop_elements(list_of(offsets_of(keys), _values_at(items, found), nulls), found < 0)
    return lists if combiner is None else combine(lists, by=combiner, counts=counts)


def match_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    maps, *keys = types
    if not is_map(maps) or not is_map(maps.item_type):
        raise TypeError("a map<string, map<string, ...>> and two keys")
    if not all(_is_key(key) for key in keys):
        raise TypeError(f"a map of maps and two keys ({_KEYS})")
    return maps.item_type.item_type


def match(maps: pa.MapArray, outer: pa.Array, inner: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """map[outer][inner]; missing where the map or a key is missing, or there is no such key."""
    _, items = entries_of(maps)
    chosen = _values_at(items, _find_in_own_row(maps, outer))
    _, values = entries_of(chosen)
    return _values_at(values, _find_in_own_row(chosen, inner))


def _find_in_own_row(maps: pa.MapArray, keys: pa.Array) -> Integers:
    """The position of `keys[i]` in the map of row i, among all entries; -1 if it is not there."""
    codes, key_codes = _codes(maps, keys)
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets_of(maps)))
    hits = np.flatnonzero(codes == key_codes[rows])
    found: Integers = np.full(len(keys), -1)
    # Positions are written in order, so of equal keys the last one stays.
    found[rows[hits]] = hits
    return found


def _find(maps: pa.MapArray, keys: pa.Array, rows: Integers) -> Integers:
    """The position of `keys[i]` in the map of `rows[i]`, among all entries; -1 if it is not there.

    Texts are dictionary encoded, and pairs of row and code are searched for in sorted order.
    """
    codes, key_codes = _codes(maps, keys)
    num_codes = int(max(codes.max(initial=0), key_codes.max(initial=0))) + 1
    entry_rows = np.repeat(np.arange(len(maps)), np.diff(offsets_of(maps)))
    entries = entry_rows * num_codes + codes
    wanted = rows * num_codes + key_codes
    order = np.argsort(entries, kind="stable")
    # The sort is stable and the search takes the rightmost match: the last of equal keys wins.
    at = np.searchsorted(entries[order], wanted, side="right") - 1
    found: Integers = np.full(len(keys), -1) if not len(order) else np.where(at >= 0, order[at], -1)
    hit = (found >= 0) & (entries[found] == wanted) if len(order) else np.zeros(len(keys), np.bool_)
    return np.where(hit, found, -1)


def _codes(maps: pa.MapArray, keys: pa.Array) -> tuple[Integers, Integers]:
    """Numbers that are equal where texts are: of all entries' keys, and of `keys`.

    A null among `keys` has a number that no entry has.
    """
    texts, _ = entries_of(maps)
    encoded = pa.concat_arrays([texts, keys.cast(pa.string())]).dictionary_encode()
    codes = values_of(encoded.indices).astype(np.int64)
    if (nulls := nulls_of(encoded.indices)) is not None:
        codes[nulls] = len(encoded.dictionary) + (np.flatnonzero(nulls) >= len(texts))
    return codes[: len(texts)], codes[len(texts) :]


def _values_at(values: pa.Array, positions: Integers) -> pa.Array:
    """The values at these positions, null at -1."""
    return values.take(array_of(np.maximum(positions, 0), positions < 0))


def _is_key(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_integer(arrow_type))
