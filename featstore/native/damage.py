"""Which exceptions say that the bytes of a file are wrong, and which that the process or the store
fails: those are no reason to take a file for damaged, or to leave it out.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from featstore.base.errors import FeatstoreError, OutOfMemoryError
from featstore.base.named_errors import system_error

# What is raised for damaged bytes in memory. Not only Arrow's own: invalid UTF-8 in names and
# values that Python cannot hold are ValueErrors. Of a file `damage_as` knows more.
DAMAGE = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowKeyError,
    pa.ArrowIndexError,
    pa.ArrowCapacityError,
    pa.ArrowSerializationError,
    OSError,
    OverflowError,
    ValueError,
)
# Two calls of the system that fail give no number in Arrow (26.0, cpp/src/arrow/util/io_util.cc).
_OF_SYSTEM = re.compile(r"error stat\(\)ing file|lseek failed")


@contextmanager
def damage_as(make: Callable[[Exception], Exception], where: str | None = None) -> Iterator[None]:
    """Turns what is raised in the block for damaged bytes, or for a file that is gone, into another
    error. Errors of featstore pass unchanged.

    An OSError with a number other than ENOENT is the system's or the store's, and a MemoryError is
    the process's. What a file declares is compared with what its bytes may hold before they are
    decoded (`native/bounds.py`).

    Args:
        make: Makes the error to raise of the one that was raised, or gives that one back.
        where: The file's name in errors. None: what fails besides passes unchanged, for an outer
            block that names the file.

    Raises:
        StoreError: The system or the store failed. It has the `errno` of what was raised.
        OutOfMemoryError: There is no memory.
    """
    try:
        yield
    except FeatstoreError:
        raise
    except MemoryError as error:
        if where is None:
            raise
        raise OutOfMemoryError(
            f"{where}: there is no memory to read it ({first_line(error)}); give the process more, "
            f"or read fewer columns, or smaller row groups, at once"
        ) from error
    except DAMAGE as error:
        if not isinstance(error, OSError) or _is_of_bytes(error):
            if (made := make(error)) is error:
                raise
            raise made from error
        if where is None:
            raise
        raise system_error(f"{where}: cannot be read", error) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if the message is empty."""
    return str(error).partition("\n")[0] or type(error).__name__


def _is_of_bytes(error: OSError) -> bool:
    """Whether the file is damaged, of which Arrow raises an OSError without a number, or gone."""
    if isinstance(error, (ConnectionError, TimeoutError)) or _OF_SYSTEM.match(first_line(error)):
        return False
    return error.errno in (None, errno.ENOENT)
