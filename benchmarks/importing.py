"""From TFRecord to the first batch: what each step takes, and importing CSV, JSON lines and libsvm.

The rows are an ads log: 26 texts as ids, 13 numbers, 4 lists of ids, a label and a time. They are
written as TFRecord (with the protobuf package), imported to raw Parquet, extracted without Spark, and
read by a FeatureLoader as far as the first batch and to the end of an epoch; then the same rows as
CSV and as JSON lines, without the lists, are imported and extracted as they are. Told of each step:
seconds, rows and MB a second of input, and the highest resident memory of its process.

Required: no step loses a row; an import's memory does not grow with the file.

    python benchmarks/importing.py [--small] [--directory DIR]
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shared_parts.machine import print_result
from size_parts.tfrecord import examples, write_records

NUM_IDS, NUM_NUMBERS, NUM_LISTS = 26, 13, 4
# The memory of an import of a file of several times the rows may be larger by this factor.
ALLOWED_GROWTH = 1.5
# The peak that `getrusage` tells of a process includes that of the one that started it.
_PROGRAM = """
import json, pathlib, resource, sys, time
sys.path[:0] = json.loads(sys.argv[1])
import importing
before = time.perf_counter()
found = getattr(importing, sys.argv[2])(*sys.argv[3:])
seconds = time.perf_counter() - before
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
of_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
peak = max(int(status["VmHWM"].split()[0]), of_children)
print(json.dumps({"seconds": seconds, "peak_mb": peak / 1024, **found}))
"""


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    num_files, file_rows = (4, 10_000) if arguments.small else (8, 50_000)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        steps = measure(Path(temporary), num_files, file_rows)
    num_rows = num_files * file_rows
    for step in steps:
        print(
            f"{step['step']:<28} {step['seconds']:7.2f} s {step['num_rows'] / step['seconds']:9,.0f} rows/s"
            f" {step['input_mb'] / step['seconds']:7.1f} MB/s {step['peak_mb']:6.0f} MB peak"
        )
    by_name = {step["step"]: step for step in steps}
    growth = (
        by_name["import one large tfrecord"]["peak_mb"]
        / by_name["import a quarter of it"]["peak_mb"]
    )
    lost = [s["step"] for s in steps if s["expected_rows"] != s["num_rows"]]
    ok = not lost and growth <= ALLOWED_GROWTH
    print_result({"ok": ok, "num_rows": num_rows, "growth": growth, "lost": lost, "steps": steps})
    return 0 if ok else 1


def measure(directory: Path, num_files: int, file_rows: int) -> list[dict[str, Any]]:
    """The steps in their order, each with what it took."""
    steps: list[dict[str, Any]] = []

    def step(name: str, function: str, source: Path, expected: int, *more: object) -> None:
        found = json.loads(
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    _PROGRAM,
                    json.dumps(sys.path),
                    function,
                    str(source),
                    *map(str, more),
                ],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.splitlines()[-1]
        )
        files = (
            [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        )
        size_mb = sum(path.stat().st_size for path in files) / 1e6
        steps.append({"step": name, "expected_rows": expected, "input_mb": size_mb, **found})
        print(steps[-1], flush=True)

    num_rows = num_files * file_rows
    write(directory, num_files, file_rows)
    spec = directory / "spec.yaml"
    step(
        "import tfrecord",
        "run_import",
        directory / "tfrecord",
        num_rows,
        "tfrecord",
        directory / "raw",
    )
    step("extract", "run_extract", directory / "raw", num_rows, spec, directory / "table")
    step("first batch", "run_first_batch", directory / "table", num_rows)
    step("epoch", "run_epoch", directory / "table", num_rows)
    for name, source, part in (
        ("import a quarter of it", directory / "quarter.tfrecord", num_files // 4),
        ("import one large tfrecord", directory / "large.tfrecord", num_files),
    ):
        with source.open("wb") as sink:
            for path in sorted((directory / "tfrecord").iterdir())[:part]:
                sink.write(path.read_bytes())
        out = directory / f"of_{source.stem}"
        step(name, "run_import", source, part * file_rows, "tfrecord", out)
    for kind in ("csv", "json"):
        source = directory / kind
        step(f"import {kind}", "run_import", source, num_rows, kind, directory / f"of_{kind}")
        table = directory / f"{kind}_table"
        step(
            f"extract {kind} as it is",
            "run_extract",
            source,
            num_rows,
            directory / "flat.yaml",
            table,
        )
    step(
        "import libsvm",
        "run_import",
        directory / "libsvm",
        num_rows,
        "libsvm",
        directory / "of_libsvm",
    )
    return steps


def write(directory: Path, num_files: int, file_rows: int) -> None:
    """Writes the files of each format, and the specs."""
    for kind in ("tfrecord", "csv", "json", "libsvm"):
        (directory / kind).mkdir()
    for index in range(num_files):
        rows = _table(index, file_rows)
        with (directory / "tfrecord" / f"part-{index:02}.tfrecord").open("wb") as sink:
            write_records(sink, examples(rows))
        flat = rows.select([name for name in rows.column_names if not name.startswith("list_")])
        values = flat.to_pylist()
        with (directory / "csv" / f"part-{index:02}.csv").open("w", newline="") as text:
            writer = csv.DictWriter(text, flat.column_names)
            writer.writeheader()
            writer.writerows(values)
        with (directory / "json" / f"part-{index:02}.jsonl").open("w") as text:
            text.writelines(json.dumps(row) + "\n" for row in values)
        with (directory / "libsvm" / f"part-{index:02}.svm").open("w") as text:
            for row in values:
                numbers = " ".join(f"{i}:{row[f'number_{i}']}" for i in range(NUM_NUMBERS))
                text.write(f"{row['click']} {numbers}\n")
    (directory / "spec.yaml").write_text(_spec(with_lists=True))
    (directory / "flat.yaml").write_text(_spec(with_lists=False))


def _table(index: int, num_rows: int) -> pa.Table:
    draw = np.random.default_rng(index)
    columns: dict[str, pa.Array] = {
        "click": pa.array((draw.random(num_rows) < 0.1).astype(np.int64)),
        "ts": pa.array(1_760_000_000 + draw.integers(0, 86_400, num_rows)),
    }
    for i in range(NUM_IDS):
        codes = draw.zipf(1.2, num_rows) % 10 ** (2 + i % 5)
        columns[f"id_{i}"] = pa.array([f"v{code:08x}" for code in codes])
    for i in range(NUM_NUMBERS):
        columns[f"number_{i}"] = pa.array(draw.random(num_rows).astype(np.float32))
    for i in range(NUM_LISTS):
        lengths = draw.integers(0, 11, num_rows)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        items = pa.array(draw.integers(1, 10**6, int(lengths.sum())))
        columns[f"list_{i}"] = pa.ListArray.from_arrays(offsets, items)
    return pa.table(columns)


def _spec(*, with_lists: bool) -> str:
    lists = [f"list_{i}" for i in range(NUM_LISTS if with_lists else 0)]
    ids, numbers = [f"id_{i}" for i in range(NUM_IDS)], [f"number_{i}" for i in range(NUM_NUMBERS)]
    inputs = {"click": "long", "ts": "long", **dict.fromkeys(ids, "string")}
    inputs |= {**dict.fromkeys(numbers, "double"), **dict.fromkeys(lists, "list<long>")}
    slots = [
        {
            "slot": 100 + i,
            "name": f"slot_{name}",
            "op": "log1p" if name in numbers else "hash",
            "of": name,
        }
        for i, name in enumerate([*ids, *numbers, *lists])
    ]
    return json.dumps({"spec": 1, "inputs": inputs, "labels": {"click": "click"}, "slots": slots})


def run_import(source: str, kind: str, output: str) -> dict[str, Any]:
    """Imports, with a process for each core if there are several files."""
    from featstore.api import import_raw
    from featstore.base.host import num_cores

    report = import_raw(kind, source, output, num_workers=num_cores())
    return {"num_rows": report.num_rows, "output_mb": report.size_bytes / 1e6}


def run_extract(source: str, spec: str, table: str) -> dict[str, Any]:
    """Extracts without Spark."""
    from featstore.api import extract

    report = extract(spec, source, table)
    return {"num_rows": report.num_rows, "output_mb": report.size_bytes / 1e6}


def _batches(table: str) -> Any:
    from featstore import FeatureLoader

    return FeatureLoader(table, slots=["slot_*"], labels=["click"], batch_size=1024)


def run_first_batch(table: str) -> dict[str, Any]:
    """From opening the table to the first batch; the rows are those of the table."""
    from featstore import open_table

    with _batches(table) as loader:
        for batch in loader:
            assert len(batch["slot_id_0"])
            break
    return {"num_rows": sum(file.num_rows for file in open_table(table).data_files())}


def run_epoch(table: str) -> dict[str, Any]:
    """All batches of an epoch."""
    with _batches(table) as loader:
        return {"num_rows": sum(batch.num_rows for batch in loader)}


if __name__ == "__main__":
    raise SystemExit(main())
