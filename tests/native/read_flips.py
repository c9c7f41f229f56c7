"""Reads a Parquet file with single bits of its footer flipped: `read_flips.py FILE COUNT SEED`.

Prints how many were refused, read like the original, and read as Arrow reads them. Before each one
it prints the bit to stderr, so that an aborted process names it. The exit code is 1 if one was read
as something else.
"""

import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.native.column_types import plain_type
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader

SLOTS = (
    Slot(name="id", kind=SlotKind.ID),
    Slot(name="tags", kind=SlotKind.ID, shape=(None,)),
)


def main(path: str, count: str, seed: str) -> int:
    file, draw, found = Path(path).read_bytes(), random.Random(int(seed)), Counter[str]()
    num_bytes = int.from_bytes(file[-8:-4], "little") + 8
    known = _read(Path(path))
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(int(count)):
            place, bit = len(file) - draw.randrange(1, num_bytes + 1), draw.randrange(8)
            sys.stderr.write(f"byte {place}, bit {bit}\n")
            flipped = bytearray(file)
            flipped[place] ^= 1 << bit
            mutant = Path(directory, "flipped.parquet")
            mutant.write_bytes(flipped)
            kind = _kind(mutant, known)
            found[kind] += 1
            if kind == "wrong":
                sys.stdout.write(f"byte {place}, bit {bit}: read as something else\n")
    sys.stdout.write(json.dumps(found))
    return int(found["wrong"] > 0)


def _kind(path: Path, known: list[pa.Table]) -> str:
    try:
        found = _read(path)
    except DataFileError:
        return "refused"
    if all(map(pa.Table.equals, found, known)):
        return "as the file"
    return "as Arrow" if _is_read_by_arrow(path, found[0]) else "wrong"


def _read(path: Path) -> list[pa.Table]:
    """All columns as Arrow reads them, and those that the kernels know as they do."""
    with OpenFile(path) as footer:
        row_groups = range(len(footer.row_group_rows))
        readers = [
            RowGroupReader(footer, Selection(others=tuple(footer.schema)), num_threads=1),
            RowGroupReader(footer, Selection(slots=SLOTS), num_threads=1, as_values=True),
        ]
        return [reader.read(row_groups).table for reader in readers]


def _is_read_by_arrow(path: Path, found: pa.Table) -> bool:
    """Whether Arrow, in a process that it may abort, reads the same rows of the file, whatever
    their names.
    """
    child = os.fork()
    if not child:
        try:
            table = pq.ParquetFile(path).read(use_threads=False)
            fields = [field.with_type(plain_type(field.type)) for field in table.schema]
            os._exit(int(not table.cast(pa.schema(fields)).equals(found)))
        except Exception:  # noqa: BLE001 - nothing leaves the child but its exit status
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
