from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import TableFormatError
from featstore.files.listings import list_files
from tests.store_clients import clients_of

# A file of each format's metadata, and one of its data.
TABLES = {
    "Delta": (f"_delta_log/{3:020d}.json", "part-0.parquet"),
    "Iceberg": ("metadata/00002-9f0e.metadata.json", "data/dt=1/00000-0-9f0e.parquet"),
    "Hudi": (".hoodie/hoodie.properties", "2026/11/a_0.parquet"),
    "Paimon": ("schema/schema-0", "dt=1/bucket-0/data-1.parquet"),
    "Lance": ("_versions/18446744073709551614.manifest", "data/a.parquet"),
    "Spark streaming sink": ("_spark_metadata/9.compact", "dt=1/part-0.parquet"),
}
# Names alone make no table.
PLAIN = ("metadata/about.json", "schema/v1.json", "_versions/x", "data/dt=1/a.parquet")


def put(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")


PLACES: dict[str, Callable[[str, str], str]] = {
    "the table": lambda root, data: f"{root}/t",
    "above it": lambda root, data: root,
    "its data": lambda root, data: f"{root}/t/{data.rpartition('/')[0]}",
    "a file": lambda root, data: f"{root}/t/{data}",
    "a glob": lambda root, data: f"{root}/t/{data.rpartition('/')[0]}/*.parquet",
    "a glob of all": lambda root, data: f"{root}/t/**",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("table_format", TABLES)
def test_files_of_a_table_are_not_plain_files(
    tmp_path: Path, table_format: str, place: str
) -> None:
    put(tmp_path / "t", *TABLES[table_format])
    with pytest.raises(TableFormatError, match=rf"{tmp_path}/t is an? {table_format} table"):
        list_files(PLACES[place](str(tmp_path), TABLES[table_format][1]))


@pytest.mark.parametrize("place", ["the table", "above it", "its data", "a file"])
@pytest.mark.parametrize("table_format", TABLES)
def test_files_of_a_table_in_a_store_are_not_plain_files(
    loopback: Any, table_format: str, place: str
) -> None:
    variables = {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-central-1"}
    loopback.files |= {f"/bucket/x/t/{name}": b"12345" for name in TABLES[table_format]}
    url = PLACES[place]("s3://bucket/x", TABLES[table_format][1])
    with (
        clients_of(variables | {"AWS_ENDPOINT_URL": loopback.url}),
        pytest.raises(TableFormatError, match=rf"bucket/x/t is an? {table_format} table"),
    ):
        list_files(url)


@pytest.mark.parametrize("place", ["a directory", "a file", "a glob"])
def test_a_partition_of_hudi_may_have_any_name(tmp_path: Path, loopback: Any, place: str) -> None:
    names = (".hoodie/hoodie.properties", "US/.hoodie_partition_metadata", "US/a_0.parquet")
    put(tmp_path / "t", *names)
    loopback.files |= {f"/bucket/x/t/{name}": b"12345" for name in names}
    below = {"a directory": "US", "a file": names[2], "a glob": "US/*.parquet"}[place]
    variables = {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-central-1"}
    with clients_of(variables | {"AWS_ENDPOINT_URL": loopback.url}):
        for root in (f"{tmp_path}/t", "s3://bucket/x/t"):
            with pytest.raises(TableFormatError, match="t/US is a Hudi table"):
                list_files(f"{root}/{below}")


@pytest.mark.parametrize("name", ["t", "2026", "2026-11-01", "dt=1"])
def test_a_plain_directory_asks_a_store_for_no_more_than_its_logs(loopback: Any, name: str) -> None:
    variables = {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-central-1"}
    loopback.files |= {f"/bucket/x/{name}/{file}.parquet": b"12345" for file in "ab"}
    with clients_of(variables | {"AWS_ENDPOINT_URL": loopback.url}):
        assert len(list_files(f"s3://bucket/x/{name}")) == 2
    listings = [path for _, path, _ in loopback.log if path.strip("/") == "bucket"]
    assert len(listings) == 1 + len(("t/_delta_log", "x/_delta_log", "_delta_log"))


def test_names_alone_make_no_table(tmp_path: Path) -> None:
    put(tmp_path, *PLAIN)
    assert [entry.name for entry in list_files(str(tmp_path))] == ["data/dt=1/a.parquet"]
