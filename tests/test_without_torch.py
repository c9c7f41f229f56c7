"""What works without torch, which is an extra: reading a table, profiles and extraction."""

from pathlib import Path

from tests.parquet_files import put_row_files
from tests.programs import run_python

JOB = """
import sys

sys.modules["torch"] = None  # Its import fails.
import pyarrow as pa
import pyarrow.parquet as pq
import featstore

table, raw, spec_path, made = sys.argv[1:]
opened = featstore.open_table(table)
assert opened.to_arrow().num_rows == 30
assert opened.profile()
pq.write_table(pa.table({"user": ["a", "b", None]}), raw)
spec = featstore.load_spec(spec_path)
featstore.extract(spec, raw, made, no_partition=True)
assert featstore.open_table(made).to_arrow().num_rows == 3
assert sys.modules["torch"] is None
"""

SPEC = """
spec: 1
inputs: {user: string}
slots:
  - {slot: 101, name: user, op: hash, of: user}
"""


def test_tables_are_read_profiled_and_made_without_torch(tmp_path: Path) -> None:
    put_row_files(tmp_path / "table", [20, 10], "{:02}.parquet")
    (tmp_path / "spec.yaml").write_text(SPEC)
    names = ("table", "raw.parquet", "spec.yaml", "made")
    run_python(JOB, *(tmp_path / name for name in names))
