"""A list of files in columns is the list of the files."""

import pickle
import sys
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.table.file_list import FileList
from featstore.table.snapshot import DataFile, GroupFile

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)
VERSIONS = st.one_of(
    st.integers(0, 10**20).map(str), st.sampled_from(["", "007", "²", "-1", '"etag"']), NAMES
)
CRC32S = st.none() | st.integers(0, 2**32 - 1)


@st.composite
def lists(draw: Any) -> list[DataFile]:
    """Files of several directories, some at URLs of their own, some with files of slot groups."""

    def fields(path: str) -> dict[str, Any]:
        url = draw(st.sampled_from([f"s3://table/{path}", f"/other/{path}", "s3://elsewhere"]))
        return {
            "path": path,
            "url": url,
            "size_bytes": draw(st.integers(0, 2**62)),
            "num_rows": draw(st.integers(0, 2**62)),
            "version": draw(VERSIONS),
            "crc32": draw(CRC32S),
        }

    partitions = st.sampled_from([{}, {"dt": "1"}, {"dt": None}, {"dt": "1", "hour": "2"}])
    directories = st.sampled_from(["", "dt=1/", "dt=1/hour=2/", "é/"])
    paths = draw(st.lists(st.tuples(directories, NAMES).map("".join), unique=True, max_size=8))
    return [
        DataFile(
            **fields(path),
            partition=draw(partitions),
            groups=tuple(
                GroupFile(**fields(f"_groups/{name}/{path}"), group=name)
                for name in sorted(draw(st.sets(st.sampled_from("gh"))))
            ),
        )
        for path in sorted(paths)
    ]


@given(lists())
def test_it_holds_the_files_that_it_was_made_of(files: list[DataFile]) -> None:
    packed = FileList(iter(files))
    assert list(packed) == files
    assert len(packed) == len(files)
    assert [packed[index] for index in range(len(files))] == files
    assert [packed[index - len(files)] for index in range(len(files))] == files
    assert packed[1:-1] == tuple(files[1:-1])
    assert [packed.find(file.path) for file in files] == list(range(len(files)))
    assert [packed.places[packed.place(i)].partition for i in range(len(files))] == [
        file.partition for file in files
    ]
    assert packed == tuple(files)
    assert packed == FileList(files)
    assert packed != FileList(files[1:]) or not files
    assert list(pickle.loads(pickle.dumps(packed))) == files
    assert packed.groups == {group.group for file in files for group in file.groups}


@given(lists(), NAMES)
def test_a_path_that_it_does_not_have_is_a_key_error(files: list[DataFile], name: str) -> None:
    with pytest.raises(KeyError):
        FileList([file for file in files if file.path != name]).find(name)
    with pytest.raises(IndexError):
        FileList(files)[len(files)]


@pytest.mark.parametrize("paths", ["ba", "aa"])
def test_files_that_are_not_sorted_are_refused(paths: str) -> None:
    files = [
        DataFile(path=path, url=path, size_bytes=1, num_rows=1, partition={}) for path in paths
    ]
    with pytest.raises(DataFileError, match=r"'a': expected files in the order of their paths"):
        FileList(files)


def test_a_file_takes_at_most_its_name_and_40_bytes() -> None:
    names = [
        f"part-{number:07}-0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a.parquet" for number in range(999)
    ]
    files = FileList(
        DataFile(
            path=f"dt=1/{name}",
            url=f"s3://bucket/table/dt=1/{name}",
            size_bytes=10**9,
            num_rows=10**6,
            partition={"dt": "1"},
            version="1763991234567",
        )
        for name in names
    )
    columns = [value for value in vars(files._rows).values() if isinstance(value, array | bytes)]
    assert len(columns) == 7
    per_file = sum(map(sys.getsizeof, columns)) / len(files)
    assert len(names[0]) < per_file <= len(names[0]) + 40
