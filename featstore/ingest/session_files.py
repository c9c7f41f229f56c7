"""The files that a Spark session reads through Hadoop's file systems, for looks at its inputs."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from featstore.files.hdfs_files import remote_error
from featstore.files.random_reader import RandomReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionFiles:
    """What `storage` asks of a file system of fsspec, by the session's own means. Paths are URLs.
    Threads may share it.
    """

    def __init__(self, spark: "SparkSession") -> None:
        self._jvm, self._conf = spark._jvm, spark._jsc.hadoopConfiguration()

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path

    def info(self, path: str) -> dict[str, Any]:
        """Type, size and time of a file or directory, as `info` of fsspec."""
        with _translated(path):
            files, where = self._at(path)
            return _info(path, files.getFileStatus(where))

    def ls(self, path: str, detail: bool = True) -> list[Any]:
        """What is in a directory, as `ls` of fsspec."""
        with _translated(path):
            files, where = self._at(path)
            listed = files.listStatus(where)
            return [
                _info(f"{path.rstrip('/')}/{status.getPath().getName()}", status)
                for status in listed
            ]

    def modified(self, path: str) -> datetime:
        """The time of the last change of a file's content."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def open(self, path: str, mode: str = "rb", **options: Any) -> RandomReader:
        """An unbuffered reader."""
        with _translated(path):
            files, where = self._at(path)
            return _SessionReader(path, files.open(where), self.info(path)["size"])

    def _at(self, path: str) -> tuple[Any, Any]:
        where = self._jvm.org.apache.hadoop.fs.Path(path)
        return where.getFileSystem(self._conf), where


class _SessionReader(RandomReader):
    def __init__(self, path: str, stream: Any, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._path, self._stream = path, stream

    def fetch(self, first: int, num_bytes: int) -> bytes:
        with _translated(self._path):
            self._stream.seek(first)
            return bytes(self._stream.readNBytes(num_bytes))

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Translates exceptions of Java."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        name = java.getClass().getSimpleName()
        raise remote_error(name, str(java.getMessage()), path) from None


def _info(name: str, status: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "directory" if status.isDirectory() else "file",
        "size": int(status.getLen()),
        "mtime": status.getModificationTime() / 1000,
    }
