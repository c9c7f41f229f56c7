"""The exceptions that pyarrow raises for damaged files."""

import pyarrow as pa

# Not only Arrow's own: invalid UTF-8 in names and values that Python cannot hold are ValueErrors,
# and a damaged number that makes Arrow allocate too much is a MemoryError.
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
    """The first line of an error's message, or its class if the message is empty."""
    return str(error).partition("\n")[0] or type(error).__name__
