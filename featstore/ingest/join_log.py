"""A log of a join as raw files that are read without Spark: its columns, as Spark finds them, and
its rows in batches.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from featstore.base.errors import DataFileError, InputError
from featstore.base.redaction import redact
from featstore.extraction.units.raw import (
    RawFile,
    find_raw_files,
    input_digest,
    list_input,
    open_range,
    plan_units,
    read_batches,
)
from featstore.files.listings import check_unchanged, list_files
from featstore.files.storage import absolute
from featstore.files.walking import MAGIC
from featstore.formats.text_files import format_of
from featstore.ingest.join_inputs import no_files
from featstore.ingest.join_options import LogSource
from featstore.ops.arrays import cast_text
from featstore.table.layout import parse_partition
from featstore.table.open import OpenedTables, open_input
from featstore.table.parquet_dir import columns_of

_INTEGER, _DATE = re.compile(r"[+-]?\d+"), re.compile(r"\d{4}-\d\d-\d\d")
_NUMBER_OR_TIME = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?|\d{4}-\d\d?(-\d\d?.*)?")
_ONE_UNIT = 1 << 62  # rows


@dataclass(frozen=True, kw_only=True)
class JoinLog:
    """A log as it was listed.

    Attributes:
        files: In the order in which their rows are read.
        schema: The columns of all files, and after them the keys of `key=value` directories below
            the log's, in the types that Spark infers.
        keys: The values of these keys, by the URL of a file.
        version: That of the table whose rows it has, if it has one.
    """

    source: LogSource
    files: tuple[RawFile, ...]
    schema: pa.Schema
    keys: Mapping[str, Mapping[str, pa.Scalar]] = field(repr=False)
    version: int | str | None = None

    @property
    def digest(self) -> str:
        """Identifies the files, and how a table finds columns in them."""
        listed = ((file.listed, file.of_table) for file in self.files)
        return input_digest(listed, self.schema.names)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields all rows, with these columns, and the number of each batch's first row.

        Raises:
            InputError: A file cannot be read, or has changed since it was listed.
        """
        schema, num_rows = pa.schema([self.schema.field(name) for name in names]), 0
        for unit in plan_units(self.files, _ONE_UNIT):
            for raw in unit.ranges:
                keys = self.keys.get(raw.url, {})
                with open_range(raw) as file:
                    found = [n for n in names if n in file.schema_arrow.names and n not in keys]
                    for batch in read_batches(file, raw, found):
                        yield num_rows, _aligned(batch, schema, keys)
                        num_rows += batch.num_rows

    def check(self) -> None:
        """Checks, after all rows were read, that no file has changed since it was listed.

        Raises:
            InputError: A file was changed or removed.
        """
        plain = [file.listed for file in self.files if file.of_table is None]
        if plain:
            now = {file.url: file for file in list_files(self.source.url or "")}
            for listed in plain:
                check_unchanged(listed, now.get(listed.url))


def open_log(source: LogSource) -> JoinLog:
    """Lists the files of a log, and finds its columns.

    Raises:
        InputError: It is not Parquet or a table, has no files, or they have no common schema.
    """
    if (url := source.url) is None:
        raise InputError(
            f"{source}: the engine `local` runs no queries and knows no metastore; expected files "
            f"or a table (from=URL), or the engine `spark`"
        )
    opened = OpenedTables()
    listed = [entry for entry, _ in list_input(url, opened=opened)]
    if not listed or format_of(listed[0].url) is not None:
        raise no_files(source, listed)
    files = find_raw_files(url, {}, (), opened=opened)
    for file in files:
        _check_once(file)
    texts_of_keys = {
        file.listed.url: parse_partition(_below_root(url, file.listed.name))
        for file in files
        if file.of_table is None
    }
    keys = _typed_keys(source, texts_of_keys)
    types = {name: value.type for of_file in keys.values() for name, value in of_file.items()}
    try:
        union = pa.unify_schemas([file.schema for file in files])
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise InputError(
            f"{source}: a column has several types in its files ({error}); expected one, as Spark "
            f"does: write the files with one, or name those of one as a log"
        ) from None
    fields = [column.with_nullable(True) for column in union if column.name not in types]
    schema = pa.schema([*fields, *(pa.field(name, of) for name, of in types.items())])
    table = open_input(url, opened)
    version = None if table is None else table.snapshot.version
    return JoinLog(source=source, files=tuple(files), schema=schema, keys=keys, version=version)


def _check_once(file: RawFile) -> None:
    try:
        columns_of(file.listed, file.schema)
    except DataFileError as error:
        raise InputError(f"raw input: {error}") from None


def spark_type(found: pa.DataType) -> str:
    """The name that Spark gives to a type of Parquet."""
    if pa.types.is_dictionary(found):
        return spark_type(found.value_type)
    for is_of, name in (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_int8, "tinyint"),
        (pa.types.is_int16, "smallint"),
        (pa.types.is_uint8, "smallint"),
        (pa.types.is_int32, "int"),
        (pa.types.is_uint16, "int"),
        (pa.types.is_int64, "bigint"),
        (pa.types.is_uint32, "bigint"),
        (pa.types.is_uint64, "decimal(20,0)"),
        (pa.types.is_float64, "double"),
        (pa.types.is_floating, "float"),
        (pa.types.is_string, "string"),
        (pa.types.is_large_string, "string"),
        (pa.types.is_binary, "binary"),
        (pa.types.is_large_binary, "binary"),
        (pa.types.is_fixed_size_binary, "binary"),
        (pa.types.is_date, "date"),
    ):
        if is_of(found):
            return name
    if pa.types.is_timestamp(found):
        return "timestamp" if found.tz else "timestamp_ntz"
    if pa.types.is_decimal(found):
        return f"decimal({found.precision},{found.scale})"
    return str(found)


def _below_root(url: str, name: str) -> str:
    """The part of a listed name below the directory that the URL names or its glob matches, in
    which Spark looks for keys.
    """
    root = absolute(url).rstrip("/")
    glob = MAGIC.search(root)
    if glob is None:
        return name
    num_matched = root[root.rindex("/", 0, glob.start()) + 1 :].count("/") + 1
    return "/".join(name.split("/")[num_matched:])


def _typed_keys(
    source: LogSource, texts: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, pa.Scalar]]:
    names = list(next(iter(texts.values()), {}))
    for url, of_file in texts.items():
        if list(of_file) != names:
            raise InputError(
                f"{source}: expected all files in directories of the keys {names}, found "
                f"{redact(url)}; name directories of one kind"
            )
    types = {
        name: _key_type(source, name, [of_file[name] for of_file in texts.values()])
        for name in names
    }
    return {
        url: {name: pa.scalar(of_file[name], pa.string()).cast(types[name]) for name in names}
        for url, of_file in texts.items()
    }


def _key_type(source: LogSource, name: str, values: Sequence[str | None]) -> pa.DataType:
    """The type that Spark infers: int, bigint, date or string."""
    texts = [value for value in values if value is not None]
    if texts and all(map(_INTEGER.fullmatch, texts)):
        for bits, wanted in ((31, pa.int32()), (63, pa.int64())):
            if all(-(2**bits) <= int(text) < 2**bits for text in texts):
                return wanted
    if texts and all(map(_DATE.fullmatch, texts)):  # also 2026-13-01, which is text
        return pa.string() if cast_text(pa.array(texts), pa.date32()) is None else pa.date32()
    if texts and all(map(_NUMBER_OR_TIME.fullmatch, texts)):
        raise InputError(
            f"{source}: the engine `local` takes the values of directories as integers, dates "
            f"(YYYY-MM-DD) or text, found {name}={texts[0]}: name one directory, or use the "
            f"engine `spark`"
        )
    return pa.string()


def _aligned(
    batch: pa.RecordBatch, schema: pa.Schema, keys: Mapping[str, pa.Scalar]
) -> pa.RecordBatch:
    arrays = []
    for column in schema:
        if column.name in keys:
            arrays.append(pa.repeat(keys[column.name], batch.num_rows))
        elif column.name in batch.schema.names:
            arrays.append(batch.column(column.name).cast(column.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, column.type))
    return pa.record_batch(arrays, schema=schema)
