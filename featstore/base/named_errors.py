"""The words for errors of the operating system: what they are about, and what to do."""

import errno
import os
from typing import TypeVar

from featstore.base.errors import (
    AccessError,
    DataFileError,
    DiskFullError,
    FeatstoreError,
    SampleStoreError,
    StagingError,
    StoreError,
)
from featstore.base.redaction import redact, redact_text

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_ADVICE: dict[int | None, str] = {
    **dict.fromkeys(_DISK_FULL, "make room there"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "grant this user access to it and to the directories above it"
    ),
    errno.EFBIG: "raise the limit of a file's size (ulimit -f, or the file system's)",
    errno.ELOOP: "remove links that lead to themselves",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENAMETOOLONG: "check the path",
    errno.ENFILE: "raise the limit of open files of the machine (sysctl fs.file-max)",
    errno.ENOMEM: "give the process more memory",
    errno.EROFS: "mount the disk writable",
}
_OTHERWISE = "check the disk, mount or store, and who may use it"
_MEND = (
    ": restore the file from a copy, or write it again, such as by extracting its partition anew"
)
# What Python and Arrow raise for damaged bytes, or a file that is gone: causes of a DataFileError.
_OF_DAMAGE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError)
_Told = TypeVar("_Told", StoreError, StagingError, SampleStoreError)


def told_as(kind: type[_Told], what: str, error: OSError, then: str = "then run it again") -> _Told:
    """The error to raise for one of the operating system, with its words, advice and `errno`.

    Args:
        kind: Its class.
        what: What cannot be done and where, the beginning of its text.
        error: The system's error.
        then: What to do after the advice, or else.
    """
    # Arrow and sockets name in the words what failed.
    said = redact_text((error.strerror or str(error)).partition("\n")[0])
    words = said or (os.strerror(error.errno) if error.errno else "")
    advice = _ADVICE.get(error.errno, _OTHERWISE)
    told = kind(f"{what}: {words or type(error).__name__}; {advice}, {then}")
    told.errno = error.errno
    return told


def system_error(what: str, error: OSError, then: str = "then run it again") -> StoreError:
    """As `told_as`: AccessError if access is refused, DiskFullError if a disk is full, and else
    StoreError.
    """
    if error.errno in _DISK_FULL:
        return told_as(DiskFullError, what, error, then)
    kind = AccessError if isinstance(error, PermissionError) else StoreError
    return told_as(kind, what, error, then)


class NamedErrors:
    """Turns an error of the operating system that leaves the `with` block into a StoreError with
    its words and its `errno`, which names the file, or else the place. Lets a DataFileError, which
    names the file, name the table, too. Other errors of featstore pass.

    May be entered again and again, and by several threads: it holds nothing else.

    Args:
        place: What is read within the block, such as the URL of a table.
    """

    def __init__(self, place: str) -> None:
        self._place = redact(place)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        table = f"table {self._place}"
        if isinstance(error, DataFileError) and table not in str(error):
            # What is wrong with sound files, such as a null, says itself what to do.
            mend = _MEND if isinstance(error.__cause__, _OF_DAMAGE) else ""
            error.args = (f"{str(error).rstrip('.')}; {table}{mend}",)
        if isinstance(error, OSError) and not isinstance(error, FeatstoreError):
            what = table
            if isinstance(error.filename, str | os.PathLike):
                file = redact(os.fspath(error.filename))
                what = f"{file}: a file that is needed for {table}"
            raise system_error(f"{what}: the system failed", error) from error
