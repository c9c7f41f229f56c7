"""A progress bar that shows files and rows."""

from tqdm import tqdm

from featstore.base.closing import Closing


class ProgressBar(Closing):
    """A progress bar on standard error; silent if that is not a terminal.

    A context manager. It is called with (files done, files in total, rows done); a total of 0 means
    unknown.
    """

    def __init__(self, label: str = "extract") -> None:
        self._bar = tqdm(desc=label, unit="file", disable=None)

    def __call__(self, num_files: int, num_files_total: int, num_rows: int) -> None:
        self._bar.total = num_files_total or None
        self._bar.set_postfix_str(f"{num_rows:,} rows", refresh=False)
        self._bar.update(num_files - self._bar.n)

    def close(self) -> None:
        self._bar.close()
