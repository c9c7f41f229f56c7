"""Columns of tables that have permanent ids, in data files."""

import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.base.schema import FIELD_ID, FieldId, stored_name
from featstore.native.column_types import is_list
from featstore.native.file_schema import FileSchema


def column_of_id(
    file_schema: FileSchema, field_id: FieldId, expected: pa.Field, file_name: str
) -> pa.Field | None:
    """Finds the column of an id, or in a file without any id the one that has one of its names. If
    the number is None, names alone count.

    Args:
        file_schema: The columns of the file.
        field_id: The id.
        expected: The column of the table.
        file_name: The file, for errors.

    Returns:
        The file's column; None if there is none.

    Raises:
        DataFileError: There are several, the file has no ids and the column no names, only other
            columns of the file have ids, or members of a struct have other ones.
    """
    where = f"{file_name}: column {expected.name!r}"
    named = [name for name in field_id.names if name in file_schema.by_name]
    if field_id.number is None or not file_schema.by_id:
        return _of_names(file_schema, field_id, named, where)
    found = file_schema.by_id.get(field_id.number, ())
    if len(found) > 1:
        raise DataFileError(
            f"{where}: expected one column of field id {field_id.number}, found {len(found)}; "
            "write the file again without the others"
        )
    if not found:
        bare = [name for name in named if _id(file_schema.schema.field(name)) is None]
        if bare:
            raise DataFileError(
                f"{where}: expected field ids on all columns of the file or on none, found none on "
                f"{bare[0]!r} only: write the file again"
            )
        return None
    field = file_schema.schema.field(found[0])
    if (other := _other_member(field.type, expected.type)) is not None:
        raise DataFileError(
            f"{where}: expected the member {other!r} of a struct as the table has it, found it "
            "renamed, or another one of its name: members are read by name; leave the column out, "
            "or write the file again"
        )
    return field


def _of_names(
    file_schema: FileSchema, field_id: FieldId, named: list[str], where: str
) -> pa.Field | None:
    if not field_id.names:
        raise DataFileError(
            f"{where}: expected a file with field ids, found one without, and the table says no "
            "name by which to find the column in it: write the file again, or set the property "
            "schema.name-mapping.default of a table of Iceberg"
        )
    places = [place for name in named for place in file_schema.by_name[name]]
    if len(places) > 1:
        raise DataFileError(
            f"{where}: expected one column of the names {', '.join(field_id.names)}, found "
            f"{len(places)}; write the file again without the others"
        )
    return file_schema.schema.field(places[0]) if places else None


def _other_member(found: pa.DataType, expected: pa.DataType) -> str | None:
    """The name of a member of a struct, at any depth, that is not the same by name as by id."""
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        names = {_id(member): member.name for member in found}
        ids = {member.name: _id(member) for member in found}
        for member in expected:
            name, number = stored_name(member), _id(member)
            if names.get(number, name) != name or ids.get(name, number) != number:
                return str(member.name)
        stored = [(stored_name(member), member.type) for member in expected]
        pairs = [(found.field(name).type, type_) for name, type_ in stored if name in ids]
    elif pa.types.is_map(found) and pa.types.is_map(expected):
        pairs = [(found.key_type, expected.key_type), (found.item_type, expected.item_type)]
    elif is_list(found) and is_list(expected):
        pairs = [(found.value_type, expected.value_type)]
    else:
        return None
    return next((other for pair in pairs if (other := _other_member(*pair)) is not None), None)


def _id(member: pa.Field) -> bytes | None:
    return (member.metadata or {}).get(FIELD_ID)


def absent_value(column: pa.Field) -> pa.Scalar:
    """The value of a column of a table in files that lack it: null, or the table's default."""
    field_id = FieldId.of(column)
    if field_id is None or field_id.default is None:
        return pa.scalar(None, column.type)
    return pa.scalar(field_id.default).cast(column.type)
