"""One Python value as an Arrow array of one, for a single row."""

import math
from collections.abc import Iterable, Mapping

import pyarrow as pa

from featstore.errors import InputError
from featstore.ops.columns import readable
from featstore.ops.malformed import narrowable, short_text
from featstore.spec.model import type_name

_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)


def single(name: str, value: object, declared: pa.DataType, *, said: str | None) -> pa.Array:
    """The value in its declared type; bytes stay bytes, to be repaired as in a file.

    Where the spec has `said` what malformed values do, one that does not fit is an array of its own type, as a file's column
    would be. Else InputError.
    """
    try:
        return _declared(value, declared)
    except _FAILURES as error:
        found = None if said is None else _as_found(value)
        refused = (
            found is not None and said == "fail" and not (readable(found.type, declared) or narrowable(found.type, declared))
        )
        if found is None or refused:
            raise InputError(f"column {name!r}: expected {type_name(declared)}, found {short_text(value)}") from error
        return found


def _declared(value: object, declared: pa.DataType) -> pa.Array:
    if pa.types.is_list(declared) and isinstance(value, str | bytes):
        raise TypeError("a text is no list")
    if not isinstance(value, int) and pa.types.is_integer(_innermost(declared)) and any(map(_is_cut, _leaves(value))):
        raise ValueError("Arrow would cut the fraction off")
    arrow_type = pa.binary() if isinstance(value, bytes) and declared == pa.string() else declared
    return pa.array([_entries(value) if pa.types.is_map(declared) else value], arrow_type)


def _as_found(value: object) -> pa.Array | None:
    """The value in the type that Arrow infers, None where there is none."""
    if isinstance(value, str):
        value = value.encode(errors="surrogatepass")
    arrow_type = pa.uint64() if isinstance(value, int) and 2**63 <= value < 2**64 else None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = float(value)
    try:
        return pa.array([value], arrow_type)
    except _FAILURES:
        return None


def _innermost(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_map(arrow_type):
        return _innermost(arrow_type.item_type)
    return arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type


def _leaves(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return (leaf for item in value.values() for leaf in _leaves(item))
    return (leaf for item in value for leaf in _leaves(item)) if isinstance(value, list | tuple) else (value,)


def _is_cut(value: object) -> bool:
    return isinstance(value, float) and not (math.isfinite(value) and value.is_integer())


def _entries(value: object) -> object:
    """A mapping, nested or not, as the entries that Arrow takes."""
    return [(key, _entries(item)) for key, item in value.items()] if isinstance(value, Mapping) else value
