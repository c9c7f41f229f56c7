"""Writes the output of a join: one directory, published or replaced by a rename.

Rows and report are first written to a hidden directory beside it, so that no reader sees half an
output. On Spark all changes go through Hadoop's file systems, because Spark writes with them too.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from featstore.base.closing import cleaned_up_on_failure, noted_on_failure
from featstore.base.errors import CommitConflictError, InputError
from featstore.base.redaction import redact, redact_text
from featstore.files.listings import list_own
from featstore.files.looks import exists, is_directory_at
from featstore.files.storage import join, local_path, open_read, open_write, scheme, spark_url
from featstore.table.metadata import to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_JSON, REPORT_TEXT = "_report.json", "_report.txt"
_HIDDEN = "_join_labels-"
# Object stores are not listed: they rename a directory by copying file after file.
_RENAMES = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs"})


class OutputFiles(Protocol):
    """The files of an output. URLs are those of `url()`."""

    def url(self, url: str) -> str:
        """The output's URL as the engine writes it."""

    def exists(self, url: str) -> bool: ...

    def delete(self, url: str) -> None:
        """Deletes a directory with all that is in it, if it exists."""

    def rename(self, source: str, target: str) -> None:
        """Renames a directory, and never moves it into an existing one.

        Raises:
            RefusedRename: It cannot be renamed.
        """

    def write(self, url: str, data: bytes) -> None: ...


class JoinOutput:
    """The output directory of a join. Not thread-safe.

    Args:
        files: What the engine writes with.
        url: The directory that is published.
    """

    def __init__(self, files: OutputFiles, url: str) -> None:
        self._files, self._given_url, self._url = files, url, files.url(url).rstrip("/")
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
        if not self._files.exists(self._url):
            return None
        with (
            contextlib.suppress(ValueError, FileNotFoundError, NotADirectoryError),
            open_read(join(self._url, REPORT_JSON)) as file,
        ):
            report = json.loads(file.read())
            if isinstance(report, dict) and "join_digest" in report:
                return report
        raise InputError(
            f"{redact(self._url)} exists, and is not the output of a join ({REPORT_JSON} is "
            "missing or is not one); it is left as it is: choose another directory, or remove it"
        )

    def equal(self, digest: str, input_digest: str | None) -> tuple[str, Mapping[str, Any]] | None:
        """As of `join_report.Output`. InputError as of `earlier`."""
        found = self.earlier()
        if found is None or input_digest is None:
            return None
        is_equal = (found["join_digest"], found["input_digest"]) == (digest, input_digest)
        return (self._given_url, found) if is_equal else None

    def writing(self) -> AbstractContextManager[None]:
        """Removes what was written if the block fails, but not the only earlier output."""
        return cleaned_up_on_failure(self._remove_hidden)

    def size(self) -> tuple[int, int]:
        """Returns the number of files and bytes that are written but not yet published."""
        files = list_own(self.rows_url, ".parquet", hidden=False)
        return len(files), sum(file.size_bytes for file in files)

    def unchanged(self) -> None:
        """A directory has the report of the newest join, so that it is replaced in any case."""

    def publish(self, document: Mapping[str, Any], text: str) -> str:
        """Adds the report and makes everything visible with one rename; returns the output's URL.

        The output of an earlier join is replaced. For a moment between the two renames of a
        replacement there is no directory, but never half of one.

        Raises:
            CommitConflictError: Another join published in that moment; its rows stay.
        """
        self._files.write(join(self.rows_url, REPORT_JSON), to_json(document).encode())
        self._files.write(join(self.rows_url, REPORT_TEXT), text.encode())
        if self.earlier() is not None:
            self._rename(self._url, self._replaced_url)
        with cleaned_up_on_failure(self._put_back):
            self._rename(self.rows_url, self._url)
        with noted_on_failure(
            f"{redact(self._url)} is published all the same; what is left in "
            f"{redact(self._hidden_url)} can be removed."
        ):
            self._files.delete(self._hidden_url)
        return self._given_url

    def _put_back(self) -> None:
        """Puts an earlier output back, since the new rows could not be moved."""
        if self._files.exists(self._replaced_url) and not self._files.exists(self._url):
            try:
                self._rename(self._replaced_url, self._url)
            except CommitConflictError as error:
                raise CommitConflictError(
                    f"{redact(self._replaced_url)} holds the earlier output, which cannot be put "
                    f"back: rename it to {redact(self._url)} ({error})"
                ) from None

    def _rename(self, source: str, target: str) -> None:
        try:
            self._files.rename(source, target)
        except RefusedRename as error:
            raise CommitConflictError(
                f"{redact(target)}: the rows cannot be moved there ({redact_text(str(error))}): "
                f"another writer is at work"
            ) from None

    def _remove_hidden(self) -> None:
        self._files.delete(self.rows_url)
        if self._files.exists(self._url) or not self._files.exists(self._replaced_url):
            self._files.delete(self._hidden_url)


class RefusedRename(Exception):
    """A directory is not renamed; the message says why."""


class HadoopFiles:
    """Files by Hadoop's file systems, as a session of Spark has them.

    Args:
        url: The output.

    Raises:
        InputError: Its file system cannot rename a directory in one step.
    """

    def __init__(self, spark: "SparkSession", url: str) -> None:
        self._jvm, self._gateway = spark._jvm, spark.sparkContext._gateway
        self._conf = spark._jsc.hadoopConfiguration()
        _check_renames(url)
        self._fs = self._path(self.url(url)).getFileSystem(self._conf)

    def url(self, url: str) -> str:
        return spark_url(url)

    def exists(self, url: str) -> bool:
        """Hadoop takes a local path that it cannot see for one where nothing is."""
        path = local_path(url)
        return bool(self._fs.exists(self._path(url))) if path is None else exists(path)

    def delete(self, url: str) -> None:
        self._fs.delete(self._path(url), True)

    def rename(self, source: str, target: str) -> None:
        """Unlike `FileSystem.rename` never moves a directory into an existing one."""
        from py4j.protocol import Py4JJavaError

        no_options = self._gateway.new_array(
            getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 0
        )
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._path(source).toUri(), self._conf
        )
        self._fs.mkdirs(self._path(target).getParent())
        try:
            context.rename(self._path(source), self._path(target), no_options)
        except Py4JJavaError as error:
            raise RefusedRename(str(error.java_exception.getMessage())) from None

    def write(self, url: str, data: bytes) -> None:
        stream = self._fs.create(self._path(url), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def _path(self, url: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(url)


class LocalFiles:
    """Files of this machine, by path."""

    def url(self, url: str) -> str:
        """The absolute path. InputError if it is none."""
        _check_renames(url)
        path = local_path(url)
        if path is None:
            raise InputError(
                f"{redact(url)}: the engine `local` writes to file systems of this machine; "
                f"expected a path, or the engine `spark`"
            )
        return str(path.absolute())

    def exists(self, url: str) -> bool:
        return exists(url)

    def delete(self, url: str) -> None:
        if exists(url):
            shutil.rmtree(url)

    def rename(self, source: str, target: str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        if exists(target):  # POSIX replaces an empty directory
            raise RefusedRename("it exists")
        try:
            Path(source).rename(target)
        except OSError as error:
            raise RefusedRename(str(error.strerror)) from error

    def write(self, url: str, data: bytes) -> None:
        with open_write(url) as file:
            file.write(data)


def check_output(url: str) -> None:
    """Checks, before a session of Spark starts, that a join can publish at a URL. A directory that
    only Spark reaches is left to it.

    Raises:
        InputError: The file system cannot rename a directory, the directory was not written by a
            join, or cannot be made.
    """
    _check_renames(url)
    path = local_path(url)
    if path is None:
        return
    if JoinOutput(LocalFiles(), url).earlier() is not None:
        return
    parent = path.absolute().parent
    while not exists(parent):
        parent = parent.parent
    if not is_directory_at(parent):
        raise InputError(f"{path}: expected a directory to write to, found the file {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: the directory {parent} is not writable: choose another output")


def _check_renames(url: str) -> None:
    if scheme(url) not in _RENAMES:
        raise InputError(
            f"{redact(url)}: the output is published by renaming a directory, which "
            f"{scheme(url)}:// cannot do in one step; expected one of "
            f"{', '.join(sorted(_RENAMES))}: write there, then copy the finished directory"
        )
