"""Reads byte ranges of a file as a stream of blocks, with the file's version. Used by staging.

Nothing is retried here: the reader knows where the stream broke, and continues there.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, Union

from featstore.base.errors import ReplacedError
from featstore.base.libraries import LazyModule
from featstore.base.redaction import redact
from featstore.files.random_reader import RandomReader
from featstore.files.retry import ONCE, retrying, with_time_limit
from featstore.files.storage import (
    connect,
    filesystem,
    has_object_store,
    local_path,
    version_of,
)
from featstore.files.store_errors import as_store_errors

if TYPE_CHECKING:
    import obstore
else:
    obstore = LazyModule("obstore")

# Blocks of an answer. Smaller ones cost more calls; larger ones wait longer for the disk and the
# checksum, while the connection's buffers fill up.
_BLOCK_BYTES = 4 << 20
# For clients that return whole blocks only: the size of the first block, the time after which a
# block counts as lost, and the time below which the next block is twice as large. A small first
# block lets a slow store (4 KiB/s) deliver it in time.
_FIRST_BLOCK_BYTES, _LONGEST_BLOCK_S, _QUICK_BLOCK_S = 256 << 10, 60.0, 1.0
_TIME = "modified "  # the prefix of a tag that is a time, used for stores without ETags
Block: TypeAlias = Union[bytes, "obstore.Bytes", memoryview]


@dataclass(frozen=True, kw_only=True)
class RangeResponse:
    """The response to a range request.

    Attributes:
        size_bytes: The size of the whole file.
        tag: The version of the file; empty if the store reports none.
        blocks: The bytes in order. They end early if the connection breaks, with or without an
            OSError.
        setup_s: The time spent on making a client, which is not a cost of the request.
    """

    size_bytes: int
    tag: str
    blocks: Iterator[Block]
    setup_s: float = 0.0


class ReadSpan(Protocol):
    """Opens a stream of a byte range of a file.

    Args:
        url: The file.
        first: The first byte.
        end: The end of the range, not included.
        size_bytes: The expected size of the file.
        tag: The version of an earlier response, or empty.

    Raises:
        ReplacedError: The file has another version than `tag`.
        FileNotFoundError: There is no such file.
        PermissionError: Access is refused.
        OSError: The request failed. With an `errno` of EINVAL a retry would fail too.
    """

    def __call__(
        self, url: str, first: int, end: int, *, size_bytes: int, tag: str = ""
    ) -> RangeResponse: ...


def read_span(url: str, first: int, end: int, *, size_bytes: int, tag: str = "") -> RangeResponse:
    """The `ReadSpan` of local paths, object stores and fsspec's file systems."""
    path = local_path(url)
    if path is not None:
        response = _from_path(url, path, first, end)
    else:
        with retrying(ONCE), as_store_errors(url):
            if has_object_store(url):
                response = _from_store(url, first, end, size_bytes, tag)
            else:
                response = _from_filesystem(url, first, end)
    if tag and response.tag.strip('"') != tag.strip('"'):  # which some stores leave out
        raise ReplacedError(
            f"{redact(url)} was replaced while it was read: expected version {tag}, found "
            f"{response.tag or 'none'}"
        )
    return response


def _from_store(url: str, first: int, end: int, size_bytes: int, tag: str) -> RangeResponse:
    started_s = time.monotonic()
    store, key = connect(url)
    setup_s = time.monotonic() - started_s
    options: dict[str, Any] = _condition(tag)
    if (first, end) != (0, size_bytes):
        options["range"] = (first, end)
    result = obstore.get(store, key, options=options)  # type: ignore[arg-type]
    meta = result.meta
    modified = meta["last_modified"]
    is_known = modified.timestamp() > 0  # obstore reports the epoch if there is no such header
    version = meta["e_tag"] or (f"{_TIME}{modified.isoformat()}" if is_known else "")
    return RangeResponse(
        size_bytes=meta["size"],
        tag=version,
        # Blocks are passed on as they arrive, so that none are lost if the connection breaks.
        blocks=_with_store_errors(url, result.stream(min_chunk_size=1)),
        setup_s=setup_s,
    )


def _condition(tag: str) -> dict[str, Any]:
    """The request's condition. A weak ETag (`W/`) never satisfies `If-Match`, so it is only
    compared with that of the response.
    """
    if tag.startswith(_TIME):
        return {"if_unmodified_since": datetime.fromisoformat(tag.removeprefix(_TIME))}
    return {"if_match": tag} if tag and not tag.startswith("W/") else {}


def _from_filesystem(url: str, first: int, end: int) -> RangeResponse:
    fs = filesystem(url)

    def version() -> tuple[int, str]:
        info = fs.info(url)
        return int(info["size"]), str(version_of(info))

    response = _from_file(
        url,
        version,
        lambda: fs.open(url, "rb", cache_type="none"),
        lambda file: _streamed(file, first, end),
    )
    return replace(response, blocks=_with_store_errors(url, response.blocks))


def _with_store_errors(url: str, blocks: Iterable[Block]) -> Iterator[Block]:
    with as_store_errors(url):
        yield from blocks


def _from_path(url: str, path: Path, first: int, end: int) -> RangeResponse:
    def version() -> tuple[int, str]:
        stat = path.stat()
        return stat.st_size, f"{stat.st_ino}-{stat.st_mtime_ns}"

    return _from_file(url, version, lambda: path.open("rb"), lambda file: _read(file, first, end))


def _from_file(
    url: str,
    version: Callable[[], tuple[int, str]],
    open_file: Callable[[], IO[bytes]],
    read: Callable[[IO[bytes]], Iterator[bytes]],
) -> RangeResponse:
    """The response for a source whose reads take no condition: the version is compared before and
    after the read instead.
    """
    before = version()

    def blocks() -> Iterator[bytes]:
        with open_file() as file:
            yield from read(file)
        if version() != before:
            raise ReplacedError(f"{redact(url)} was replaced while it was read")

    return RangeResponse(size_bytes=before[0], tag=before[1], blocks=blocks())


def _read(file: IO[bytes], position: int, end: int) -> Iterator[bytes]:
    file.seek(position)
    while position < end and (block := file.read(min(_BLOCK_BYTES, end - position))):
        yield block
        position += len(block)


def _streamed(file: Any, first: int, end: int) -> Iterator[bytes]:
    """Yields blocks as they arrive, if the client is able to, which then has a time limit."""
    if isinstance(file, RandomReader) and (stream := file.stream(first, end - first)) is not None:
        return stream
    return _read_growing(file, first, end)


def _read_growing(file: IO[bytes], position: int, end: int) -> Iterator[bytes]:
    """Yields blocks whose size grows while the store is quick. A store that stops delivering is
    noticed by the time limit of a block.
    """
    file.seek(position)
    num_bytes = _FIRST_BLOCK_BYTES
    while position < end:
        started_s = time.monotonic()
        read = partial(file.read, min(num_bytes, end - position))
        block = with_time_limit(read, _LONGEST_BLOCK_S, "block")
        if not block:
            return
        yield block
        position += len(block)
        if time.monotonic() - started_s < _QUICK_BLOCK_S:
            num_bytes = min(2 * num_bytes, _BLOCK_BYTES)
