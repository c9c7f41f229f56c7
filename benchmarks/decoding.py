"""Where the floor itself can be beaten: how a file is written, and who decodes it.

The same rows (decoding_parts/variants.py) are written in many ways. Of each file lists and scalars
are read apart, in turn in one process and one thread, by Arrow's `read_row_group`, by Arrow with
the conversion to buffers without nulls that a batch needs, and by featstore's kernels, which leave
to Arrow what they do not know (decoding_parts/readers.py). Opening the file is part of each.
Figures are medians: nanoseconds a value by wall clock and by CPU time, ratios of neighbouring runs,
bytes a value on disk. Then the kinds of columns apart, what the kernels spend their time on, both
cores, and codecs for the demo's click log.

Demanded: equal values in every file, and for lists as pyarrow writes them by default at most 0.7 of
the CPU time of `read_row_group` alone.

    python benchmarks/decoding.py [--small] [--directory DIR]
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from decoding_parts import click_log, readers
from decoding_parts.variants import (
    DEFAULT,
    KINDS,
    OWN,
    SCHEMA,
    VARIANTS,
    nullable_rows,
    required_rows,
    write,
)
from featstore.base.schema import Slot
from loader_parts import measuring
from shared_parts.machine import print_result

MOST_OF_ARROW, REPEATS = 0.7, 5
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
READERS = {"arrow": readers.arrow, "converted": readers.converted, "native": readers.native}
KINDS_APART = {
    **{
        f"lists, {label}": [f"l{3 * place + 1}", f"l{3 * place + 2}"]
        for place, label in enumerate(("100", "10k", "1M"))
    },
    "lists, nulls": ["l0", "l3", "l6"],
    **{
        f"ids, {label}": [f"i{3 * place + 1}", f"i{3 * place + 2}"]
        for place, label in enumerate(("100", "10k", "1M"))
    },
    "ids, nulls": ["i0", "i3", "i6"],
    "floats": ["f1", "f2", "f4", "f5"],
}
APART_OF = (DEFAULT, OWN, "featstore, plain", "featstore, uncompressed")
Figures = dict[str, Any]
Files = Mapping[str, Path]
Key = tuple[str, str, str]  # variant, kind, reader
Seconds = dict[str, dict[Key, list[float]]]  # by clock


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as made:
        directory = Path(arguments.directory or made)
        files, rows = _files(directory, arguments.rows)
        clicks = click_log.write(directory)
        if arguments.write_only:
            return 0
        gc.freeze()
        result = _compare(files, rows, REPEATS)
        result["click_log"] = _click_log(*clicks, 3 * REPEATS)
    result["ok"] = result["ok"] and result["click_log"]["is_equal"]
    print_result(result)
    return 0 if result["ok"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="131,072 rows instead of 196,608")
    parser.add_argument("--directory", help="keep the files here, and use them again")
    parser.add_argument(
        "--write-only", action="store_true", help="write the files, and measure nothing"
    )
    arguments = parser.parse_args()
    arguments.rows = 1 << 17 if arguments.small else 3 << 16
    return arguments


def _files(directory: Path, num_rows: int) -> tuple[Files, dict[bool, pa.Table]]:
    """The files by variant, those that are not there yet written; the rows by whether they are
    required.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with_nulls = nullable_rows(num_rows)
    rows = {False: with_nulls, True: required_rows(with_nulls)}
    files = {
        name: directory / f"{number}-{num_rows}.parquet" for number, name in enumerate(VARIANTS)
    }
    for name, path in files.items():
        if not path.exists():
            write(rows[VARIANTS[name].is_required], VARIANTS[name], path)
    return files, rows


def _compare(files: Files, rows: Mapping[bool, pa.Table], repeats: int) -> Figures:
    differing = {
        name: readers.differing(path, SCHEMA.slots, rows[VARIANTS[name].is_required])
        for name, path in files.items()
    }
    counts = {kind: readers.num_values(rows[True], slots) for kind, slots in KINDS.items()}
    seconds = _seconds(
        {
            (name, kind): (path, slots)
            for name, path in files.items()
            for kind, slots in KINDS.items()
        },
        repeats,
    )
    variants = {name: _variant(name, files, seconds, counts) for name in files}
    native = variants[DEFAULT]["lists"]["native_of_arrow"]["cpu"]
    return {
        "rows": len(rows[True]),
        "values": counts,
        "variants": variants,
        "columns": _columns_apart(files, rows[True], repeats),
        "parts": {name: _parts(files[name], counts, repeats) for name in (DEFAULT, OWN)},
        "two_cores": _two_cores(files, sum(counts.values()), repeats),
        "differing": {name: slots for name, slots in differing.items() if slots},
        "native_of_arrow_lists": native,
        "bound": MOST_OF_ARROW,
        "ok": not any(differing.values()) and native <= MOST_OF_ARROW,
    }


def _seconds(
    cases: Mapping[tuple[str, str], tuple[Path, Sequence[Slot]]],
    repeats: int,
    *,
    use_threads: bool = False,
) -> Seconds:
    """What each reader takes of each case, all in turn."""
    runs = {
        (*case, name): partial(read, path, slots, use_threads=use_threads)
        for case, (path, slots) in cases.items()
        for name, read in READERS.items()
    }
    named = {json.dumps(key): run for key, run in runs.items()}
    taken = measuring.by_clocks(named, repeats, list(CLOCKS.values()))
    return {
        clock: {key: found[json.dumps(key)] for key in runs}
        for clock, found in zip(CLOCKS, taken, strict=True)
    }


def _variant(name: str, files: Files, seconds: Seconds, counts: Mapping[str, int]) -> Figures:
    """A file's figures, printed as a line of a table."""
    figures: Figures = {kind: _kind(seconds, (name, kind), counts[kind]) for kind in KINDS}
    for kind, slots in KINDS.items():
        figures[kind]["bytes"] = round(readers.stored_bytes(files[name], slots) / counts[kind], 2)
        figures[kind]["left_to_arrow"] = readers.left_to_arrow(files[name], slots)
    figures["of_featstores"] = {
        "bytes": round(files[name].stat().st_size / files[OWN].stat().st_size, 3),
        **{reader: _of(seconds["cpu"], reader, name, OWN) for reader in READERS},
    }
    texts = [f"{name:38}"]
    for kind in KINDS:
        of = figures[kind]
        texts.append(
            " ".join(f"{of['ns'][reader]['cpu']:6.2f}" for reader in READERS)
            + f" x{of['native_of_arrow']['cpu']:.2f}"
        )
        texts.append(f"{of['bytes']:5.2f} B, {of['left_to_arrow']} to Arrow")
    print(" | ".join(texts), figures["of_featstores"], flush=True)
    return figures


def _kind(seconds: Seconds, case: tuple[str, str], count: int) -> Figures:
    """Nanoseconds a value of each reader, and the kernels' time as a share of the others'."""
    of = {
        clock: {name: found[(*case, name)] for name in READERS} for clock, found in seconds.items()
    }
    shares = {
        f"native_of_{other}": {
            clock: _share(found["native"], found[other]) for clock, found in of.items()
        }
        for other in ("arrow", "converted")
    }
    ns = {
        name: {
            clock: round(statistics.median(of[clock][name]) / count * 1e9, 2) for clock in CLOCKS
        }
        for name in READERS
    }
    return {"ns": ns, **shares}


def _share(taken: Sequence[float], of: Sequence[float]) -> float:
    return round(statistics.median(own / other for own, other in zip(taken, of, strict=True)), 3)


def _of(seconds: Mapping[Key, list[float]], reader: str, name: str, other: str) -> float:
    """A file's time, lists and scalars together, as a share of another's in the same round."""
    sums = [
        [sum(of) for of in zip(*(seconds[each, kind, reader] for kind in KINDS), strict=True)]
        for each in (name, other)
    ]
    return _share(*sums)


def _columns_apart(files: Files, rows: pa.Table, repeats: int) -> Figures:
    """Each kind of columns alone, of a few files: CPU nanoseconds and bytes a value."""
    slots = {kind: [SCHEMA[name] for name in names] for kind, names in KINDS_APART.items()}
    counts = {kind: readers.num_values(rows, of) for kind, of in slots.items()}
    seconds = _seconds(
        {(name, kind): (files[name], of) for name in APART_OF for kind, of in slots.items()},
        repeats,
    )
    figures = {
        name: {
            kind: {
                reader: found["cpu"]
                for reader, found in _kind(seconds, (name, kind), counts[kind])["ns"].items()
            }
            | {"bytes": round(readers.stored_bytes(files[name], of) / counts[kind], 2)}
            for kind, of in slots.items()
        }
        for name in APART_OF
    }
    for name, found in figures.items():
        for kind, of in found.items():
            print(f"{name:38} {kind:14} {of}", flush=True)
    return figures


def _click_log(files: Files, slots: Sequence[Slot], repeats: int) -> Figures:
    """The demo's slots by codec: CPU nanoseconds and bytes a value, and each as a share of what the
    writer makes.
    """
    rows = pq.read_table(files[click_log.SNAPPY])
    count = readers.num_values(rows, slots)
    seconds = _seconds({(name, "all"): (path, slots) for name, path in files.items()}, repeats)
    figures: Figures = {
        "is_equal": not any(readers.differing(path, slots, rows) for path in files.values())
    }
    for name, path in files.items():
        figures[name] = _kind(seconds, (name, "all"), count) | {
            "bytes": round(readers.stored_bytes(path, slots) / count, 2),
            "left_to_arrow": readers.left_to_arrow(path, slots),
            "of_featstores": {
                "bytes": round(path.stat().st_size / files[click_log.SNAPPY].stat().st_size, 3),
                **{
                    reader: _share(
                        seconds["cpu"][name, "all", reader],
                        seconds["cpu"][click_log.SNAPPY, "all", reader],
                    )
                    for reader in READERS
                },
            },
        }
        print(f"{name:38} {figures[name]}", flush=True)
    return figures


def _parts(path: Path, counts: Mapping[str, int], repeats: int) -> Figures:
    """CPU nanoseconds a value in each part of what the kernels' reader does."""
    figures = {}
    for kind, slots in KINDS.items():
        rounds = [readers.parts(path, slots) for _ in range(repeats + 1)][1:]
        figures[kind] = {
            part: round(statistics.median(taken[part] for taken in rounds) / counts[kind] * 1e9, 2)
            for part in rounds[0]
        }
        print(f"{path.name} {kind}: {figures[kind]}", flush=True)
    return figures


def _two_cores(files: Files, count: int, repeats: int) -> Figures:
    """All columns at once, on both cores."""
    measuring.limit_cores(2)
    seconds = _seconds(
        {(name, "all"): (files[name], SCHEMA.slots) for name in (DEFAULT, OWN)},
        repeats,
        use_threads=True,
    )
    figures = {name: _kind(seconds, (name, "all"), count) for name in (DEFAULT, OWN)}
    print(f"two cores: {figures}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
