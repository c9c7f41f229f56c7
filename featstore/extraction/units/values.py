"""Converts one Python value to an Arrow array of length 1, for the extraction of a single row."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.ops.columns import readable
from featstore.ops.malformed import find_malformed, is_number_as_text, narrowable, short_text
from featstore.spec.model import TIMESTAMP, type_name

_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)
_TYPES: Mapping[pa.DataType, frozenset[type]] = {
    pa.string(): frozenset({str, type(None)}),
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, type(None)}),
    pa.bool_(): frozenset({bool, type(None)}),
    TIMESTAMP: frozenset({datetime.datetime, type(None)}),
}
"""The Python types that are passed to Arrow unchanged. Arrow accepts more, but would silently cut
the fraction of a float, for instance.
"""


def single(
    name: str, value: object, declared: pa.DataType, *, said: str | None, text: bool = False
) -> pa.Array:
    """Converts a value to the declared type.

    A value that does not fit exactly gets the type that Arrow would infer for a file's column, if a
    file with that column would be read. Bytes stay bytes, and are repaired like those of a file.

    Args:
        said: The column's `on_error`, None if the spec has none. With one, malformed values are
            converted too, for the intake to handle.
        text: Whether numbers may be written as text.

    Raises:
        InputError: A file with this value would be rejected.
    """
    try:
        exact = _exact(value, declared)
    except _FAILURES:
        exact = None
    if exact is not None:
        return exact
    found = _as_found(value, declared)
    if found is None or not _passes(found, declared, said, text):
        raise InputError(
            f"column {name!r}: expected {type_name(declared)}, found {short_text(value)}"
        )
    return found


def several(values: Sequence[object], declared: pa.DataType) -> pa.Array | None:
    """Converts values to the declared type; None if the Python types of some are others."""
    if not _TYPES[declared].issuperset(map(type, values)):
        return None
    try:
        return pa.array(values, declared)
    except _FAILURES:
        return None


def _exact(value: object, declared: pa.DataType) -> pa.Array | None:
    """Returns the value in its declared type, None if its Python types are others."""
    if isinstance(value, bytes) and declared == pa.string():
        return pa.array([value], pa.binary())
    if type(value) is int and declared == pa.float64():
        return pa.array([float(value)], declared)
    if pa.types.is_map(declared):
        value = _entries(value)
    if not _TYPES[_innermost(declared)].issuperset(_leaf_types(value, declared)):
        return None
    return pa.array([value], declared)


def _leaf_types(value: object, declared: pa.DataType) -> Iterable[type]:
    """The Python types of a value's leaves; `object` where a declared list or map is none."""
    if value is None or not (pa.types.is_list(declared) or pa.types.is_map(declared)):
        return (type(value),)
    if not isinstance(value, list | tuple):
        return (object,)
    if pa.types.is_list(declared):
        return map(type, value)
    return chain.from_iterable(_leaf_types(item, declared.item_type) for _, item in value)


def _passes(found: pa.Array, declared: pa.DataType, said: str | None, text: bool) -> bool:
    """Whether the value is read, either by the graph or by what `on_error` says."""
    if text and is_number_as_text(found.type, declared):
        return True
    if said is not None:
        return said != "fail" or readable(found.type, declared) or narrowable(found.type, declared)
    return readable(found.type, declared) and not find_malformed(found, declared)


def _as_found(value: object, declared: pa.DataType) -> pa.Array | None:
    """Returns the value in the type that Arrow infers, None if there is none."""
    try:
        if pa.types.is_map(declared) and isinstance(value, Mapping):
            return pa.array([_entries(value)], _found_map(value, declared))
        return _inferred(_plain(value))
    except _FAILURES:
        return None


def _inferred(value: object) -> pa.Array:
    """Infers the type as a file's column would have it.

    Integers beyond int64 are uint64, beyond that floats; what is too large for a float can only
    come from a text column.
    """
    items = value if isinstance(value, list) else [value]
    whole = [item for item in items if type(item) is int]
    if all(-(2**63) <= item < 2**63 for item in whole):
        return pa.array([value])
    if all(0 <= item < 2**64 for item in whole):
        return pa.array([value], pa.list_(pa.uint64()) if isinstance(value, list) else pa.uint64())
    try:
        floats = [float(item) if type(item) is int else item for item in items]
    except OverflowError:
        return pa.array([short_text(value)])
    return pa.array([floats] if isinstance(value, list) else floats)


def _plain(value: object) -> object:
    """Encodes texts as bytes, including lone surrogates, which UTF-8 cannot encode."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.encode(errors="surrogatepass") if isinstance(value, str) else value


def _found_map(value: Mapping[object, object], declared: pa.DataType) -> pa.DataType:
    item_type = declared.item_type
    if pa.types.is_map(item_type):
        items = [
            _found_map(item, item_type) for item in value.values() if isinstance(item, Mapping)
        ]
        return pa.map_(pa.string(), items[0] if items else item_type)
    return pa.map_(pa.string(), pa.array(list(value.values())).type)


def _innermost(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_map(arrow_type):
        return _innermost(arrow_type.item_type)
    return arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type


def _entries(value: object) -> object:
    """Converts mappings, also nested ones, to the list of entries that Arrow expects."""
    return (
        [(key, _entries(item)) for key, item in value.items()]
        if isinstance(value, Mapping)
        else value
    )
