"""Writes the output of a join: one directory, published or replaced by a rename.

Rows and report are first written to a hidden directory beside it, so that no reader sees half an
output. All access goes through Hadoop's file systems, because Spark writes with them too.
"""

import contextlib
import json
import uuid
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from featstore.base.closing import cleaned_up_on_failure, noted_on_failure
from featstore.base.errors import CommitConflictError, InputError
from featstore.base.redaction import redact, redact_text
from featstore.files.looks import exists
from featstore.files.storage import join, local_path, scheme, spark_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_JSON, REPORT_TEXT = "_report.json", "_report.txt"
_HIDDEN = "_join_labels-"
# Object stores are not listed: they rename a directory by copying file after file.
_RENAMES = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs"})


class JoinOutput:
    """The output directory of a join. Not thread-safe.

    Args:
        url: The directory that is published.

    Raises:
        InputError: The file system cannot rename a directory in one step.
    """

    def __init__(self, spark: "SparkSession", url: str) -> None:
        if scheme(url) not in _RENAMES:
            raise InputError(
                f"{redact(url)}: the output is published by renaming a directory, which "
                f"{scheme(url)}:// cannot do in one step; expected one of "
                f"{', '.join(sorted(_RENAMES))}: write there, then copy the finished directory"
            )
        self._url, self._jvm, self._gateway = (
            spark_url(url).rstrip("/"),
            spark._jvm,
            spark.sparkContext._gateway,
        )
        self._conf = spark._jsc.hadoopConfiguration()
        self._fs = self._path(self._url).getFileSystem(self._conf)
        self._hidden_url = join(self._url.rpartition("/")[0], f"{_HIDDEN}{uuid.uuid4().hex}")
        self.rows_url, self._replaced_url = (
            join(self._hidden_url, "rows"),
            join(self._hidden_url, "replaced"),
        )

    def earlier(self) -> dict[str, Any] | None:
        """Returns the report of the join that wrote the directory, None if it does not exist.

        Raises:
            InputError: The directory was not written by a join.
        """
        if not self._exists(self._url):
            return None
        with contextlib.suppress(ValueError):
            report = json.loads(self._read(join(self._url, REPORT_JSON)))
            if isinstance(report, dict) and "join_digest" in report:
                return report
        raise InputError(
            f"{redact(self._url)} exists, and is not the output of a join ({REPORT_JSON} is "
            "missing or is not one); it is left as it is: choose another directory, or remove it"
        )

    def removing_on_failure(self) -> AbstractContextManager[None]:
        """Removes what was written if the block fails, but not the only earlier output."""
        return cleaned_up_on_failure(self._remove_hidden)

    def size(self) -> tuple[int, int]:
        """Returns the number of files and bytes that are written but not yet published."""
        listing = self._fs.listFiles(self._path(self.rows_url), True)
        sizes = []
        while listing.hasNext():
            status = listing.next()
            if status.getPath().getName().endswith(".parquet"):
                sizes.append(int(status.getLen()))
        return len(sizes), sum(sizes)

    def publish(self, report_json: str, report_text: str) -> None:
        """Adds the report and makes everything visible with one rename.

        The output of an earlier join is replaced. For a moment between the two renames of a
        replacement there is no directory, but never half of one.

        Raises:
            CommitConflictError: Another join published in that moment; its rows stay.
        """
        self._write(join(self.rows_url, REPORT_JSON), report_json)
        self._write(join(self.rows_url, REPORT_TEXT), report_text)
        if self.earlier() is not None:
            self._rename(self._url, self._replaced_url)
        with cleaned_up_on_failure(self._put_back):
            self._rename(self.rows_url, self._url)
        with noted_on_failure(
            f"{redact(self._url)} is published all the same; what is left in "
            f"{redact(self._hidden_url)} can be removed."
        ):
            self._delete(self._hidden_url)

    def _put_back(self) -> None:
        """Puts an earlier output back, since the new rows could not be moved."""
        if self._exists(self._replaced_url) and not self._exists(self._url):
            try:
                self._rename(self._replaced_url, self._url)
            except CommitConflictError as error:
                raise CommitConflictError(
                    f"{redact(self._replaced_url)} holds the earlier output, which cannot be put "
                    f"back: rename it to {redact(self._url)} ({error})"
                ) from None

    def _remove_hidden(self) -> None:
        self._delete(self.rows_url)
        if self._exists(self._url) or not self._exists(self._replaced_url):
            self._delete(self._hidden_url)

    def _exists(self, url: str) -> bool:
        """Hadoop takes a local path that it cannot see for one where nothing is."""
        path = local_path(url)
        return bool(self._fs.exists(self._path(url))) if path is None else exists(path)

    def _path(self, url: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(url)

    def _delete(self, url: str) -> None:
        self._fs.delete(self._path(url), True)

    def _rename(self, source: str, target: str) -> None:
        """Renames a directory; unlike `FileSystem.rename`, never moves it into an existing one."""
        from py4j.protocol import Py4JJavaError

        no_options = self._gateway.new_array(
            getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 0
        )
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._path(source).toUri(), self._conf
        )
        if not self._fs.exists(self._path(target).getParent()):
            self._fs.mkdirs(self._path(target).getParent())
        try:
            context.rename(self._path(source), self._path(target), no_options)
        except Py4JJavaError as error:
            said = redact_text(str(error.java_exception.getMessage()))
            raise CommitConflictError(
                f"{redact(target)}: the rows cannot be moved there ({said}): another writer is at "
                f"work"
            ) from None

    def _read(self, url: str) -> str:
        if not self._exists(url):
            return ""
        stream = self._fs.open(self._path(url))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _write(self, url: str, text: str) -> None:
        stream = self._fs.create(self._path(url), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
