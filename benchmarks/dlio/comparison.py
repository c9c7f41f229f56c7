"""Runs DLIO with each of the sides, and compares what it reports."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlio.rows import FORMATS, PARQUET
from loader_parts.plain_workload import DLRM, PlainWorkload
from shared_parts.machine import print_result
from training_parts.environment import python_with

BATCH_SIZE = 2048
# In MLPerf Storage v3 one accelerator is simulated to take this many.
ROWS_PER_S_OF_ACCELERATOR = 2.66e6
# DLIO, and what it needs of what the project's environment has not; all without their dependencies,
# tensorflow, DALI and a torch of its own among them.
PACKAGES = (
    "dlio-benchmark==2.0.0",
    "pydftracer==1.0.2",
    "hydra-core==1.3.2",
    "omegaconf==2.3.0",
    "antlr4-python3-runtime==4.9.3",
    "mpi4py==4.1.2",
    "mpich==5.0.2",
    "h5py==3.16.0",
)
HERE = Path(__file__).parent
Run = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Side:
    """What gives DLIO its batches.

    Attributes:
        format: DLIO's name of the format, and of the data folder.
        reader: Settings of the workload's part `reader`.
        epochs: More than one where an epoch is short.
        rows_of_one_file: Reads this many rows of one file, in place of all.
    """

    format: str
    reader: Mapping[str, str | int]
    epochs: int = 1
    rows_of_one_file: int | None = None


def _loader(name: str, sampler: str, **more: str) -> dict[str, str | int]:
    return {"data_loader_classname": f"dlio.{name}", "data_loader_sampler": sampler, **more}


_FEATSTORE = _loader("loader.FeatstoreDataLoader", "none")
_NOTHING = _loader("neighbours.SameBatchDataLoader", "none")
_INDEXED = _loader("neighbours.IndexedDataLoader", "index")
_UNCHANGED = _loader("neighbours.CountedTorchDataLoader", "index")
SIDES = {
    "nothing": Side(format=PARQUET, reader=_NOTHING, epochs=8),
    "featstore": Side(format=PARQUET, reader=_FEATSTORE, epochs=8),
    "featstore shuffled": Side(
        format=PARQUET, reader=_FEATSTORE | {"sample_shuffle": "random"}, epochs=8
    ),
    "parquet": Side(
        format=PARQUET, reader=_INDEXED | {"reader_classname": "dlio.neighbours.ParquetReader"}
    ),
    **{name: Side(format=name, reader=_INDEXED) for name in FORMATS},
    "indexed_binary unchanged": Side(
        format="indexed_binary", reader=_UNCHANGED, rows_of_one_file=4 * BATCH_SIZE
    ),
}


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs DLIO.

    Attributes:
        python: The interpreter that has it.
        folder: The data folder of each format.
        scratch: What DLIO writes goes below it.
        of: The rows.
    """

    python: str
    folder: Path
    scratch: Path
    of: PlainWorkload

    def run(self, side: Side, *, computation_s: float) -> Run:
        """The figures that `figures_of` takes from DLIO's reports."""
        num_files = 1 if side.rows_of_one_file else self.of.num_files
        per_file = side.rows_of_one_file or self.of.rows_per_file
        settings = {
            "dataset.data_folder": self.folder / side.format,
            "dataset.format": side.format,
            "dataset.num_files_train": num_files,
            "dataset.num_samples_per_file": per_file,
            "train.computation_time": computation_s,
            "train.epochs": side.epochs,
            **{f"reader.{key}": value for key, value in side.reader.items()},
        }
        with tempfile.TemporaryDirectory(dir=self.scratch) as made:
            output = Path(made)
            self._call(output, [f"++workload.{key}={value}" for key, value in settings.items()])
            reports = json.loads((output / "0_output.json").read_text())
            counted = json.loads((output / "0_train_counted.json").read_text())
        epochs = [reports[str(number + 1)] for number in range(side.epochs)]
        return figures_of(epochs, counted, num_files * per_file)

    def _call(self, output: Path, settings: list[str]) -> None:
        log = output / "printed.log"
        command = [self.python, "-m", "dlio_benchmark.main", "--config-dir", str(HERE / "configs")]
        command += ["workload=dlrm_parquet", f"hydra.run.dir={output}", *settings]
        with log.open("w") as file:
            done = subprocess.run(
                command, env=_environment(), cwd=output, stdout=file, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: DLIO failed:\n{log.read_text()[-4000:]}")


def _environment() -> dict[str, str]:
    places = (HERE / "stand_ins", HERE.parent, HERE.parents[1])
    # DLIO's own tracing of each call is left out, which it has no figures from.
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "DFTRACER_ENABLE": "0",
    }


def figures_of(
    epochs: Sequence[Mapping[str, Any]], counted: Mapping[str, float], num_rows: int
) -> Run:
    """The figures of a run.

    Args:
        epochs: What DLIO reports of each, as one block.
        counted: What the loader counted in all of them.
        num_rows: That an epoch must have read.

    Returns:
        "m_rows_per_cpu_s", of the loop and all that it started; and medians of the epochs:
        "m_rows_per_s" and "au_percent" as DLIO reports them, "steady_m_rows_per_s" and "step_ms"
        without the first step, and "wait_ms", the median time in which a step waits for its batch.
    """
    steps = [len(epoch["proc"]["block1"]) * BATCH_SIZE for epoch in epochs]
    if {*steps, counted["num_rows"] / len(epochs)} != {num_rows}:
        raise SystemExit(
            f"expected {num_rows} rows in each epoch, found {steps} in DLIO's steps and "
            f"{counted['num_rows']} in all batches"
        )
    in_all = {"m_rows_per_cpu_s": counted["num_rows"] / counted["cpu_s"] / 1e6}
    return in_all | _medians([_figures(epoch, num_rows) for epoch in epochs])


def _figures(epoch: Mapping[str, Any], num_rows: int) -> Run:
    steps_s, waits_s = epoch["proc"]["block1"], epoch["load"]["block1"]
    rows_per_s: float = epoch["throughput"]["block1"]
    steady_s = num_rows / rows_per_s - steps_s[0]
    return {
        "m_rows_per_s": rows_per_s / 1e6,
        "steady_m_rows_per_s": (num_rows - BATCH_SIZE) / steady_s / 1e6,
        "au_percent": epoch["au"]["block1"],
        "wait_ms": statistics.median(waits_s[1:]) * 1e3,
        "step_ms": steady_s / (len(steps_s) - 1) * 1e3,
    }


def main(description: str) -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    arguments = _parse(description)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.directory or temporary)
        directory.mkdir(parents=True, exist_ok=True)
        python = python_with(directory / "dlio", alone=PACKAGES)
        of = DLRM.smaller(8 if arguments.small else 4)
        runner = Runner(
            python=python,
            folder=_written(python, directory, of),
            scratch=Path(temporary),
            of=of,
        )
        sides = _compare(runner, arguments.side or list(SIDES), arguments.repeats)
        result = {
            "ok": True,
            "num_rows": of.num_rows,
            "computation_ms": round(BATCH_SIZE / ROWS_PER_S_OF_ACCELERATOR * 1e3, 3),
            "stored_mb": {path.name: _stored_mb(path) for path in runner.folder.iterdir()},
            "sides": sides,
        }
    print_result(result)
    return 0 if result["ok"] else 1


def _parse(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="half of the rows, each side once")
    parser.add_argument("--side", action="append", choices=SIDES, help="only this one")
    parser.add_argument("--repeats", type=int, help="3, or 1 with --small")
    parser.add_argument("--directory", help="keep DLIO and the rows here, and use them again")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.small else 3)
    return arguments


def _written(python: str, directory: Path, of: PlainWorkload) -> Path:
    print("writing what is missing of the rows", flush=True)
    command = [python, "-m", "dlio.rows", str(directory), str(of.num_files)]
    done = subprocess.run(
        command, env=_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(done.stdout.splitlines()[-1])


def _stored_mb(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file())
    return round(sum(path.stat().st_size for path in files) / 1e6, 1)


def _compare(runner: Runner, names: list[str], repeats: int) -> dict[str, Any]:
    """The sides in turn, without a simulated accelerator ("rate") and with one, unless it would be
    all but idle; medians of the runs.
    """
    computations = {"rate": 0.0, "accelerator": BATCH_SIZE / ROWS_PER_S_OF_ACCELERATOR}
    runs: dict[tuple[str, str], list[Run]] = {}
    for _ in range(repeats):
        for kind, computation_s in computations.items():
            for name in names:
                if computation_s and SIDES[name].rows_of_one_file:
                    continue
                found = runner.run(SIDES[name], computation_s=computation_s)
                print(f"{name}, {kind}: {found}", flush=True)
                runs.setdefault((name, kind), []).append(found)
    result: dict[str, Any] = {name: {} for name in names}
    for (name, kind), of_kind in runs.items():
        figures = _medians(of_kind).items()
        result[name][kind] = {key: float(f"{value:.4g}") for key, value in figures}
    return result


def _medians(runs: Sequence[Run]) -> Run:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}
