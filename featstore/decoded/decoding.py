"""Decodes data files into entries of the cache, a file and a selection each."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from featstore.decoded.decoded_cache import EntryRequest
from featstore.decoded.decoded_columns import decoded_batch, decoded_schema, num_bytes_beside
from featstore.decoded.entry_file import EntryWriter
from featstore.decoded.file_sources import FileSource, opened_sources
from featstore.errors import DataFileError
from featstore.reading.aligned import RowsReader, aligned_reader
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import require_held
from featstore.redaction import redact
from featstore.staging.cache import entry_name
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile

# Of entries that are written otherwise the names differ, so that neither reads the other's.
FORMAT = 1
# A piece is decoded and written as one record batch. Larger ones take more memory, which the kernel
# has to clear first; the more there are, the longer a gather takes.
_PIECE_BYTES, _PIECE_ROWS = 128 << 20, 1 << 20
# What Arrow's file format adds: a schema, and for each batch a header, and padding of each buffer.
_OVERHEAD_BYTES, _COLUMN_OVERHEAD_BYTES = 64 << 10, 512


def entry_of(
    file: DataFile, selection: Selection, stager: Stager, num_threads: int
) -> EntryRequest:
    """The entry of a data file's rows, with those of its slot groups' files.

    Its name follows from the files, at their versions, and from the selected columns, in whatever
    order: from nothing else of the table or of the request.

    Args:
        file: The data file.
        selection: The columns.
        stager: Stages the files if they are not local.
        num_threads: In how many threads columns are decoded.
    """
    columns = {
        "decoded": FORMAT,
        "version": file.version,
        "groups": [[group.url, group.size_bytes, group.version] for group in file.groups],
        "slots": sorted(
            [slot.name, str(slot.kind), list(slot.shape), slot.number] for slot in selection.slots
        ),
        "others": sorted([field.name, str(field.type)] for field in selection.others),
    }
    name = entry_name(file.url, file.size_bytes, json.dumps(columns, sort_keys=True))
    num_columns = len(selection.slots) + len(selection.others)
    return EntryRequest(
        name=name,
        title=f"{num_columns} decoded columns of {redact(file.url)}",
        first_bytes=file.size_bytes,
        build=partial(_build, file, selection, stager, num_threads),
    )


def _build(
    file: DataFile, selection: Selection, stager: Stager, num_threads: int, writer: EntryWriter
) -> None:
    with opened_sources(file, stager) as sources:
        decode(file, sources, selection, writer, num_threads)


def decode(
    file: DataFile,
    sources: Sequence[FileSource],
    selection: Selection,
    writer: EntryWriter,
    num_threads: int,
) -> None:
    """Decodes all rows of a data file, and writes them.

    Args:
        file: The data file.
        sources: Where it is read, and after it the files of its slot groups.
        selection: The columns.
        writer: Where they are written.
        num_threads: In how many threads columns are decoded.

    Raises:
        DataFileError: A file cannot be read, or is not what the table says.
    """
    with ExitStack() as stack:
        base, *groups = [
            stack.enter_context(OpenFile(each.source, each.path, is_checked=each.is_checked))
            for each in sources
        ]
        reader = aligned_reader(base, groups, selection, num_threads=num_threads, as_values=True)
        held = {each.path: each.held for each in sources}
        for opened, columns in reader.parts:
            require_held(opened, columns, held[opened.name])
        if base.num_rows != file.num_rows:
            raise DataFileError(
                f"{file.path}: expected {file.num_rows} rows, as the table says, found "
                f"{base.num_rows}"
            )
        pieces = list(_pieces(reader, base.row_group_rows))
        writer.reserve(_expected_bytes(reader, selection, base.row_group_rows, len(pieces)))
        batches = (decoded_batch(reader.read(piece), selection) for piece in pieces)
        writer.write(decoded_schema(selection), batches)


def _pieces(reader: RowsReader, row_group_rows: Sequence[int]) -> Iterator[range]:
    """The row groups of each piece: as many as fit, at least one."""
    first = num_rows = num_bytes = 0
    for index, group_rows in enumerate(row_group_rows):
        group_bytes = reader.size_bytes([index])
        is_full = num_bytes + group_bytes > _PIECE_BYTES or num_rows + group_rows > _PIECE_ROWS
        if is_full and index > first:
            yield range(first, index)
            first, num_rows, num_bytes = index, 0, 0
        num_rows, num_bytes = num_rows + group_rows, num_bytes + group_bytes
    if first < len(row_group_rows):
        yield range(first, len(row_group_rows))


def _expected_bytes(
    reader: RowsReader, selection: Selection, row_group_rows: Sequence[int], num_pieces: int
) -> int:
    num_rows, num_columns = sum(row_group_rows), len(selection.slots) + len(selection.others)
    overhead_bytes = _OVERHEAD_BYTES + _COLUMN_OVERHEAD_BYTES * num_columns * (1 + num_pieces)
    return (
        reader.size_bytes(range(len(row_group_rows)))
        + num_bytes_beside(selection, num_rows)
        + overhead_bytes
    )
