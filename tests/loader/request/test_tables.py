"""A table is an open one, a snapshot or a URL."""

from typing import Any

import pytest

from featstore.base.errors import ConfigError, TableNotFoundError
from featstore.explore.table import open_table
from featstore.loader.request.matching import snapshot_of
from featstore.table.snapshot import Snapshot


def test_every_way_to_name_a_table_gives_its_snapshot(table_url: str, snapshot: Snapshot) -> None:
    assert snapshot_of(snapshot) is snapshot
    for table in (table_url, open_table(table_url)):
        assert snapshot_of(table).digest == snapshot.digest
    assert snapshot_of(table_url, lambda url: snapshot) is snapshot


def test_what_is_no_table_is_an_error(tmp_path: Any) -> None:
    nothing: Any = 17
    with pytest.raises(ConfigError, match="expected a Table, a Snapshot or a URL, found int"):
        snapshot_of(nothing)
    with pytest.raises(TableNotFoundError):
        snapshot_of(tmp_path / "none")
