"""Makes splits of data files: whole files, or large ones cut at row groups, for which their footers
are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from featstore.base.byte_sizes import parse_bytes
from featstore.base.errors import DataFileError
from featstore.dispatch.options import Dispatch
from featstore.dispatch.plan import Split, SplitSize, splits_of
from featstore.files.storage import local_path, open_read
from featstore.reading.open_file import OpenFile
from featstore.table.snapshot import DataFile


def split_size(options: Dispatch) -> SplitSize | None:
    """The size of splits that the options ask for. ConfigError for an invalid one."""
    if options.split_bytes is not None:
        return SplitSize(size_bytes=parse_bytes(options.split_bytes, "dispatch.split_bytes"))
    return None if options.split_rows is None else SplitSize(num_rows=options.split_rows)


def make_splits(
    files: Iterable[DataFile], size: SplitSize | None = None, *, accepts_bad: bool = False
) -> Iterator[Split]:
    """The splits of the files, in their order. Reads the footers of files larger than `size`.

    Args:
        files: Data files.
        size: Size of a split; None makes each file one split.
        accepts_bad: Whether a file that cannot be read becomes one split, whose reader then raises
            the error.

    Raises:
        DataFileError: A footer cannot be read, and `accepts_bad` is false.
    """
    for file in files:
        whole = Split(path=file.path, num_rows=file.num_rows)
        if size is None or not _is_large(file, size):
            yield whole
            continue
        try:
            num_rows, sizes_bytes = _row_groups(file)
        except DataFileError:
            if not accepts_bad:
                raise
            yield whole
        else:
            yield from splits_of(file.path, num_rows, sizes_bytes, size)


def _is_large(file: DataFile, size: SplitSize) -> bool:
    return (
        file.num_rows > size.num_rows
        if size.num_rows is not None
        else file.size_bytes > (size.size_bytes or 0)
    )


def _row_groups(file: DataFile) -> tuple[Sequence[int], Sequence[int]]:
    """The rows and the bytes of each row group, by the file's footer."""
    with OpenFile(local_path(file.url) or partial(open_read, file.url), file.path) as opened:
        # Bytes as stored, since `split_bytes` is compared with the size of the file.
        spans = opened.footer.spans
        return opened.row_group_rows, (spans[..., 1] - spans[..., 0]).sum(axis=1).tolist()
