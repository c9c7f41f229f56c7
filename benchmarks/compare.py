"""The same table read by featstore and by its peers, each in an environment of its own and in its
newest version, by a program as its own documentation advises (`compare_parts/peers/`).

- read: 40 of 200 columns and a label of 400,000 rows in Parquet, in batches of 4,096 rows as
  tensors. Formats of samples are written of all columns of the first 50,000 rows. A fresh process
  reads an epoch, then others read on one core and on two. Checksums must be equal.
- ranks: an epoch of 131,072 rows in 16 files, in batches of 512. How many files a shuffled batch
  has rows of; two processes that are killed at a random batch after they saved their states, and
  two or three that go on; three processes of which one is five times slower.

Exits with 1 if a checksum differs, or if featstore misses a row, delivers one twice, or takes
longer with a slow process than `Ranks.slow` allows.

    python benchmarks/compare.py [--small] [--peer NAME ...] [--part NAME ...] [--directory DIR]
"""

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from compare_parts.checksum import checksum
from compare_parts.environments import OWN, PEERS, lines_of, python_of, version_of
from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors
from compare_parts.program import Program
from compare_parts.ranks import BATCH_SIZE, FILE_ROWS, Ranks, write_rows
from loader_parts.workload import NARROW
from shared_parts.machine import print_result

# Those that read a format of samples, and those that have states of an epoch.
CONVERTED = ("streaming", "litdata", "tensorflow")
WITH_STATE = (OWN, "datasets", "torchdata", *CONVERTED)
PARTS = ("read", "ranks")
Figures = dict[str, Any]


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    arguments = _parse()
    peers = dict[str, Figures]()
    with tempfile.TemporaryDirectory() as scratch:
        directory = (arguments.directory or Path(scratch)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        for peer in arguments.peer or PEERS:
            python = python_of(peer, arguments.environments.resolve())
            side = Side(Program(peer=peer, python=python), directory, arguments)
            peers[peer] = {"version": version_of(peer), **lines_of(peer)}
            for part in arguments.part or PARTS:
                peers[peer] |= getattr(side, part)()
                print(f"{peer}: {peers[peer]}", flush=True)
    ok = all(of.get("equal", True) for of in peers.values()) and _is_met(peers.get(OWN, {}))
    print_result({"ok": ok, "seed": arguments.seed, "peers": peers})
    return 0 if ok else 1


def _is_met(own: Figures) -> bool:
    exact = [own.get(name, [0, 0]) == [0, 0] for name in ("resumed", "shuffled", "on_more")]
    late = own.get("slow", {"of_ideal": 1.0, "most": 1.0, "missing": 0, "twice": 0})
    return all(exact) and late["of_ideal"] <= late["most"] and not late["missing"] + late["twice"]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="a quarter of the rows, shorter epochs, and none killed in order",
    )
    parser.add_argument("--peer", action="append", choices=PEERS, help="only this one")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one")
    parser.add_argument("--directory", type=Path, help="keep the rows here, and use them again")
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(__file__).parents[1] / "build" / "compare",
        help="where the peers are installed (build/compare)",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1000), help="of the kill")
    return parser.parse_args()


class Side:
    """Measures one peer."""

    def __init__(self, program: Program, directory: Path, arguments: argparse.Namespace) -> None:
        self._program, self._directory, self._arguments = program, directory, arguments
        self._is_converted = program.peer in CONVERTED

    def read(self) -> Figures:
        """Rates, memory, the first batch, and what converting takes."""
        small = self._arguments.small
        of = replace(
            NARROW,
            num_files=1 if self._is_converted else NARROW.num_files,
            rows_per_file=NARROW.rows_per_file // (4 if small else 1),
        )
        found, job = self._prepared(of.write(self._directory), of.columns, 4096)
        first = self._program.run("first", job, watch=True)
        found |= {
            "first_s": round(first["first_s"], 2),
            "first_cpu_s": round(first["first_cpu_s"], 2),
            "memory_mb": round(first["pss_bytes"] / 1e6),
        }
        expected = _expected(job)
        for num_cores in (1, 2):
            told = self._program.run(
                "rate", replace(job, num_cores=num_cores), cpu_s=1.0 if small else 4.0
            )
            sums, k_rows = told["checksum"], of.num_rows * told["epochs"] / 1e3
            found |= {
                f"k_rows_per_cpu_s_{num_cores}": _figure(k_rows / told["cpu_s"]),
                f"k_rows_per_s_{num_cores}": _figure(k_rows / told["clock_s"]),
                f"batches_{num_cores}": f"{sums.pop('batches')} of {-(-of.num_rows // 4096)}",
                "equal": found.get("equal", True) and sums == expected,
            }
        return found

    def ranks(self) -> Figures:
        """What is mixed, missing and late."""
        paths = write_rows(self._directory)
        with tempfile.TemporaryDirectory(dir=self._directory) as scratch:
            _, job = self._prepared(paths, ["row", "click"], BATCH_SIZE)
            job = replace(job, scratch=scratch)
            told = self._program.run("files", replace(job, shuffle=True), file_rows=FILE_ROWS)
            one_process = self._program.peer == "ray"
            ranks = Ranks(program=self._program, job=job, one_process=one_process)
            found: Figures = {"files_per_batch": round(told["files_per_batch"], 1)}
            if self._program.peer in WITH_STATE:
                if not self._arguments.small:
                    in_order = ranks.killed(shuffle=False, seed=self._arguments.seed)
                    found |= {"in_order": in_order, "resumed": in_order["on_2"]}
                shuffled = ranks.killed(shuffle=True, seed=self._arguments.seed + 1)
                found |= {"mixed": shuffled, "shuffled": shuffled["on_2"]}
                found |= {"on_more": shuffled["on_3"]}
            else:
                found |= dict.fromkeys(("resumed", "shuffled", "on_more"), "no state")
            return found | {"slow": ranks.slow(3.0 if self._arguments.small else 8.0)}

    def _prepared(
        self, paths: list[str], columns: list[str], batch_size: int
    ) -> tuple[Figures, Job]:
        """The job, and what it took to write the rows in the peer's own format, if it has one."""
        folder = Path(paths[0]).parent
        own = folder.with_name(f"{folder.name}-{self._program.peer}")
        job = Job(
            files=paths,
            folder=str(own),
            columns=columns,
            batch_size=batch_size,
            scratch=str(self._directory),
        )
        if not self._is_converted:
            return {}, job
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        told = self._program.run("convert", job)
        stored = sum(path.stat().st_size for path in own.rglob("*") if path.is_file())
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        parquet = sum(Path(path).stat().st_size for path in paths)
        return {
            "convert_cpu_us_per_row": round(told["cpu_s"] / rows * 1e6),
            "bytes_of_parquet": round(stored / parquet, 2),
        }, job


def _expected(job: Job) -> dict[str, int]:
    tables = (pq.read_table(path, columns=job.columns) for path in job.files)
    sums = checksum(map(to_tensors, tables))
    del sums["batches"]
    return sums


def _figure(found: float) -> float:
    return float(f"{found:.3g}")


if __name__ == "__main__":
    sys.exit(main())
