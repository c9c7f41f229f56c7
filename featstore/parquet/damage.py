"""What pyarrow raises on bytes that are not what it expects."""

import pyarrow as pa

# Not only Arrow's own: names that are no UTF-8 and values that Python cannot hold are ValueErrors,
# and memory that a damaged number asks for, more than there can be, is a MemoryError.
DAMAGE = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowKeyError,
    pa.ArrowIndexError,
    pa.ArrowCapacityError,
    pa.ArrowSerializationError,
    MemoryError,
    OSError,
    OverflowError,
    ValueError,
)


def first_line(error: BaseException) -> str:
    """What an error says, without what follows its first line, or its kind where it says
    nothing."""
    return str(error).partition("\n")[0] or type(error).__name__
