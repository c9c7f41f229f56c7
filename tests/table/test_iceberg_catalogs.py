"""Catalogs of Iceberg that are servers: Iceberg's own by REST, and a Hive metastore. Tests that are
imported run here on these.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import StoreError, TableNotFoundError
from featstore.explore.table import open_table
from featstore.files.retry import RetryPolicy, retrying
from featstore.table.open import open_input
from tests.hive.metastores import metastore
from tests.iceberg.rest_catalogs import rest_catalog
from tests.iceberg_tables import configure
from tests.programs import free_ports

pytest.importorskip("pyiceberg")
from tests.table.test_iceberg_mirror import table, test_each_commit_is_shown

__all__ = ["table", "test_each_commit_is_shown"]
pytestmark = pytest.mark.slow
URIS = {"rest": "http://127.0.0.1:{}", "hive": "thrift://127.0.0.1:{}"}


@pytest.fixture(params=list(URIS), scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The properties of a catalog."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "rest":
        with rest_catalog(directory) as properties:
            yield properties
        return
    pytest.importorskip("thrift")
    # Without it a metastore refuses to add columns between others.
    evolves = {"hive.metastore.disallow.incompatible.col.type.changes": "false"}
    with metastore(directory, "3.1.3", evolves) as settings:
        uri = settings["spark.hadoop.hive.metastore.uris"]
        yield {"type": "hive", "uri": uri, "warehouse": f"file://{directory}/lake"}


@pytest.fixture
def catalog(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from pyiceberg.catalog import load_catalog

    configure(monkeypatch, server)
    with (
        retrying(RetryPolicy(retry_s=300.0)),  # it may still be on its way up
        pytest.raises(
            TableNotFoundError, match=r"test/db\.none: the catalog has none of this name"
        ),
    ):
        open_table("iceberg://test/db.none")
    with load_catalog("test", **server) as catalog:
        catalog.create_namespace_if_not_exists("db")
        yield catalog


def test_a_table_is_read_by_version_and_by_range(catalog: Any) -> None:
    rows = pa.table({"x": [1, 2, 3], "name": ["a", "b", "c"]})
    table = catalog.create_table("db.raw", rows.schema)
    for first in range(3):
        table.append(rows.slice(first, 1))
    url, (first, *_) = "iceberg://test/db.raw", [each.snapshot_id for each in table.history()]
    assert sorted(open_table(url).to_arrow()["name"].to_pylist()) == ["a", "b", "c"]
    assert open_table(url, version=first).to_arrow()["x"].to_pylist() == [1]
    appended = open_input(f"{url}?after={first}")
    assert appended is not None
    assert appended.snapshot.num_rows == 2


@pytest.mark.parametrize("kind", list(URIS))
def test_a_catalog_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "hive":
        pytest.importorskip("thrift")
    [port] = free_ports(1)
    configure(monkeypatch, {"type": kind, "uri": URIS[kind].format(port)})
    with (
        retrying(RetryPolicy(retry_s=0.5)),
        pytest.raises(StoreError, match=r"iceberg://test/db\.t: .*; check .* the catalog's uri in"),
    ):
        open_table("iceberg://test/db.t")
