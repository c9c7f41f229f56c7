"""`RayTable`, with a local Ray of two workers; `make ray` installs it."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.explore.table import open_table
from featstore.table.open import open_snapshot
from tests.parquet_files import put_row_files
from tests.programs import run_python

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install --group ray"
)

SCRIPT = """
import json, os, sys
import ray
import featstore
from featstore.explore.ray_table import RayTable

environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environ})
rows = ray.data.read_datasource(RayTable(sys.argv[1], ["row", "price"], "dt > '2026-11-01' and price >= 30"))
every = ray.data.read_datasource(RayTable(featstore.open_table(sys.argv[1])))
none = ray.data.read_datasource(RayTable(sys.argv[1], ["price"], "dt > '2027-01-01'"))
print(json.dumps({
    "none": [none.schema().names, none.count(), none.take_all()],
    "rows": sorted((row["row"], row["price"], row["dt"]) for row in rows.take_all()),
    "columns": rows.schema().names,
    "count": every.count(),
    "sum": every.map_batches(lambda batch: {"price": batch["price"]}).sum("price"),
    "workers": len(set(every.map(lambda row: {"worker": os.getpid()}).unique("worker"))),
}))
ray.shutdown()
"""


@pytest.mark.slow
def test_two_workers_give_the_rows_that_the_table_itself_gives(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        place = tmp_path / "table" / f"dt=2026-11-0{day}"
        put_row_files(place, [20] * 4, first=day * 100, floats=["price"], row_group_size=7)
    (tmp_path / "script.py").write_text(SCRIPT)
    found = json.loads(
        run_python(tmp_path / "script.py", tmp_path / "table").stdout.splitlines()[-1]
    )
    table = open_table(tmp_path / "table")
    expected = table.to_arrow(["row", "price"], "dt > '2026-11-01' and price >= 30")
    assert found["rows"] == sorted([*row.values()] for row in expected.to_pylist())
    assert found["columns"] == expected.column_names
    assert found["none"] == [["price", "dt"], 0, []]
    assert found["count"] == table.num_rows
    assert found["sum"] == sum(table.to_arrow(["price"])["price"].to_pylist())
    assert found["workers"] == 2


@given(sizes=st.lists(st.integers(1, 300), max_size=12), num_parts=st.integers(1, 20))
def test_tasks_have_each_file_once_and_are_about_equal(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sequence[int], num_parts: int
) -> None:
    from featstore.explore.ray_table import divided

    place = put_row_files(tmp_path_factory.mktemp("t"), sizes or [1], "{:02}.parquet")
    files = open_snapshot(str(place)).data_files
    parts = divided(files, num_parts)
    assert [path for part in parts for path in part.paths] == list(files.paths)
    assert len(parts) <= num_parts
    share = files.total_bytes.sum() / num_parts
    largest = files.total_bytes.max()
    assert all(0 < part.total_bytes.sum() <= share + largest for part in parts)
