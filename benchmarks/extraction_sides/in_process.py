"""featstore's local engine or polars on so many cores, in a process of its own: CPU seconds of the
job, imports left out.

python -m extraction_sides.in_process featstore|polars RAW OUT NUM_SLOTS ROWS_PER_FILE NUM_CORES
"""

import importlib
import json
import os
import resource
import sys
import time

from extraction_sides.workload import features, spec_of


def main() -> None:
    side, raw, out = sys.argv[1:4]
    num_slots, rows_per_file, num_cores = map(int, sys.argv[4:])
    os.sched_setaffinity(
        0, sorted(os.sched_getaffinity(0))[:num_cores]
    )  # before the engines count their cores
    chosen = features(num_slots, maps=False)
    if side == "polars":
        in_polars = importlib.import_module("extraction_sides.in_polars")
        started = _now()
        in_polars.write_features(raw, f"{out}/part.parquet", chosen)
    else:
        api = importlib.import_module("featstore.api")
        started = _now()
        api.extract(spec_of(chosen, rows_per_file), raw, out)
    cpu_s, wall_s = (after - before for before, after in zip(started, _now(), strict=True))
    print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s}))


def _now() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.perf_counter()


if __name__ == "__main__":
    main()
