"""A split's data file and the files of its slot groups, staged one after the other and read together."""

from collections.abc import Iterator

from featstore.dispatch.coordinator import Claim
from featstore.files import open_read
from featstore.loader.decode import Partition
from featstore.loader.stream import GroupSource, Work
from featstore.staging.fetcher import StageItem
from featstore.staging.stager import Staged
from featstore.table.snapshot import DataFile


def stage_items(file: DataFile, key: object) -> Iterator[StageItem]:
    """What is staged for one split: its data file, then the files of slot groups."""
    yield StageItem(key=key, url=file.url, size_bytes=file.size_bytes, version=file.version)
    yield from (StageItem(key=key, url=group.url, size_bytes=group.size_bytes, version="") for group in file.groups)


def staged_work(claim: Claim, file: DataFile, partition: Partition, staged: Staged, stream: Iterator[Staged]) -> Work:
    """The work of a split whose data file is `staged`; the files of its slot groups are the next of the stream.

    All of them are let go of together, also where the stream ends or breaks before the last of them.
    """
    parts = [staged]

    def release() -> None:
        for part in parts:
            part.release()

    try:
        parts += [next(stream) for _ in file.groups]
    except BaseException:
        release()
        raise
    sources = [open_read(part.url) if part.path is None else part.path for part in parts]
    return Work(
        claim=claim,
        source=sources[0],
        partition=partition,
        held=staged.held,
        release=release,
        groups=tuple(
            GroupSource(path=group.path, source=source, held=part.held)
            for group, source, part in zip(file.groups, sources[1:], parts[1:], strict=True)
        ),
    )
