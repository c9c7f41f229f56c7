"""Object stores as a file system: what it says of objects and directories, by which threads."""

from collections.abc import Iterator
from typing import Any

import pytest

from featstore.base.errors import StoreError
from featstore.files.object_files import ObjectFiles
from featstore.files.store_errors import as_store_errors
from tests.programs import run_python
from tests.store_clients import clients_of

VARIABLES = {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-central-1"}
LISTING = """
import threading
from featstore.files import listings, storage
url = "s3://bucket/t"
assert [file.name for file in listings.list_files(url)] == ["k=1/a.parquet"]
storage.modified_s(f"{url}/k=1/a.parquet")
print([thread.name for thread in threading.enumerate()])
"""


@pytest.fixture
def files(loopback: Any) -> Iterator[ObjectFiles]:
    loopback.files |= {"/bucket/t/k=1/a#b.parquet": b"12345", "/bucket/t/k=1/a.parquet": b"1"}
    with clients_of(VARIABLES | {"AWS_ENDPOINT_URL": loopback.url}):
        yield ObjectFiles("s3")


def test_no_thread_of_the_client_calls_python(loopback: Any) -> None:
    """An event loop, in a thread of its own, is woken by threads of the client."""
    loopback.files["/bucket/t/k=1/a.parquet"] = b"1"
    variables = VARIABLES | {"AWS_ENDPOINT_URL": loopback.url, "AWS_ALLOW_HTTP": "true"}
    assert run_python(LISTING, variables=variables).stdout == "['MainThread']\n"


@pytest.mark.parametrize("scheme", ["", "s3://"])
def test_objects_and_directories_are_told_apart(files: ObjectFiles, scheme: str) -> None:
    directory = {"name": "bucket/t/k=1", "size": 0, "type": "directory"}
    assert files.ls(f"{scheme}bucket/t") == [directory]
    assert files.info(f"{scheme}bucket/t/k=1") == directory
    found = files.info(f"{scheme}bucket/t/k=1/a#b.parquet")
    assert (found["type"], found["size"], found["e_tag"]) == ("file", 5, '"1"')
    assert files.ls("bucket/t/k=1", detail=False) == [
        "bucket/t/k=1/a#b.parquet",
        "bucket/t/k=1/a.parquet",
    ]
    with files.open(f"{scheme}bucket/t/k=1/a.parquet") as file:
        assert file.read() == b"1"


def test_what_is_not_there_is_a_missing_file(files: ObjectFiles) -> None:
    for ask in (files.info, files.ls, files.modified):
        with pytest.raises(FileNotFoundError):
            ask("bucket/t/none")


def test_a_store_that_fails_is_an_error_and_no_empty_listing(
    files: ObjectFiles, loopback: Any
) -> None:
    loopback.status["/bucket"] = 403
    with pytest.raises(StoreError), as_store_errors("s3://bucket/t"):
        files.find("bucket/t")
