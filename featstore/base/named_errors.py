"""Names what errors of the operating system are about, where nobody has done so before."""

import errno
import os

from featstore.base.errors import AccessError, DiskFullError, FeatstoreError, StoreError
from featstore.base.redaction import redact, redact_text

_KINDS: dict[int | None, type[StoreError]] = {
    errno.EACCES: AccessError,
    errno.EPERM: AccessError,
    errno.ENOSPC: DiskFullError,
    errno.EDQUOT: DiskFullError,
}
_ADVICE: dict[int | None, str] = dict.fromkeys(
    (errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"
)


class NamedErrors:
    """Turns an error of the operating system that leaves the `with` block into a StoreError with
    its words and its `errno`, which names the file, or else the place. Errors of featstore pass.

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
        if isinstance(error, OSError) and not isinstance(error, FeatstoreError):
            raise self._named(error) from error

    def _named(self, error: OSError) -> StoreError:
        file = error.filename
        what = f"table {self._place}"
        if isinstance(file, str | os.PathLike):
            what = f"{redact(os.fspath(file))}: a file that is needed for {what}"
        words = redact_text(error.strerror or f"{type(error).__name__}: {error}")
        advice = _ADVICE.get(error.errno, "look at the disk or mount, and at who may use it")
        told = _KINDS.get(error.errno, StoreError)(
            f"{what}: the system failed ({words}); {advice}, then run it again"
        )
        told.errno = error.errno
        return told
