"""What it costs to change a table that lives: slots added to a day, labels written anew, many files
committed and opened.

A day of 200 slots is extracted; then 10 slots are added to it as a slot group, once made of narrow
raw columns and once of wide ones (lists of text), and its labels are written anew by key. Each is
held against extracting the day anew with all that, in turn in one process, each reading its spec
anew: bytes written and CPU seconds of all threads, each ratio of neighbouring runs, the result the
median. After the first of them, what was added is compared with what extracting anew gave, value by
value. The join of raw logs is measured by `label_join.py`, and told here too but for `--small`, to
stay within five minutes.

    python benchmarks/table_life.py [--small] [--rows N] [--repeats N]
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import label_join
from featstore import api
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.explore.table import open_table
from featstore.extraction.job import ExtractReport
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.groups import groups_commit, publish_group
from featstore.table.layout import data_file_name, group_file_path, group_url, new_tag
from featstore.table.metadata import CommitMetadata
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, files_digest
from shared_parts.machine import print_result

REQUIRED = {"narrow": 0.1, "wide": 0.15, "relabel": 0.05}
REQUIRED_S = 1.0
NUM_FILES = 10_000
NUM_TEXTS, NUM_NUMBERS, NUM_LISTS, NUM_WIDE = 20, 20, 10, 10
_AT_ONCE = 30  # slots that are compared in memory
DAY = {"dt": "2026-11-01"}


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="400,000 rows instead of 1,600,000")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    num_rows = arguments.rows or (400_000 if arguments.small else 1_600_000)
    with tempfile.TemporaryDirectory() as directory:
        result = measure(Path(directory), num_rows, arguments.repeats) | measure_files(
            Path(directory)
        )
    if not arguments.small:
        result["join"] = label_join.measure(small=False)
    result["ok"] = all(figure["ok"] for figure in result.values())
    print_result(result | {"num_rows": num_rows})
    return 0 if result["ok"] else 1


def measure(directory: Path, num_rows: int, num_repeats: int) -> dict[str, Any]:
    """The ratios to extracting the day anew, by what is done instead."""
    raw = directory / "raw"
    write_raw(raw, num_rows)
    base = directory / "base"
    api.extract(base_spec(), raw, base, partition=DAY)
    figures: dict[str, Any] = {}
    for name, added in (("narrow", narrow_slots()), ("wide", wide_slots())):
        spec = partial(base_spec, added)

        def add(table: Path, spec: Callable[[], Spec] = spec) -> ExtractReport:
            return api.extract(spec(), raw, table, partition=DAY, group="added")

        figures[name] = _compare(directory, name, add, spec, raw, base, num_repeats)

    def relabel(table: Path) -> ExtractReport:
        return api.relabel(base_spec(), raw, table, key="request_id", partition=DAY)

    figures["relabel"] = _compare(directory, "relabel", relabel, base_spec, raw, base, num_repeats)
    return figures


def _compare(
    directory: Path,
    name: str,
    change: Callable[[Path], ExtractReport],
    spec: Callable[[], Spec],
    raw: Path,
    base: Path,
    num_repeats: int,
) -> dict[str, Any]:
    """The change of a copy of the base against the day extracted anew, in turn."""
    ratios_cpu, ratios_bytes = [], []
    for i in range(num_repeats):
        copy, anew = directory / "copy", directory / "anew"
        shutil.copytree(base, copy)
        cpu_s, size_bytes = _cpu_s(change, copy)
        whole_s, whole_bytes = _cpu_s(
            lambda table: api.extract(spec(), raw, table, partition=DAY), anew
        )
        if i == 0:
            _require_same(copy, anew)
        ratios_cpu.append(cpu_s / whole_s)
        ratios_bytes.append(size_bytes / whole_bytes)
        print(
            f"{name}: {cpu_s:.2f} of {whole_s:.2f} CPU s, {size_bytes:,} of {whole_bytes:,} bytes",
            flush=True,
        )
        shutil.rmtree(copy)
        shutil.rmtree(anew)
    cpu, written, required = (
        statistics.median(ratios_cpu),
        statistics.median(ratios_bytes),
        REQUIRED[name],
    )
    ok = cpu <= required and written <= required
    return {
        "cpu_ratio": round(cpu, 4),
        "bytes_ratio": round(written, 4),
        "required": required,
        "ok": ok,
    }


def _cpu_s(run: Callable[[Path], ExtractReport], table: Path) -> tuple[float, int]:
    start = time.process_time()
    report = run(table)
    return time.process_time() - start, report.size_bytes


def _require_same(changed: Path, anew: Path) -> None:
    """The same slots and labels, row by row."""
    one, other = open_table(changed), open_table(anew)
    names = [slot.name for slot in other.slots]
    for some in (names[i : i + _AT_ONCE] for i in range(0, len(names), _AT_ONCE)):
        columns = [*some, "click"]
        if (
            not one.to_arrow(slots=some)
            .select(columns)
            .equals(other.to_arrow(slots=some).select(columns))
        ):
            raise ValueError(
                f"slots {', '.join(some)}: expected the values of the day extracted anew, found "
                f"others"
            )


def measure_files(directory: Path) -> dict[str, Any]:
    """Seconds to commit and to open a table of 10,000 files, alone and with as many files of a slot
    group.
    """
    url, group = str(directory / "many"), group_url(str(directory / "many"), "added")
    slots = tuple(Slot(name=f"slot{i}", kind=SlotKind.ID, number=i) for i in range(1, 201))
    schema = SlotSchema(slots=slots, partition_keys=(pa.field("dt", pa.string()),))
    names = [
        f"dt=2026-11-{i % 28 + 1:02d}/{data_file_name(new_tag('r'), i, 0)}"
        for i in range(NUM_FILES)
    ]
    files = tuple(file_of(url, name) for name in names)
    bound = tuple(
        file_of(group, group_file_path(name, data_file_name(new_tag("g"), i, 0)))
        for i, name in enumerate(names)
    )
    seconds = {
        "commit": _seconds(lambda: commit_files(url, schema, files)),
        "open": _seconds(lambda: open_snapshot(url)),
    }
    added = SlotSchema(
        slots=(Slot(name="new", kind=SlotKind.ID, number=300),),
        partition_keys=schema.partition_keys,
    )
    commit_files(group, added, bound)
    base = delta.open_delta(url)
    metadata = groups_commit("g", base, bound)
    seconds["name_group"] = _seconds(lambda: publish_group(base, "added", 0, (DAY,), metadata))
    seconds["open_with_group"] = _seconds(lambda: open_snapshot(url))
    if sum(len(file.groups) for file in open_snapshot(url).data_files) != NUM_FILES:
        raise ValueError(f"expected a file of the group beside each of {NUM_FILES} files")
    print(seconds, flush=True)
    required = {"commit", "open"}
    return {
        f"{name}_{NUM_FILES}_files_s": {
            "seconds": round(found, 3),
            "required": REQUIRED_S if name in required else None,
            "ok": found <= REQUIRED_S or name not in required,
        }
        for name, found in seconds.items()
    }


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def file_of(url: str, path: str) -> DataFile:
    day = path[len("dt=") :].partition("/")[0]
    return DataFile(
        path=path, url=f"{url}/{path}", size_bytes=10**8, num_rows=10**6, partition={"dt": day}
    )


def commit_files(url: str, schema: SlotSchema, files: tuple[DataFile, ...]) -> int:
    days = tuple({"dt": str(day)} for day in sorted({str(file.partition["dt"]) for file in files}))
    metadata = CommitMetadata(
        run_id="many",
        spec_hash="s",
        spec_version=1,
        input_digest=None,
        data_digest=files_digest(files),
        partitions=days,
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )
    return delta.commit(
        url, delta.Change(base=None, schema=schema, partitions=days, files=files, metadata=metadata)
    )


def base_spec(added: tuple[dict[str, Any], ...] = ()) -> Spec:
    """200 slots over texts, numbers and lists, and those that are added."""
    texts = [f"text{i}" for i in range(NUM_TEXTS)]
    slots = [_slot(f"text{i}_id", "hash", f"text{i}") for i in range(NUM_TEXTS)]
    slots += [_slot(f"list{i}_ids", "hash", f"list{i}") for i in range(NUM_LISTS)]
    slots += [_slot(f"number{i}_log", "log1p", f"number{i}") for i in range(NUM_NUMBERS)]
    slots += [
        _slot(f"number{i}_bin", "bucketize", f"number{i}", boundaries=[1, 10, 50])
        for i in range(NUM_NUMBERS)
    ]
    slots += [_slot(f"list{i}_x_text0", "cross", [f"list{i}", "text0"]) for i in range(NUM_LISTS)]
    pairs = [(one, other) for i, one in enumerate(texts) for other in texts[i + 1 :]]
    slots += [
        _slot(f"{one}_x_{other}", "cross", [one, other]) for one, other in pairs[: 200 - len(slots)]
    ]
    numbered = [{**slot, "slot": i} for i, slot in enumerate([*slots, *added], start=1)]
    inputs: dict[str, Any] = {
        **dict.fromkeys(texts, "string"),
        "clicked": "long",
        "request_id": "string",
    }
    inputs |= {f"number{i}": "double" for i in range(NUM_NUMBERS)}
    inputs |= {f"list{i}": "list<string>" for i in range(NUM_LISTS)} | {
        f"wide{i}": "list<string>" for i in range(NUM_WIDE)
    }
    document = {
        "spec": 1,
        "inputs": inputs,
        "labels": {"click": "clicked"},
        "keep": ["request_id"],
        "slots": numbered,
    }
    return load_spec(
        document | {"output": {"rows_per_file": 100_000, "rows_per_row_group": 50_000}}
    )


def narrow_slots() -> tuple[dict[str, Any], ...]:
    """10 slots made of single texts and numbers."""
    crosses = [
        _slot(f"number_x_text{i}", "cross", [f"number{i}_bin", f"text{i}"]) for i in range(4)
    ]
    bins = [
        _slot(f"number{i}_bin2", "bucketize", f"number{i}", boundaries=[2, 20, 90])
        for i in range(3)
    ]
    return (
        *crosses,
        *bins,
        *(_slot(f"number{i}_as_is", "identity", f"number{i}") for i in range(3)),
    )


def wide_slots() -> tuple[dict[str, Any], ...]:
    """10 slots, four of them made of lists of text that no other slot reads."""
    lists = [_slot(f"wide{i}_ids", "hash", f"wide{i}", max_len=5) for i in range(4)]
    return (*lists, *narrow_slots()[:6])


def _slot(name: str, op: str, of: str | list[str], **params: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "of": of, **params}


def write_raw(directory: Path, num_rows: int) -> None:
    """A day of raw rows in four files."""
    directory.mkdir()
    draw = np.random.default_rng(0)
    for i in range(4):
        pq.write_table(
            _raw(draw, num_rows // 4, i * num_rows),
            directory / f"raw-{i}.parquet",
            row_group_size=25_000,
        )


def _raw(draw: np.random.Generator, num_rows: int, first: int) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "request_id": pa.array([f"{first + row:016x}" for row in range(num_rows)]),
        "clicked": pa.array(draw.integers(0, 2, num_rows)),
    }
    for i in range(NUM_TEXTS):
        columns[f"text{i}"] = _texts(draw, num_rows, 10 ** (2 + i % 4))
    for i in range(NUM_NUMBERS):
        columns[f"number{i}"] = pa.array(draw.exponential(20, num_rows))
    for name, mean in [
        *((f"list{i}", 4) for i in range(NUM_LISTS)),
        *((f"wide{i}", 6) for i in range(NUM_WIDE)),
    ]:
        offsets = np.concatenate([[0], np.cumsum(draw.poisson(mean, num_rows))]).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(
            pa.array(offsets), _texts(draw, int(offsets[-1]), 10_000)
        )
    return pa.table(columns)


def _texts(draw: np.random.Generator, num_values: int, num_distinct: int) -> pa.Array:
    known = pa.array([f"value_{value:06d}" for value in range(num_distinct)])
    return known.take(pa.array(draw.integers(0, num_distinct, num_values)))


if __name__ == "__main__":
    sys.exit(main())
