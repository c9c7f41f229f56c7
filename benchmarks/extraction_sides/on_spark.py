"""featstore's file input and hand-written Catalyst expressions in one Spark session, in turn, over
the same raw files.

Runs in a process of its own, which has no children but Spark's. Session start and one round of all
sides (classes loaded, code compiled, Python workers started) are left out; every job after that is
measured by the CPU seconds that the whole process tree spends from rest to rest. Before each job, of
whichever side, Python workers are started again by a small extraction that is not measured. Prints
one line of JSON.

    python -m extraction_sides.on_spark RAW OUT NUM_SLOTS ROWS_PER_FILE NUM_ROUNDS SIDE...
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from extraction_sides import catalyst
from extraction_sides.comparing import differences
from extraction_sides.workload import features, num_blocks, spec_of, write_raw
from featstore import api
from featstore.extraction.spark.runners import spark_session
from featstore.spec.parse import load_spec
from shared_parts.process_tree import peak_worker_bytes, settle, spent_s, tree_cpu_s

_LIMIT = "spark.sql.codegen.hugeMethodLimit"
_CORES = 2
_FEW_ROWS = 2_048
_CONF = {
    "spark.master": f"local[{_CORES}]",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
}


def main() -> None:
    raw, out, (num_slots, rows_per_file, num_rounds) = (
        sys.argv[1],
        Path(sys.argv[2]),
        map(int, sys.argv[3:6]),
    )
    chosen = features(num_slots)
    spec = load_spec(spec_of(chosen, rows_per_file))
    spark = spark_session("benchmark", _CONF)
    spark.sparkContext.setLogLevel("ERROR")
    as_it_is = spark.conf.get(_LIMIT)
    few_rows = out / "few-rows"
    write_raw(few_rows, _FEW_ROWS, _CORES, num_blocks(num_slots))

    def expressions(side: str, limit: str) -> None:
        spark.conf.set(_LIMIT, limit)
        catalyst.write_features(spark, raw, str(out / side), chosen)

    def start_workers() -> None:
        """Spark ends Python workers that had nothing to do for a minute, which the other sides can
        take.
        """
        api.extract(spec, str(few_rows), str(out / "started"), spark=spark)
        shutil.rmtree(out / "started")

    sides: dict[str, Callable[[], Any]] = {
        "featstore": lambda: api.extract(spec, raw, str(out / "featstore"), spark=spark),
        "catalyst": lambda: expressions("catalyst", as_it_is),
        "catalyst_tuned": lambda: expressions("catalyst_tuned", "8000"),
    }
    sides = {side: job for side, job in sides.items() if side in ("featstore", *sys.argv[6:])}
    spent: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    peak_bytes = 0
    for _ in range(num_rounds + 1):
        for side, job in sides.items():
            shutil.rmtree(out / side, ignore_errors=True)
            start_workers()
            spent[side].append(_spent(job))
            peak_bytes = max(
                peak_bytes, peak_worker_bytes()
            )  # a worker ends when it has nothing to do for a minute
            print(
                f"{num_slots} slots, {side}: {spent[side][-1][0]:.2f} CPU s",
                file=sys.stderr,
                flush=True,
            )
    different = {
        side: differences(out / "featstore", out / side) for side in sides if side != "featstore"
    }
    figures = {side: spent[side][1:] for side in sides}
    first = {side: spent[side][0] for side in sides}
    print(
        json.dumps(
            {
                "spent": figures,
                "first": first,
                "peak_worker_bytes": peak_bytes,
                "different": different,
            }
        )
    )
    spark.stop()


def _spent(job: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of the process tree from rest to rest, and seconds of the job alone."""
    settle()
    before, started = tree_cpu_s(), time.perf_counter()
    job()
    wall_s = time.perf_counter() - started
    settle()
    return spent_s(before, tree_cpu_s()), wall_s


if __name__ == "__main__":
    main()
