"""A claimed split and the files from which it is read, in place or staged."""

from collections.abc import Callable
from dataclasses import dataclass

from featstore.decoded.decoded_file import DecodedFile
from featstore.decoded.file_sources import FileSource, Release
from featstore.dispatch.terms import Claim
from featstore.loader.request.matching import Partition


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claim whose files can be read now.

    The feed makes it, in the thread that decodes, once the files are staged or opened in place.
    One `SplitReader` consumes it; it owns the files' pins, and calls `release` when it is closed.

    Attributes:
        claim: Which rows of which split.
        partition: The partition that the split's data file belongs to.
        files: The data file, and after it those of its slot groups; none if `decoded` is there.
        decoded: The data file's decoded columns, which are read instead.
        release: Unpins the staged files, or the decoded columns. Called once, when the files are
            closed.
        reserve: Called with a row of the split, before rows up to it are read. Returns the row up
            to which this worker may deliver; None if the claim is lost.
        fail: Records that the claim cannot be read.
    """

    claim: Claim
    partition: Partition
    files: tuple[FileSource, ...]
    decoded: DecodedFile | None = None
    release: Release = lambda: None
    reserve: Callable[[int], int | None] = lambda through: through
    fail: Callable[[], None] = lambda: None
