"""Walks a footer, and turns its structs into rows of numbers, as `format` describes."""

import numpy as np

from featstore.native import kernels
from featstore.native.format import PLAN, SLOTS, Numbers

MAX_ITEMS = 1_000_000  # of a list; Arrow has the same bound
# By the numbers that the kernel gives them.
ERRORS = {
    1: "expected a value of Thrift's compact protocol, found none that is complete",
    2: "expected the field's type in the format, found another",
    3: "expected fields in the order of their numbers, found one early or twice",
    4: "expected every field that the format requires, found one missing",
    5: f"expected a list of at most {MAX_ITEMS:,} elements, found more",
}


class FooterError(ValueError):
    """A footer is invalid. The message says what was expected and found, without the file's
    name.
    """


def walk(footer: bytes) -> tuple[Numbers, ...]:
    """Walks a footer.

    Returns:
        The rows of each table, int64 (num_rows, num_slots), in the order of `format.SLOTS`.

    Raises:
        FooterError: The bytes are not a footer.
    """
    error, position, *tables = kernels.walk_footer(footer, *PLAN)
    if error:
        raise FooterError(f"byte {position} of the footer: {ERRORS[error]}")
    rows = (np.frombuffer(table, np.int64) for table in tables)
    return tuple(
        numbers.reshape(-1, len(slots)) for numbers, slots in zip(rows, SLOTS, strict=True)
    )
