"""An Iceberg table on moto's S3, over HTTP on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import featstore
from featstore.api import delete_rows
from featstore.base.errors import TableNotFoundError
from featstore.table.iceberg_mirror import register
from tests.iceberg_tables import COLUMNS, catalog_at, rows_of
from tests.parquet_files import put_parquet
from tests.programs import Program
from tests.store_clients import clients_of

pytest.importorskip("pyiceberg")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with Program(Path(__file__).with_name("s3_server.py")) as process:
        url = f"http://127.0.0.1:{process.line()}"
        urlopen(Request(f"{url}/tables", method="PUT"), timeout=60).close()
        variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        with clients_of(variables):
            yield url


@pytest.fixture
def table(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    more = {"warehouse": "s3://tables/lake", "s3.endpoint": endpoint, "s3.region": "us-east-1"}
    with catalog_at(tmp_path, monkeypatch, more) as catalog:
        made = catalog.create_table("db.t", COLUMNS)
        made.append(rows_of(1, 30))
        yield made
        catalog.drop_table("db.t")


def ids(url: str) -> list[int]:
    with featstore.FeatureLoader(url, slots=["id"], batch_size=7) as loader:
        return sorted(row for batch in loader for row in batch["id"].tolist())


def test_a_table_of_featstore_is_shown_in_a_catalog(table: Any, tmp_path: Path) -> None:
    url = "s3://tables/ctr"
    put_parquet(tmp_path / "raw.parquet", {"user": ["a", "b", "c"]})
    slots = [{"slot": 1, "name": "user_id", "op": "hash", "of": "user"}]
    spec = featstore.load_spec({"spec": 1, "inputs": {"user": "string"}, "slots": slots})
    for day in ("1", "a b"):
        featstore.extract(spec, tmp_path / "raw.parquet", url, partition={"dt": day})
        register(url, "iceberg://test/db.ctr")
    mirror = table.catalog.load_table("db.ctr")
    assert mirror.location() == f"{url}/_iceberg/test/db.ctr"
    expected = featstore.open_table(url).to_arrow().sort_by([("dt", "ascending")])
    found = mirror.scan().to_arrow().sort_by([("dt", "ascending")])
    assert found.to_pylist() == expected.to_pylist()
    delete_rows(url, "dt = '1'")
    assert mirror.refresh().scan().to_arrow()["dt"].to_pylist() == ["a b"] * 3


def test_a_table_is_opened_by_its_catalog_and_by_its_metadata_file(table: Any) -> None:
    assert ids("iceberg://test/db.t") == list(range(1, 31))
    assert table.metadata_location.startswith("s3://tables/lake/")
    assert ids(f"iceberg+{table.metadata_location}") == list(range(1, 31))
    with pytest.raises(TableNotFoundError, match="a file of the table's metadata is missing"):
        featstore.open_table("iceberg+s3://tables/lake/none.metadata.json")
