"""An Iceberg table on moto's S3, over HTTP on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import featstore
from featstore.base.errors import TableNotFoundError
from tests.iceberg_tables import COLUMNS, catalog_at, rows_of
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


def test_a_table_is_opened_by_its_catalog_and_by_its_metadata_file(table: Any) -> None:
    assert ids("iceberg://test/db.t") == list(range(1, 31))
    assert table.metadata_location.startswith("s3://tables/lake/")
    assert ids(f"iceberg+{table.metadata_location}") == list(range(1, 31))
    with pytest.raises(TableNotFoundError, match="a file of the table's metadata is missing"):
        featstore.open_table("iceberg+s3://tables/lake/none.metadata.json")
