from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.table.layout import (
    attempt_name,
    check_partition_name,
    data_file_name,
    decode_path,
    has_tag,
    is_data_file,
    new_tag,
    parse_partition,
    partition_path,
    unit_and_part,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text != "__HIVE_DEFAULT_PARTITION__"
)


@pytest.mark.parametrize(
    ("partition", "path"),
    [
        ({}, ""),
        ({"month": "2013-01"}, "month=2013-01"),
        ({"dt": "2026-11-01", "hour": "7"}, "dt=2026-11-01/hour=7"),
        ({"k": "a/b:c%d e"}, "k=a%2Fb%3Ac%25d%20e"),
        ({"k": "a=b[1]*?"}, "k=a%3Db%5B1%5D%2A%3F"),
        ({"k": ""}, "k=__HIVE_DEFAULT_PARTITION__"),
        ({"ort": "Köln"}, "ort=Köln"),
    ],
)
def test_partitions_are_directories_escaped_as_hive_does(
    partition: dict[str, str], path: str
) -> None:
    assert partition_path(partition) == path
    assert parse_partition(f"{path}/part.parquet") == {
        key: value or None for key, value in partition.items()
    }


@given(st.dictionaries(TEXT, st.one_of(TEXT, st.just("")), max_size=3))
def test_every_partition_survives_its_path(partition: dict[str, str]) -> None:
    path = f"{partition_path(partition)}/x=1.parquet"
    assert parse_partition(path) == {key: value or None for key, value in partition.items()}
    assert path.count("/") == max(len(partition), 1)


def test_a_value_with_zeros_in_front_is_another() -> None:
    assert [parse_partition(f"h={hour}/a.parquet")["h"] for hour in ("07", "7")] == ["07", "7"]


def test_directories_without_an_equals_sign_are_no_partition() -> None:
    assert parse_partition("/data/flights/month=2013-01/a=b.parquet") == {"month": "2013-01"}
    assert parse_partition("data/=x/month=/a.parquet") == {"month": ""}


def test_hives_default_partition_is_null() -> None:
    assert parse_partition("day=1/hour=__HIVE_DEFAULT_PARTITION__/a.parquet") == {
        "day": "1",
        "hour": None,
    }
    assert partition_path({"day": "1", "hour": None}) == "day=1/hour=__HIVE_DEFAULT_PARTITION__"


def test_a_key_with_two_values_is_refused() -> None:
    assert parse_partition("dt=1/x/dt=1/a.parquet") == {"dt": "1"}
    with pytest.raises(InputError, match=r"s3://b/dt=1/dt=2/a: expected .* 'dt', found .* '1' and"):
        parse_partition("s3://user:pw@b/dt=1/dt=2/a")
    with pytest.raises(InputError, match="found directories of None and '2'"):
        parse_partition("dt=__HIVE_DEFAULT_PARTITION__/dt=2/a.parquet")


def test_file_names_tell_unit_run_and_attempt() -> None:
    name = data_file_name("4e65d3fb-0a1b2c3d", 12, 3)
    assert name == "part-00012-4e65d3fb-0a1b2c3d-3.parquet"
    several = data_file_name("4e65d3fb-0a1b2c3d", 12, 3, 1)
    assert several == "part-00012-4e65d3fb-0a1b2c3d-3_00001.parquet"
    assert unit_and_part(f"month=1/{name}") == (12, 0)
    assert unit_and_part(several) == (12, 1)
    assert unit_and_part("clicks.parquet") is None
    assert is_data_file(name)
    assert is_data_file(several)
    assert not is_data_file("clicks.parquet")
    assert has_tag(f"month=1/{name}", "4e65d3fb-0a1b2c3d")
    assert has_tag(several, "4e65d3fb-0a1b2c3d")


def test_files_sort_by_unit_and_part() -> None:
    names = [
        data_file_name("4e65d3fb-0a1b2c3d", unit, 3, part) for unit in (8, 9) for part in (0, 1, 2)
    ]
    assert sorted(names) == names


def test_the_part_in_names_of_older_versions_is_known() -> None:
    assert unit_and_part("part-00012-4e65d3fb-0a1b2c3d-3-00001.parquet") == (12, 1)


def test_files_of_one_attempt_have_a_name_in_common() -> None:
    first, second = (data_file_name("4e65d3fb-0a1b2c3d", 12, 3, part) for part in (0, 1))
    assert attempt_name(f"dt=1/{second}") == attempt_name(f"dt=1/{first}") == f"dt=1/{first}"
    assert attempt_name("part-00012-4e65d3fb-0a1b2c3d-3-00001.parquet") == first
    assert attempt_name(data_file_name("4e65d3fb-0a1b2c3d", 12, 4, 1)) != first
    assert attempt_name("clicks.parquet") == "clicks.parquet"


def test_a_tag_tells_the_run_and_is_never_shared() -> None:
    tags = {new_tag(f"daily-2026-11-{day:02d}") for day in range(1, 31)}
    assert len({tag[:8] for tag in tags}) == 30
    one, another = new_tag("run-1"), new_tag("run-1")
    assert one[:9] == another[:9] == "4e65d3fb-"
    assert not has_tag(data_file_name(one, 0, 0), another)


@pytest.mark.parametrize(
    ("url", "logged", "path"),
    [
        ("/data/t", "month=a%253Ab/x%20y.parquet", "month=a%3Ab/x y.parquet"),
        ("/data/t", "url=http%3A//a/x.parquet", "url=http://a/x.parquet"),
        ("/data/t", "/data/t/dt=1/x%20y.parquet", "dt=1/x y.parquet"),
        ("file:///data/t/", "file:/data/t/x.parquet", "x.parquet"),
        ("/data/t", "file:///data/t2/x.parquet", "/data/t2/x.parquet"),
        ("/data/t", "s3://b/x.parquet", "s3://b/x.parquet"),
        ("s3://b/t", "s3a://b/t/x.parquet", "x.parquet"),
        ("s3://b/t", "/t/x.parquet", "x.parquet"),
        ("s3://b/t", "/other/x.parquet", "s3://b/other/x.parquet"),
    ],
)
def test_a_logged_path_is_decoded_once_and_relative_to_its_table(
    url: str, logged: str, path: str
) -> None:
    assert decode_path(url, logged) == path


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        ("x" * 300, 303),
        ("é" * 130, 263),
        ("/" * 90, 273),
        ("x" * 253, 256),
        ("", 0),
        ("x" * 252, 0),
    ],
)
def test_a_partition_value_too_long_for_a_directory_name_is_refused(
    tmp_path: Path, value: str, num_bytes: int
) -> None:
    if not num_bytes:
        check_partition_name("dt", value, "partition")
        (tmp_path / partition_path({"dt": value})).mkdir()
        return
    with pytest.raises(
        InputError,
        match=f"partition: key 'dt': .* a name of {num_bytes} bytes: expected at most 255",
    ):
        check_partition_name("dt", value, "partition")
    with pytest.raises(OSError, match="File name too long"):
        (tmp_path / partition_path({"dt": value})).mkdir()
