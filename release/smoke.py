"""What an installed featstore must do, with whatever extras are installed: `make dist` runs it in
empty environments, from a folder that holds nothing.

    python smoke.py
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import featstore

SIGNS = Path(__file__).parents[1] / "tests" / "golden" / "signs.jsonl"
NUM_ROWS = 5_000
SPEC = """
spec: 1
inputs: {user_id: string, topics: list<string>, price: double, clicked: long}
labels: {click: clicked}
slots:
  - {slot: 101, name: user, op: hash, of: user_id}
  - {slot: 102, name: tags, op: hash, of: topics, max_len: 3}
  - {slot: 103, name: user_x_tags, op: cross, of: [user_id, topics]}
  - {slot: 104, name: price, op: log1p, of: price, default: 0.0}
"""


def main() -> None:
    """Runs every part. An exception, or a failed assertion, is a failure."""
    assert (Path(featstore.__file__).parent / "py.typed").exists()
    signs()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        extract(root)
        if has("duckdb"):
            profile(root)
        if has("torch"):
            train(root)
    parts = ", ".join(name for name in ("duckdb", "torch", "pyspark") if has(name)) or "the core"
    print(f"smoke: featstore {featstore.__version__}, Python {sys.version.split()[0]}, {parts}: ok")


def has(module: str) -> bool:
    """Whether an optional library is installed."""
    return importlib.util.find_spec(module) is not None


def signs() -> None:
    """Extractors give the golden signs, of those rows that hold nothing but texts."""
    cases = [json.loads(line) for line in SIGNS.read_text().splitlines()]
    cases = [case for case in cases if all(isinstance(text, str) for text in case["row"].values())]
    assert len(cases) > 20
    for case in cases:
        document = {"spec": 1, "inputs": case["inputs"], "slots": case["slots"]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "spec.yaml"
            path.write_text(json.dumps(document))
            extractor = featstore.Extractor(featstore.load_spec(path))
        found = extractor.one(case["row"])[case["slots"][-1]["name"]]
        assert found == case["stored"], f"{case['name']}: expected {case['stored']}, found {found}"


def extract(root: Path) -> None:
    """The command line extracts a raw log into a table, and shows the table."""
    rows = np.arange(NUM_ROWS)
    raw = {
        "user_id": pa.array([f"u{row % 97}" for row in rows]),
        "topics": pa.array([[f"t{row % 5}", f"t{row % 7}"] for row in rows]),
        "price": pa.array(rows / 7),
        "clicked": pa.array(rows % 2),
    }
    (root / "raw").mkdir()
    pq.write_table(pa.table(raw), root / "raw" / "part.parquet")
    (root / "spec.yaml").write_text(SPEC)
    run("--version")
    job = Path(run("spark", "job", "extract").strip())
    assert job.is_relative_to(Path(featstore.__file__).parent)
    table = ["--table", root / "table"]
    run(
        "extract",
        "--spec",
        root / "spec.yaml",
        "--input",
        root / "raw",
        *table,
        "--partition",
        "dt=1",
    )
    run("table", "inspect", root / "table")
    assert featstore.open_table(root / "table").to_arrow().num_rows == NUM_ROWS


def run(*arguments: object) -> str:
    """Runs the command that was installed with this interpreter; what it printed."""
    command = [str(Path(sys.executable).with_name("featstore")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def profile(root: Path) -> None:
    """A profile counts every row."""
    found = featstore.open_table(root / "table").profile()
    assert found.num_rows == NUM_ROWS
    assert found.table.num_rows == 4


def train(root: Path) -> None:
    """The loader delivers every row once, with the values that the table shows."""
    with featstore.FeatureLoader(
        root / "table", slots=["*"], labels=["click"], batch_size=512, shuffle=True
    ) as loader:
        batches = [batch.clone() for batch in loader]
    assert sum(batch.num_rows for batch in batches) == NUM_ROWS
    found = sorted(user for batch in batches for user in batch["user"].tolist())
    stored = featstore.open_table(root / "table").to_arrow(slots=["user"])["user"].to_pylist()
    assert found == sorted(stored)


if __name__ == "__main__":
    main()
