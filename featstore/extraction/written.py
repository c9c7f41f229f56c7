"""The files that a run writes before its commit: removed if it fails, and kept if it is unknown
whether its commit landed.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import CommitConflictError, InputError, UnsafeStoreError
from featstore.base.redaction import redact
from featstore.files.listings import list_own
from featstore.files.retry import BRIEF, retrying
from featstore.files.storage import delete, join, remove_if_empty
from featstore.table.layout import STATISTICS_DIR, has_tag, partition_path
from featstore.table.running import Mark

# Raised before anything of a commit is sent, or after another writer's commit that rules it out.
_NOT_COMMITTED = (CommitConflictError, InputError, UnsafeStoreError)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """What one run writes to a table before its commit.

    Attributes:
        tag: Part of the names of these files. They are found by it, not by the run id: another
            process may be working under the same run id.
        partitions: The partitions that the run writes.
    """

    table_url: str = field(repr=False)
    tag: str
    partitions: Sequence[Mapping[str, str]]

    def remove(self) -> None:
        """Removes the files, and directories that are empty then. What the store refuses to remove
        is logged, and left to a vacuum. No budget of time is spent on it: it follows an error.
        """
        with retrying(BRIEF):
            for partition in map(partition_path, self.partitions):
                for directory in (partition, join(STATISTICS_DIR, partition)):
                    url = join(self.table_url, directory)
                    with _left_to_vacuum(url):
                        own = [e for e in list_own(url, hidden=False) if has_tag(e.name, self.tag)]
                        for entry in own:
                            with _left_to_vacuum(entry.url):
                                delete(entry.url)
                    remove_if_empty(self.table_url, directory)

    def removed_on_failure(self) -> AbstractContextManager[None]:
        """Removes the files if the block fails, which must not commit."""
        return cleaned_up_on_failure(self.remove)

    @contextlib.contextmanager
    def kept_if_committed(
        self, mark: Mark, what: str, num_files: int, again: str
    ) -> Iterator[None]:
        """Around the commit alone, which alone tells whether the files may be removed.

        After an error that rules a commit out they are removed. Any other one, also an interrupt,
        may hide a commit that landed or is about to: files and mark are kept, and the error says so
        in a note. An orphan costs space, a deleted live file costs the table.

        Args:
            mark: The mark of the run, which protects its files from a vacuum until it expires.
            what: What may be committed.
            num_files: The number of data files.
            again: What the same call does if it is repeated.
        """
        try:
            yield
        except _NOT_COMMITTED:
            with self.removed_on_failure():
                raise
        except BaseException as error:
            mark.keep()
            error.add_note(
                f"It is not known whether {what} was committed, so its {num_files} data files "
                f"(part-*-{self.tag}-*.parquet) are left in {redact(self.table_url)}. {again}"
            )
            raise


@contextlib.contextmanager
def _left_to_vacuum(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _LOG.warning(
            "%s: what a failed run wrote there is left to a vacuum, since it cannot be removed: %s",
            redact(url),
            error,
        )
