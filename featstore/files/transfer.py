"""Byte ranges of a file by URL, as a stream of blocks, with the version of the file that they are
of.

What staging is made of. Nothing is repeated here: who reads knows where it broke, and goes on
there.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

import obstore
from obstore import Bytes

from featstore.errors import ReplacedError
from featstore.files.storage import connect, filesystem, has_object_store, local_path
from featstore.files.store_errors import as_store_errors
from featstore.redaction import redact

_BLOCK_BYTES = 4 << 20
# Of a client that hands out whole blocks only: the first, what it may take, and below what the next
# is twice as large.
_FIRST_BLOCK_BYTES, _LONGEST_BLOCK_S, _QUICK_BLOCK_S = 256 << 10, 60.0, 1.0
_TIME = "modified "
Block = bytes | Bytes | memoryview
_VERSION_KEYS = (
    "e_tag",
    "ETag",
    "etag",
    "mtime",
    "last_modified",
    "LastModified",
    "modified",
    "created",
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a store sends: the whole file's size, its version (empty where the store does not say),
    and blocks in order.

    `setup_s`: what the making of a client took, which is no cost of a request. The blocks end early
    where the connection does, with or without an OSError.
    """

    size_bytes: int
    tag: str
    blocks: Iterator[Block]
    setup_s: float = 0.0


class Read(Protocol):
    """Opens a stream of the bytes `first` up to `end` (not included) of a file.

    `size_bytes` is the size that the caller expects, and `tag` the version of an earlier answer or
    empty. ReplacedError where the file has another version by now, FileNotFoundError and
    PermissionError as they are, otherwise OSError; an `errno` of EINVAL says that the same request
    would be refused again.
    """

    def __call__(
        self, url: str, first: int, end: int, *, size_bytes: int, tag: str = ""
    ) -> Answer: ...


def read_span(url: str, first: int, end: int, *, size_bytes: int, tag: str = "") -> Answer:
    """The `Read` of local paths, object stores and fsspec's file systems."""
    path = local_path(url)
    if path is not None:
        answer = _from_path(url, path, first, end)
    elif has_object_store(url):
        answer = _from_store(url, first, end, size_bytes, tag)
    else:
        with as_store_errors(url):
            answer = _from_filesystem(url, first, end)
    if tag and answer.tag != tag:
        raise ReplacedError(
            f"{redact(url)} was replaced while it was read: expected version {tag}, found "
            f"{answer.tag or 'none'}"
        )
    return answer


def _from_store(url: str, first: int, end: int, size_bytes: int, tag: str) -> Answer:
    since = time.monotonic()
    store, key = connect(url, max_retries=0)
    setup_s = time.monotonic() - since
    options: dict[str, Any] = _condition(tag)
    if (first, end) != (0, size_bytes):
        options["range"] = (first, end)
    with as_store_errors(url):
        found = obstore.get(store, key, options=options)  # type: ignore[arg-type]
        meta = found.meta
        modified = meta["last_modified"]
        is_known = modified.timestamp() > 0
        version = meta["e_tag"] or (f"{_TIME}{modified.isoformat()}" if is_known else "")
        return Answer(
            size_bytes=meta["size"], tag=version, blocks=_blocks(url, found), setup_s=setup_s
        )


def _condition(tag: str) -> dict[str, Any]:
    """The request's condition: a weak ETag never matches one, and is compared with the answer's
    only.
    """
    if tag.startswith(_TIME):
        return {"if_unmodified_since": datetime.fromisoformat(tag.removeprefix(_TIME))}
    return {"if_match": tag} if tag and not tag.startswith("W/") else {}


def _blocks(url: str, found: "obstore.GetResult") -> Iterator[Bytes]:
    with as_store_errors(url):
        yield from found.stream(
            min_chunk_size=1
        )  # as it comes: what has come is not lost when the connection breaks


def _from_filesystem(url: str, first: int, end: int) -> Answer:
    fs = filesystem(url)

    def version() -> tuple[int, str]:
        info = fs.info(url)
        return int(info["size"]), next(
            (str(info[key]) for key in _VERSION_KEYS if info.get(key)), ""
        )

    answer = _from_file(
        url,
        version,
        lambda: fs.open(url, "rb", cache_type="none"),
        lambda file: _paced(file, first, end),
    )
    return replace(answer, blocks=_foreign_blocks(url, answer.blocks))


def _foreign_blocks(url: str, blocks: Iterator[Block]) -> Iterator[Block]:
    with as_store_errors(url):
        yield from blocks


def _from_path(url: str, path: Path, first: int, end: int) -> Answer:
    def version() -> tuple[int, str]:
        found = path.stat()
        return found.st_size, f"{found.st_ino}-{found.st_mtime_ns}"

    return _from_file(url, version, lambda: path.open("rb"), lambda file: _read(file, first, end))


def _from_file(
    url: str,
    version: Callable[[], tuple[int, str]],
    open_file: Callable[[], IO[bytes]],
    read: Callable[[IO[bytes]], Iterator[bytes]],
) -> Answer:
    """Where a read takes no condition, the version is looked at before and after it."""
    before = version()

    def blocks() -> Iterator[bytes]:
        with open_file() as file:
            yield from read(file)
        if version() != before:
            raise ReplacedError(f"{redact(url)} was replaced while it was read")

    return Answer(size_bytes=before[0], tag=before[1], blocks=blocks())


def _read(file: IO[bytes], at: int, end: int) -> Iterator[bytes]:
    file.seek(at)
    while at < end and (block := file.read(min(_BLOCK_BYTES, end - at))):
        yield block
        at += len(block)


def _paced(file: IO[bytes], at: int, end: int) -> Iterator[bytes]:
    """Blocks that grow as long as they come quickly, so that a store which trickles is noticed by
    one that does not come.
    """
    file.seek(at)
    num_bytes = _FIRST_BLOCK_BYTES
    while at < end:
        since = time.monotonic()
        block = _in_time(partial(file.read, min(num_bytes, end - at)))
        if not block:
            return
        yield block
        at += len(block)
        if time.monotonic() - since < _QUICK_BLOCK_S:
            num_bytes = min(2 * num_bytes, _BLOCK_BYTES)


def _in_time(read: Callable[[], bytes]) -> bytes:
    """What `read` returns; TimeoutError where it takes too long: its thread then ends when the
    client lets it.
    """
    answer: Future[bytes] = Future()

    def run() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:  # noqa: BLE001  a thread's boundary: who waits raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="featstore-read", daemon=True).start()
    try:
        return answer.result(_LONGEST_BLOCK_S)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"no block came in {_LONGEST_BLOCK_S:.0f} s") from None
