"""Where a selection's columns are in files of one schema, as most of a table are: looked for only in the first."""

from collections import deque

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.reading.footer import FileColumns, Footer, Selection

_MAX_KEPT = 4


class Resolved:
    """What was found last of a few selections, each of them one and the same object. For one thread."""

    def __init__(self) -> None:
        self._found: deque[tuple[Selection, pa.Schema, pq.ParquetSchema, FileColumns]] = deque(maxlen=_MAX_KEPT)

    def of(self, footer: Footer, selection: Selection) -> FileColumns:
        """As `Footer.resolve`."""
        schema, leaves = footer.schema, footer.file.schema
        for known, known_schema, known_leaves, columns in self._found:
            if known is selection and schema.equals(known_schema, check_metadata=True) and leaves.equals(known_leaves):
                return columns
        columns = Footer.resolve(footer, selection)
        self._found.append((selection, schema, leaves, columns))
        return columns
