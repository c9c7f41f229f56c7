"""What a start costs: two commands of the command line, and a fresh process up to its first batch.

CPU seconds, of all threads, as the median of several fresh processes. Modules are compiled before,
as an installation leaves them. A process that trains imports torch and pyarrow first; that is told,
and not counted.

    python benchmarks/start.py [--small]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shared_parts.compiled import compiled_environment
from shared_parts.machine import print_result
from staging_parts.table import Remote, served

ALLOWED_HELP_S, ALLOWED_INSPECT_S, ALLOWED_FIRST_BATCH_S = 0.4, 1.0, 0.4
NUM_FILES, FILE_ROWS = 4, 65_536
# Arguments: the table, further options as JSON, modules to import first.
FIRST_BATCH = """
import json, sys, time
begun = time.process_time()
import torch, pyarrow, pyarrow.parquet
for name in sys.argv[3:]:
    __import__(name)
imported = time.process_time()
import featstore
loader = featstore.FeatureLoader(
    sys.argv[1], slots=["id*", "x*"], labels=["click"], batch_size=4096, **json.loads(sys.argv[2])
)
made = time.process_time()
batch = next(iter(loader))
assert batch["id00"].shape == (4096,) and batch.labels["click"].shape == (4096,)
ended = time.process_time()
print(json.dumps({"imports_s": imported - begun, "made_s": made - imported,
                  "first_batch_s": ended - imported}))
loader.close()
"""


def main() -> int:
    """Prints one line a start and one line `RESULT {json}`; 1 where a figure is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="3 processes of each, not 9")
    repeats = 3 if parser.parse_args().small else 9
    with tempfile.TemporaryDirectory() as made:
        result = _measured(Path(made), repeats)
    result["ok"] = (
        result["help_s"] <= ALLOWED_HELP_S
        and max(result["inspect_s"].values()) <= ALLOWED_INSPECT_S
        and max(of["first_batch_s"] for of in result["first_batch"].values())
        <= ALLOWED_FIRST_BATCH_S
    )
    result["allowed_s"] = {
        "help": ALLOWED_HELP_S,
        "inspect": ALLOWED_INSPECT_S,
        "first_batch": ALLOWED_FIRST_BATCH_S,
    }
    print_result(result)
    return 0 if result["ok"] else 1


def _measured(root: Path, repeats: int) -> dict[str, Any]:
    plain, delta = _write(root)
    compiled = compiled_environment(root)
    program = str(Path(sys.executable).with_name("featstore"))
    tables = {"plain": plain, "delta": delta}
    with served(root, Remote(name="store", latency_s=0.0, bytes_per_s=0)) as url:
        starts: dict[str, list[str]] = {
            "plain directory": [plain, "{}"],
            "Delta table": [delta, "{}"],
            # Arrow evaluates expressions with its acero, which imports pandas if it is installed.
            "Delta table, where": [delta, '{"where": "id00 < 900 and x0 > 0.1"}', "pyarrow.acero"],
            "staged from a server": [f"{url}/{Path(plain).name}/part-0.parquet", "{}"],
            "plain directory, shuffled": [plain, '{"shuffle": true}'],
        }

        result: dict[str, Any] = {
            "help_s": _cpu_s([program, "--help"], compiled, repeats),
            "inspect_s": {
                name: _cpu_s([program, "table", "inspect", of], compiled, repeats)
                for name, of in tables.items()
            },
            "first_batch": {
                name: _first_batch(arguments, compiled, repeats)
                for name, arguments in starts.items()
            },
        }
        # What a source tree costs whose modules are compiled by every process.
        never = os.environ | {
            "PYTHONPYCACHEPREFIX": str(root / "none"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        result["first_batch_not_compiled"] = _first_batch(starts["Delta table"], never, repeats)
    print("Delta table, nothing compiled before:", result["first_batch_not_compiled"])
    return result


def _write(root: Path) -> tuple[str, str]:
    """The same rows as a plain directory and as a Delta table."""
    draw = np.random.default_rng(0)
    plain, delta = root / "plain", root / "delta"
    plain.mkdir()
    for index in range(NUM_FILES):
        ids = {f"id{i:02}": draw.integers(1, 1_000, FILE_ROWS) for i in range(20)}
        floats = {f"x{i}": draw.random(FILE_ROWS, np.float32) for i in range(8)}
        click = {"click": draw.integers(0, 2, FILE_ROWS).astype(np.float32)}
        rows = pa.table({**ids, **floats, **click})
        pq.write_table(rows, plain / f"part-{index}.parquet")
        deltalake.write_deltalake(str(delta), rows, mode="append")
    return str(plain), str(delta)


def _cpu_s(command: Sequence[str], environment: dict[str, str], repeats: int) -> float:
    """Median CPU seconds of a command, after one run that compiles what it imports."""
    found = []
    for _ in range(repeats + 1):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        found.append(usage.ru_utime + usage.ru_stime)
    cpu_s = round(statistics.median(found[1:]), 3)
    print(f"{' '.join(['featstore', *command[1:-1], Path(command[-1]).name])}: {cpu_s} s")
    return cpu_s


def _first_batch(
    arguments: Sequence[str], environment: dict[str, str], repeats: int
) -> dict[str, float]:
    """Medians of what `FIRST_BATCH` prints, after one run that compiles what it imports."""
    command = [sys.executable, "-c", FIRST_BATCH, *arguments]
    printed = [
        json.loads(
            subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        )
        for _ in range(repeats + 1)
    ]
    found = {key: round(statistics.median(of[key] for of in printed[1:]), 3) for key in printed[0]}
    print(Path(arguments[0]).name, *arguments[1:], found)
    return found


if __name__ == "__main__":
    sys.exit(main())
