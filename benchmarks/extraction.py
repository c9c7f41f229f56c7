"""What an extraction costs: 61 and 400 slots against hand-written Spark SQL with Spark's writer,
and against polars.

What is held against each other runs in turn, and is then checked to hold the same content in every
row of every slot. All figures are CPU seconds of a whole process tree: driver, JVM and Python
workers (`shared_parts/process_tree.py`). What is left out is the same on both sides: the session's
start and one round of each job on Spark, the imports in one process.

    python benchmarks/extraction.py [--small] [--only spark61,spark400,polars,flat,kernel]
    [--directory DIR]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extraction_sides import hash_kernel
from extraction_sides.comparing import differences
from extraction_sides.workload import num_blocks, write_raw
from shared_parts.machine import print_result

ROWS_PER_ROW_GROUP = 65_536
MAX_WORKER_BYTES = 1 << 30
NUM_SLOTS, MANY_SLOTS = 61, 400
# By side, how many times featstore's CPU is demanded and aimed at.
DEMANDED = {"catalyst": (4.0, 5.0), "catalyst_tuned": (3.0, 4.0)}
DEMANDED_MANY = {"catalyst": (5.0, 8.0), "catalyst_tuned": (4.0, 8.0)}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: rows, in units of 65,536; rounds of Spark and of single processes; the
    Catalyst sides that the many slots are held against.
    """

    spark_rows: int
    spark_rows_many: int
    sides_many: tuple[str, ...]
    spark_rounds: int
    polars_rows: int
    rounds: int
    flat_rows: tuple[int, ...]
    kernel_values: int


FULL = Size(
    spark_rows=1 << 19,
    spark_rows_many=1 << 18,
    sides_many=tuple(DEMANDED_MANY),
    spark_rounds=5,
    polars_rows=1 << 20,
    rounds=5,
    flat_rows=(1 << 20, 5 << 20, 20 << 20),
    kernel_values=1 << 20,
)
SMALL = Size(
    spark_rows=1 << 18,
    spark_rows_many=1 << 16,
    sides_many=("catalyst_tuned",),  # the other takes longer, whatever the number of rows
    spark_rounds=1,
    polars_rows=1 << 19,
    rounds=3,
    flat_rows=(1 << 20, 3 << 20),
    kernel_values=1 << 17,
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where data lies and how much of it there is."""

    directory: Path
    size: Size

    def raw(self, num_slots: int, num_rows: int, num_files: int = 4) -> str:
        path = self.directory / f"raw-{num_slots}-{num_rows}"
        write_raw(path, num_rows, num_files, num_blocks(num_slots))
        return str(path)

    def out(self, name: str) -> Path:
        """A folder that is empty."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(
            directory=Path(arguments.directory or directory),
            size=SMALL if arguments.small else FULL,
        )
        figures = [figure for part in arguments.only.split(",") for figure in PARTS[part](bench)]
    ok = all(figure["ok"] for figure in figures)
    print_result(
        {"benchmark": "extraction", "small": arguments.small, "figures": figures, "ok": ok}
    )
    return 0 if ok else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="fewer rows and rounds, 400 slots against the tuned side only; under 5 minutes",
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--directory", help="keep the data here, and use it again")
    return parser.parse_args()


def on_spark(
    bench: Bench,
    num_slots: int,
    num_rows: int,
    demanded: Mapping[str, tuple[float, float]],
    sides: Sequence[str] = tuple(DEMANDED),
) -> list[Any]:
    """File input against Catalyst expressions as users write them, and tuned.

    Args:
        bench: The data.
        num_slots: The slots.
        num_rows: The rows.
        demanded: By side, the ratio that is demanded and the one aimed at.
        sides: Those that are measured.
    """
    raw, out = bench.raw(num_slots, num_rows), bench.out("spark")
    rows_per_file = max(num_rows // 2, ROWS_PER_ROW_GROUP)
    found = _child(
        "on_spark", raw, str(out), num_slots, rows_per_file, bench.size.spark_rounds, *sides
    )
    same = not any(found["different"].values())
    cpu_s = {
        side: statistics.median(cpu for cpu, _ in spent) for side, spent in found["spent"].items()
    }
    seen = {side: round(value, 2) for side, value in cpu_s.items()}
    figures = []
    for side, (least, aim) in demanded.items():
        name = f"{num_slots} slots, CPU of {side} / featstore"
        if side not in sides:
            figures.append({"name": name, "found": None, "ok": True})  # not with --small
            continue
        ratio = statistics.median(
            theirs / ours
            for (theirs, _), (ours, _) in zip(
                found["spent"][side], found["spent"]["featstore"], strict=True
            )
        )
        figures.append(_figure(name, ratio, least, aim, same=same, cpu_s=seen, rows=num_rows))
        figures[-1]["different"] = found["different"][side]
    if num_slots == MANY_SLOTS:
        peak = found["peak_worker_bytes"]
        figures.append(
            {
                "name": "peak of a Python worker, bytes",
                "found": peak,
                "ok": 0 < peak < MAX_WORKER_BYTES,
            }
        )
    return [_told(figure) for figure in figures]


def against_polars(bench: Bench) -> list[Any]:
    """The local engine and polars, each bound to one core, a process each."""
    num_rows = bench.size.polars_rows
    raw = bench.raw(NUM_SLOTS, num_rows)
    spent: dict[str, list[float]] = {"featstore": [], "polars": []}
    for _ in range(bench.size.rounds):
        for side in spent:
            out = bench.out(side)
            spent[side].append(
                _child("in_process", side, raw, str(out), NUM_SLOTS, 1 << 20, 1)["cpu_s"]
            )
    different = differences(bench.directory / "featstore", bench.directory / "polars")
    ratio = statistics.median(theirs / ours for ours, theirs in zip(*spent.values(), strict=True))
    seen = {side: round(statistics.median(values), 2) for side, values in spent.items()}
    figure = _figure(
        "61 slots, CPU of polars / featstore",
        ratio,
        1.2,
        1.5,
        same=not different,
        cpu_s=seen,
        rows=num_rows,
    )
    return [_told(figure | {"different": different})]


def flatness(bench: Bench) -> list[Any]:
    """Rows per CPU second of the local engine on all cores, over raw logs made of links to the same
    files.
    """
    unit = bench.size.flat_rows[0]
    source = Path(bench.raw(NUM_SLOTS, unit))
    rates = {}
    for num_rows in bench.size.flat_rows:
        raw = bench.out("flat-raw")
        for number in range(num_rows // unit):
            for file in sorted(source.iterdir()):
                os.link(file, raw / f"{number:03d}-{file.name}")
        cpu_s = _child(
            "in_process",
            "featstore",
            str(raw),
            str(bench.out("flat")),
            NUM_SLOTS,
            1 << 20,
            os.cpu_count(),
        )["cpu_s"]
        rates[num_rows] = round(num_rows / cpu_s)
    bench.out("flat")
    ratio = min(rates.values()) / max(rates.values())
    return [
        _told(_figure("slowest / fastest rows a CPU second", ratio, 0.8, 1.0, rows_per_cpu_s=rates))
    ]


def kernel(bench: Bench) -> list[Any]:
    """The hash kernel alone; nothing is demanded of it."""
    found = hash_kernel.measure(bench.size.kernel_values, bench.size.rounds)
    return [_told({"name": "hash kernel, ns a value", "found": found, "ok": True})]


PARTS: dict[str, Callable[[Bench], list[Any]]] = {
    "spark61": lambda bench: on_spark(bench, NUM_SLOTS, bench.size.spark_rows, DEMANDED),
    "spark400": lambda bench: on_spark(
        bench,
        MANY_SLOTS,
        bench.size.spark_rows_many,
        DEMANDED_MANY,
        bench.size.sides_many,
    ),
    "polars": against_polars,
    "flat": flatness,
    "kernel": kernel,
}


def _figure(
    name: str, found: float, demanded: float, aim: float, *, same: bool = True, **more: Any
) -> dict[str, Any]:
    ok = same and found >= demanded
    return {
        "name": name,
        "found": round(found, 3),
        "demanded": demanded,
        "aim": aim,
        "ok": ok,
        "same_content": same,
        **more,
    }


def _told(figure: dict[str, Any]) -> dict[str, Any]:
    print(figure, flush=True)
    return figure


def _child(module: str, *arguments: object) -> Any:
    """The JSON that a side's process prints as its last line; its errors are this one's end."""
    command = [sys.executable, "-m", f"extraction_sides.{module}", *map(str, arguments)]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    if done.returncode:
        raise SystemExit(f"{module} failed with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
