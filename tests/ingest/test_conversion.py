"""One file: it must not change, and its Parquet file appears whole or not at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from featstore.base.errors import InputError
from featstore.files.listings import list_files
from featstore.formats.csv_rows import CsvFormat
from featstore.formats.parsed import ParsedRows
from featstore.ingest.conversion import convert
from featstore.ingest.import_job import ImportJob

SCHEMA = pa.schema([("a", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class ReplacingFormat(CsvFormat):
    """Replaces the file after it was read."""

    path: str

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        yield from super().read(source, schema)
        Path(self.path).write_text("a\n1\n2\n3\n")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n")
    (listed,) = list_files(str(path), suffix="")
    job = ImportJob(
        format=ReplacingFormat(path=str(path)),
        input_url=str(path),
        output_url=str(tmp_path / "raw"),
    )
    with pytest.raises(InputError, match=r"x\.csv changed while it was read: expected 4 bytes"):
        convert(job, SCHEMA, listed, str(tmp_path / "x.parquet"))
    assert [other.name for other in tmp_path.iterdir()] == ["x.csv"]
