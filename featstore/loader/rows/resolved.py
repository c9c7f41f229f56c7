"""Where a selection's columns are in files of one schema, as most of a table are: looked for only
in the first.
"""

from collections import deque

from featstore.parquet.file_schema import FileSchema
from featstore.reading.footer import FileColumns, Footer, Selection

_MAX_KEPT = 4


class Resolved:
    """What was found last of a few selections, each of them one and the same object. For one
    thread.
    """

    def __init__(self) -> None:
        self._found: deque[tuple[Selection, FileSchema, FileColumns]] = deque(maxlen=_MAX_KEPT)

    def of(self, footer: Footer, selection: Selection) -> FileColumns:
        """As `Footer.resolve`."""
        file_schema = footer.footer.file_schema  # files with the same schema share it
        for known, known_schema, columns in self._found:
            if known is selection and file_schema is known_schema:
                return columns
        columns = Footer.resolve(footer, selection)
        self._found.append((selection, file_schema, columns))
        return columns
