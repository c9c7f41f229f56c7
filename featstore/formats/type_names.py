"""Names of the types of imported columns: those of a spec, and `float`, `binary` and others that
raw Parquet may hold besides.
"""

import pyarrow as pa

from featstore.base.errors import InputError, nearest
from featstore.spec.model import TYPE_NAMES, read_type, type_name, type_names

# What a spec reads as double and string, and a file stores as it was.
_OWN = {"float": pa.float32(), "binary": pa.binary()}
_NAMES = {kind: name for name, kind in _OWN.items()}


def name_of(kind: pa.DataType) -> str:
    """The name of a type, such as `list<long>`; Arrow's own name for one without."""
    if pa.types.is_list(kind):
        return f"list<{name_of(kind.value_type)}>"
    if kind in _NAMES:
        return _NAMES[kind]
    try:
        return type_name(kind)
    except KeyError:
        return str(kind)


def type_of(name: str, column: str) -> pa.DataType:
    """The type of this name, for a column.

    Raises:
        InputError: There is no such type.
    """
    text = name.strip().lower()
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(type_of(text.removeprefix("list<").removesuffix(">"), column))
    found = _OWN.get(text) or read_type(text)
    if found is None:
        known = ", ".join((*_OWN, *TYPE_NAMES))
        raise InputError(
            f"column {column!r}: expected a type of {known}, found {name!r}"
            f"{nearest(name, (*_OWN, *type_names()))}"
        )
    return found
