"""For runs with sanitizers, as a plugin of pytest or imported: the kernels are those of
`sanitize.py`, and a column's offsets and its values each get memory of their own, so that the
sanitizer sees a write beyond the end of either."""

import importlib.util
import sys
from typing import Any

import numpy as np

from fuzz.sanitize import MODULE

NAME = "featstore.native.kernels"
spec = importlib.util.spec_from_file_location(NAME, MODULE)
assert spec is not None
sys.modules[NAME] = importlib.util.module_from_spec(spec)

from featstore.native import kernels  # noqa: E402
from featstore.native.bounds import COLUMN  # noqa: E402
from featstore.native.format import Numbers  # noqa: E402
from featstore.reading import pages  # noqa: E402

assert kernels.__file__ == str(MODULE)

PLACES = [COLUMN[name] for name in ("offsets_in", "offsets_at", "values_in", "values_at")]


def separate(
    numbers: Numbers, num_rows: int, num_bytes: int, take: pages.Take | None
) -> tuple[Any, ...]:
    """Of exactly the sizes that are needed: Arrow rounds its allocations up, and a bytearray has
    one byte more. The numbers say where each column lies now.
    """
    repetition, found, width = (COLUMN[name] for name in ("repetition", "found", "width"))
    offsets = np.where(numbers[:, repetition] > 0, 4 * (num_rows + 1), 0)
    values = numbers[:, found].clip(min=0) * numbers[:, width]
    numbers[:, PLACES] = 0
    numbers[:, PLACES[0]] = 2 * np.arange(len(numbers))
    numbers[:, PLACES[2]] = numbers[:, PLACES[0]] + 1
    sizes = np.stack([offsets, values], axis=1).reshape(-1)
    return tuple(np.empty(size, np.uint8) for size in sizes.tolist())


pages.allocated = separate
