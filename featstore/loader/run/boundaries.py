"""Where splits of others may be cut."""

from contextlib import closing

from featstore.dispatch.plan import Split
from featstore.errors import DataFileError
from featstore.files.storage import local_path, open_read
from featstore.loader.rows.split_reader import boundaries
from featstore.loader.run.job import Job
from featstore.reading.footer import Footer


class Boundaries:
    """The boundaries of a job's splits, each looked up once."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[str, list[int]] = {}

    def of(self, split: Split) -> list[int]:
        """Where a split of another worker may be cut; nowhere in a file that cannot be read, as its
        own worker will say.
        """
        if split.id not in self._known:
            url = self._job.files[split.path][0].url
            window_rows = self._job.shuffle.window_rows if self._job.shuffle else None
            try:
                with closing(Footer(local_path(url) or open_read(url), split.path)) as footer:
                    self._known[split.id] = boundaries(split, footer, window_rows)
            except (DataFileError, OSError):
                self._known[split.id] = []
        return self._known[split.id]
