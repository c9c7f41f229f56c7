"""Marks of columns whose type a format inferred from sampled rows, in the metadata of their fields.

A value that inference would not have given its column's type, such as `007` among numbers, is
malformed in later rows, too. A type that was given has no mark, and takes what can be read as it.
"""

import pyarrow as pa

_HAS_VALUE, _FEATURE = b"featstore.has_value", b"featstore.feature"


def inferred(
    name: str, kind: pa.DataType, *, has_value: bool = True, feature: str | None = None
) -> pa.Field:
    """A column of an inferred type.

    Args:
        has_value: Whether a sampled row has a value. Without one the type says nothing.
        feature: The name in the file if it is another.
    """
    marks = {_HAS_VALUE: b"1" if has_value else b"0"}
    return pa.field(name, kind, metadata=marks | ({_FEATURE: feature.encode()} if feature else {}))


def given(field: pa.Field, kind: pa.DataType) -> pa.Field:
    """An inferred column with a type that the user gave."""
    marks = dict(field.metadata or {})
    marks.pop(_HAS_VALUE, None)
    return field.with_type(kind).with_metadata(marks or None)


def is_inferred(field: pa.Field) -> bool:
    """Whether nobody gave the column's type."""
    return _HAS_VALUE in (field.metadata or {})


def is_undecided(field: pa.Field) -> bool:
    """Whether nobody gave the column's type, and no sampled row had a value to infer it from."""
    return bool((field.metadata or {}).get(_HAS_VALUE) == b"0")


def feature_of(field: pa.Field) -> str:
    """The column's name in the file."""
    return (field.metadata or {}).get(_FEATURE, field.name.encode()).decode()  # type: ignore[no-any-return]


def unmarked(schema: pa.Schema) -> pa.Schema:
    """The schema to write."""
    return pa.schema([(field.name, field.type) for field in schema])
