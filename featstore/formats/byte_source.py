"""Files as streams of bytes, decompressed, and as blocks of whole lines."""

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.redaction import redact
from featstore.files.storage import open_read
from featstore.native.damage import damage_as, first_line

BLOCK_BYTES = 4 << 20
# A line that is longer is taken for a file of another kind.
_MAX_LINE_BYTES = 64 << 20
# The first bytes of compressed files. Text begins with none of them.
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_HEAD_BYTES = 12
_BOM = b"\xef\xbb\xbf"


@contextlib.contextmanager
def open_bytes(
    url: str, listed_bytes: int | None = None, is_plain: Callable[[bytes], bool] = lambda _: False
) -> Iterator[IO[bytes]]:
    """Opens a file for sequential reading; gzip and zstd are told by their first bytes.

    Args:
        listed_bytes: Its size, if known.
        is_plain: Whether a file that begins with these bytes is not compressed, whatever they are.

    Raises:
        OSError: The file cannot be opened. Reading raises it too if compressed bytes are damaged or
            end early.
    """
    with open_read(url, listed_bytes) as file:
        head = file.read(_HEAD_BYTES)
        file.seek(0)
        codecs = (codec for magic, codec in _MAGIC.items() if head.startswith(magic))
        codec = None if is_plain(head) else next(codecs, None)
        source: Any = pa.PythonFile(file, mode="r")
        if codec == "gzip":
            source = _Gzip(fileobj=file)
        elif codec is not None:
            source = pa.CompressedInputStream(source, codec)
        with source:
            yield cast(IO[bytes], source)


class _Gzip(gzip.GzipFile):
    """Arrow's stream refuses the zeros with which tapes and some uploads fill a file up."""

    def read(self, size: int | None = -1) -> bytes:
        """OSError if the bytes are damaged or end early, as of Arrow's streams."""
        try:
            return super().read(size)
        except (EOFError, zlib.error) as error:
            raise OSError(f"gzip: {error}") from error


@contextlib.contextmanager
def errors_of(url: str) -> Iterator[None]:
    """Adds the file to errors of reading it."""
    where = redact(url)

    def unreadable(error: Exception) -> InputError:
        return InputError(f"{where}: cannot be read ({first_line(error)})")

    with damage_as(unreadable, where):
        try:
            yield
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Consecutive lines of a file.

    Attributes:
        first: The number of the first one, from 1.
        lines: The lines without their ends.
    """

    first: int
    lines: list[bytes]


def line_blocks(source: IO[bytes], block_bytes: int = BLOCK_BYTES) -> Iterator[Lines]:
    """The lines of a file in blocks of about `block_bytes` bytes. A byte order mark is left out.

    Raises:
        InputError: A line is longer than 64 MiB.
    """
    first, rest, head = 1, b"", source.read(len(_BOM)).removeprefix(_BOM)
    while block := head + source.read(block_bytes):
        head = b""
        if b"\n" in block:
            *lines, rest = (rest + block).split(b"\n")
        else:
            lines, rest = [], rest + block
        if len(rest) > _MAX_LINE_BYTES:
            raise InputError(
                f"line {first + len(lines)}: expected lines of at most {_MAX_LINE_BYTES:,} bytes, "
                f"found a longer one; is this a file of another format?"
            )
        if lines:
            yield Lines(first=first, lines=lines)
            first += len(lines)
    if rest:
        yield Lines(first=first, lines=[rest])
