"""Object stores as a file system of fsspec, by the synchronous calls of obstore.

obstore's own file system waits for responses in an event loop: threads of the client call Python to
wake the loop. One that still does so when the interpreter ends aborts the process.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO

import obstore
from fsspec import AbstractFileSystem
from obstore.store import ObjectStore

from featstore.files.storage import connect, open_read


class ObjectFiles(AbstractFileSystem):  # type: ignore[misc]
    """The objects of all buckets of one kind of store. Paths are `bucket/key`, or URLs.

    Args:
        protocol: The scheme of their URLs.
    """

    cachable = False  # It holds nothing: `connect` keeps the clients.

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The objects and directories in a directory. FileNotFoundError if there are none."""
        bucket, store, key = self._at(path)
        found = obstore.list_with_delimiter(store, key)
        infos: list[dict[str, Any]] = [
            *(_file(f"{bucket}/{entry['path']}", entry) for entry in found["objects"]),
            *(_directory(f"{bucket}/{prefix}") for prefix in found["common_prefixes"]),
        ]
        if not infos:
            raise FileNotFoundError(path)
        return infos if detail else sorted(info["name"] for info in infos)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What the store says of an object, or that there are objects below the path."""
        bucket, store, key = self._at(path)
        try:
            found = obstore.head(store, key)
        except FileNotFoundError:
            self.ls(path)
            return _directory(f"{bucket}/{key}")
        return {**found, "name": f"{bucket}/{key}", "type": "file"}

    def modified(self, path: str) -> datetime:
        """The time of the last modification of an object."""
        _, store, key = self._at(path)
        return obstore.head(store, key)["last_modified"]

    def rm_file(self, path: str) -> None:
        """Deletes an object."""
        _, store, key = self._at(path)
        obstore.delete(store, key)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        assert mode == "rb", "objects are written by `storage.open_write`"
        return open_read(path if "://" in path else f"{self.protocol}://{path}")

    def _at(self, path: str) -> tuple[str, ObjectStore, str]:
        """The bucket of a path, its client, and the key in it."""
        bucket, _, key = path.rpartition("://")[2].partition("/")
        return bucket, connect(f"{self.protocol}://{bucket}/")[0], key


def _file(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "size": entry["size"], "type": "file", "e_tag": entry["e_tag"]}


def _directory(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}
