"""Windows of several open splits in turn."""

from collections.abc import Callable, Generator, Iterator

from featstore.errors import DispatchError, StateError
from featstore.loader.bad_files import Skip, is_bad_file
from featstore.loader.rows.split_reader import SplitReader, Window
from featstore.loader.rows.work import Work


def read_windows(
    work: Iterator[Work],
    open_split: Callable[[Work], SplitReader],
    width: int,
    skip: Skip | None = None,
) -> Generator[Window, None, None]:
    """Reads all splits. Closes every split that it opened, however it ends.

    Args:
        work: The claims to read. The next one is taken when another split may be opened.
        open_split: Opens the split of a claim.
        width: How many splits are open at once and give a window each in turn.
        skip: Called for a split that cannot be read, whose remaining rows are then left out. None:
            a file that cannot be read is an error.
    """
    open_splits: list[SplitReader] = []
    try:
        while True:
            while len(open_splits) < width and (item := next(work, None)) is not None:
                open_splits += _opened(item, open_split, skip)
            if not open_splits:
                return
            split = min(open_splits, key=lambda candidate: candidate.rank)
            yield from _windows(split, skip)
            if split.is_finished:
                open_splits.remove(split)
                split.close()
    finally:
        for split in open_splits:
            split.close()


def _windows(split: SplitReader, skip: Skip | None) -> Iterator[Window]:
    windows = split.read()
    while (window := _next_window(windows, split, skip)) is not None:
        yield window
        del window  # Otherwise its rows would stay in memory while the next ones are read.


def _next_window(windows: Iterator[Window], split: SplitReader, skip: Skip | None) -> Window | None:
    try:
        return next(windows, None)
    except (DispatchError, StateError):
        raise
    except BaseException as error:
        split.fail()
        if skip is None or not is_bad_file(error):
            raise
        split.skip(skip, error)
        return None


def _opened(
    item: Work, open_split: Callable[[Work], SplitReader], skip: Skip | None
) -> list[SplitReader]:
    """The open split; an empty list if it cannot be read and is left out."""
    try:
        return [open_split(item)]
    except BaseException as error:
        item.fail()
        item.release()
        if skip is None or not is_bad_file(error):
            raise
        skip(item.claim, item.claim.start_row, error)
        return []
