"""Byte ranges of files with the files' versions, from a local disk, an object store's client and
fsspec.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from featstore.base.errors import ReplacedError
from featstore.files import transfer
from featstore.files.transfer import read_span

DATA = bytes(range(256)) * 40_000


@pytest.fixture
def memory() -> Iterator[Any]:
    yield fsspec.filesystem("memory")
    fsspec.filesystem("memory").rm("/transfer", recursive=True)


@pytest.fixture(params=["local", "http", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, loopback: Any) -> Any:
    """A URL, and what puts another file of the same size there; the server of this fixture does not
    tell versions apart.
    """
    if request.param == "http":
        loopback.files["/x.bin"] = DATA
        return f"{loopback.url}/x.bin", None
    if request.param == "memory":
        memory = request.getfixturevalue("memory")
        memory.pipe("/transfer/x.bin", DATA)
        return "memory://transfer/x.bin", lambda: memory.pipe("/transfer/x.bin", DATA[::-1])
    (tmp_path / "x.bin").write_bytes(DATA)
    return str(tmp_path / "x.bin"), lambda: (tmp_path / "x.bin").write_bytes(DATA[::-1])


@pytest.mark.parametrize(
    ("first", "end"), [(0, len(DATA)), (0, 1), (5_000_001, 8_000_000), (len(DATA) - 8, len(DATA))]
)
def test_a_span_comes_in_order_with_the_files_size_and_version(
    place: Any, first: Any, end: int
) -> None:
    url, _ = place
    answer = read_span(url, first, end, size_bytes=len(DATA))
    assert b"".join(bytes(block) for block in answer.blocks) == DATA[first:end]
    assert answer.size_bytes == len(DATA)
    again = read_span(url, 0, 1, size_bytes=len(DATA), tag=answer.tag)
    assert again.tag == answer.tag
    assert list(map(bytes, again.blocks)) == [DATA[:1]]


def test_a_file_of_another_version_is_refused(place: Any) -> None:
    url, replace = place
    answer = read_span(url, 0, 1, size_bytes=len(DATA))
    list(answer.blocks)
    if replace is None:
        answer_tag = 'W/"of another file"'
    else:
        replace()
        answer_tag = answer.tag
    with pytest.raises(
        ReplacedError, match=r"x\.bin was replaced while it was read: expected version"
    ):
        read_span(url, 0, 1, size_bytes=len(DATA), tag=answer_tag)


def test_a_missing_file_is_file_not_found(place: Any) -> None:
    url, _ = place
    with pytest.raises(FileNotFoundError):
        read_span(f"{url}.none", 0, 1, size_bytes=1)


def test_a_local_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(DATA)
    answer = read_span(str(tmp_path / "x.bin"), 0, len(DATA), size_bytes=len(DATA))
    next(answer.blocks)
    os.truncate(tmp_path / "x.bin", 5_000_000)
    with pytest.raises(ReplacedError, match=r"x\.bin was replaced while it was read"):
        list(answer.blocks)


def test_requests_are_conditional_on_times_but_not_on_weak_etags() -> None:
    assert transfer._condition('W/"1"') == transfer._condition("") == {}
    assert transfer._condition('"1"') == {"if_match": '"1"'}
    assert "if_unmodified_since" in transfer._condition("modified 2026-11-21T06:00:00+00:00")
