"""A list of files in columns is the list of the files."""

import pickle
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError, InputError
from featstore.table.row_masks import MaskRecord, RowMask
from featstore.table.snapshot import DataFile, FileList, GroupFile, read_query

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)
VERSIONS = st.one_of(
    st.integers(0, 10**20).map(str), st.sampled_from(["", "007", "²", "-1", '"etag"']), NAMES
)
CRC32S = st.none() | st.integers(0, 2**32 - 1)
RECORDS = st.builds(
    MaskRecord,
    kind=NAMES,
    url=NAMES.map(lambda name: f"s3://table/{name}")
    | st.sampled_from(["", "/other/é", "s3://b/a"]),
    first=st.integers(0, 2**62),
    num_bytes=st.integers(0, 2**62),
    text=NAMES,
)
MASKS = st.none() | st.builds(
    RowMask,
    records=st.lists(RECORDS, min_size=1, max_size=3).map(tuple),
    num_deleted=st.none() | st.integers(0, 2**62),
)


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
            "mask": draw(MASKS),
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


@given(lists(), st.randoms())
def test_it_holds_the_files_that_it_was_made_of(files: list[DataFile], random: Any) -> None:
    packed = FileList.of(random.sample(files, len(files)))
    assert list(packed) == files
    assert len(packed) == len(files)
    assert [packed[index] for index in range(len(files))] == files
    assert [packed[index - len(files)] for index in range(len(files))] == files
    assert packed[1:-1] == tuple(files[1:-1])
    assert [packed.find(file.path) for file in files] == list(range(len(files)))
    assert list(packed.paths) == [file.path for file in files]
    assert list(packed.urls) == [file.url for file in files]
    assert [packed.places[place] for place in packed.place] == [file.partition for file in files]
    assert packed == tuple(files)
    assert packed == FileList.of(files)
    assert packed != FileList.of(files[1:]) or not files
    assert list(pickle.loads(pickle.dumps(packed))) == files
    assert packed.groups.keys() == {group.group for file in files for group in file.groups}


@given(lists(), st.data())
def test_some_of_its_files_in_any_order_are_a_list_of_these(
    files: list[DataFile], data: Any
) -> None:
    indices = data.draw(st.permutations(range(len(files))))[: data.draw(st.integers(0, 8))]
    taken = FileList.of(files).take(indices)
    assert list(taken) == [files[index] for index in indices]
    assert [taken.find(file.path) for file in taken] == list(range(len(taken)))
    assert list(taken.sorted()) == [files[index] for index in sorted(indices)]


@given(lists())
def test_its_sums_are_those_of_its_files(found: list[DataFile]) -> None:
    # All of them together fit 64 bits, and nothing has to be loaded.
    files = [
        replace(
            file,
            size_bytes=file.size_bytes >> 5,
            num_rows=file.num_rows >> 5,
            mask=file.mask and file.mask._replace(num_deleted=file.num_rows >> 6),
            groups=tuple(replace(of, size_bytes=of.size_bytes >> 5) for of in file.groups),
        )
        for file in found
    ]
    packed = FileList.of(files)
    assert packed.num_parts.tolist() == [len(file.parts) for file in files]
    assert packed.has_masks == any(file.mask for file in files)
    assert packed.rows_left.tolist() == [
        file.num_rows - (file.mask.num_deleted or 0 if file.mask else 0) for file in files
    ]
    assert packed.total_bytes.tolist() == [
        sum(part.size_bytes for part in file.parts) for file in files
    ]
    of_day = {tuple(file.partition.items()): [0, 0, 0] for file in files}
    for file in files:
        total = of_day[tuple(file.partition.items())]
        total[:] = [total[0] + 1, total[1] + file.num_left, total[2] + file.size_bytes]
    assert [(tuple(part.items()), *rest) for part, *rest in packed.totals()] == [
        (part, *total) for part, total in of_day.items()
    ]


@given(lists(), NAMES)
def test_a_path_that_it_does_not_have_is_a_key_error(files: list[DataFile], name: str) -> None:
    with pytest.raises(KeyError):
        FileList.of([file for file in files if file.path != name]).find(name)
    with pytest.raises(IndexError):
        FileList.of(files)[len(files)]


def test_two_files_of_one_path_are_refused() -> None:
    files = [
        DataFile(path=path, url=path, size_bytes=1, num_rows=1, partition={}) for path in "aba"
    ]
    with pytest.raises(DataFileError, match=r"'a': expected files in the order of their paths"):
        FileList.of(files)


def test_a_name_that_is_not_utf8_is_kept() -> None:
    names = ["z", "a\udcff", "\u00e9"]
    files = FileList.of(
        DataFile(path=path, url=f"/t/{path}", size_bytes=1, num_rows=1, partition={})
        for path in names
    )
    assert [(file.path, file.url) for file in files] == [
        (path, f"/t/{path}") for path in ("a\udcff", "z", "\u00e9")
    ]
    assert len(files.digest) == 64


def test_a_file_takes_at_most_its_name_and_40_bytes() -> None:
    names = [
        f"part-{number:07}-0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a.parquet" for number in range(999)
    ]
    files = FileList.of(
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
    # No Python object for each file: all that is kept are these columns and the partitions.
    kept_in = {"columns", "root", "place", "places", "groups", "ranges", "_is_sorted"}
    assert vars(files).keys() <= kept_in
    assert not files.ranges
    assert files.columns.keys() == {"path", "version", "size_bytes", "num_rows"}
    assert len(files.places) == 1
    kept = sum(column.nbytes for column in files.columns.values()) + files.place.nbytes
    assert len(names[0]) < kept / len(files) <= len(names[0]) + 40


def test_a_partition_whose_value_is_none_of_its_keys_type_is_told() -> None:
    file = DataFile(path="a", url="/a", size_bytes=1, num_rows=1, partition={"dt": "x"})
    with pytest.raises(InputError, match=r"^/t: expected a value of .*'dt' \(int64\), found 'x'"):
        FileList.of([file]).of_values("/t", {"dt": "1"}, [pa.field("dt", pa.int64())])


def named(values: list[str], query: str) -> list[str]:
    """Those of the values of the text key v that a URL's query names."""
    files = [
        DataFile(path=str(i), url=f"/t/{i}", size_bytes=1, num_rows=1, partition={"v": value})
        for i, value in enumerate(values)
    ]
    keys = [pa.field("v", pa.string())]
    found = FileList.of(files).of_values("/t", read_query("/t", query), keys)
    return sorted(str(file.partition["v"]) for file in found)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(min_size=1, alphabet="12.%+ é"))
def test_each_text_can_be_named_and_two_be_the_ends_of_a_range(one: str, other: str) -> None:
    values = sorted({one, other})
    texts = [quote(value, safe="").replace(".", "%2E") for value in values]
    assert named(values, f"v={texts[0]}") == values[:1]
    assert named(["", *values], f"v={texts[0]}..{texts[-1]}") == values


def test_two_dots_are_those_of_a_range_unless_one_is_written_in_percent() -> None:
    values = ["1", "1..2", "1.5", "2", "3"]
    assert named(values, "v=1..2") == ["1", "1..2", "1.5", "2"]
    for text in ("1%2E%2E2", "1%2E.2", "1.%2e2"):
        assert named(values, f"v={text}") == ["1..2"]
    assert named(values, "v=1%2E%2E2..2") == ["1..2", "1.5", "2"]
    assert named(values, "%76=3") == ["3"]
