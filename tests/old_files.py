"""Files of a table that look old, as a vacuum sees them."""

import os
import time
from collections.abc import Collection
from pathlib import Path


def age(table: str | Path, days: float = 30, what: str = "*", *, but: Collection[str] = ()) -> None:
    """Makes files look that many days old, except for the log's and those below `but`."""
    for path in Path(table).rglob(what):
        if path.is_file() and not {"_delta_log", *but} & set(path.parts):
            os.utime(path, (time.time() - days * 86_400,) * 2)
