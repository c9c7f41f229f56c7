"""Units: what they hold while they write."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.unit import UnitTask, write_unit
from featstore.spec.parse import load_spec

NUM_ROWS = 100
DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string"},
    "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
}


@pytest.mark.parametrize("values", ["none", "top"])
@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("rows_per_row_group", [NUM_ROWS, 3 * NUM_ROWS])
def test_no_batch_is_held_while_the_next_one_is_extracted(
    tmp_path: Path, values: str, statistics: bool, rows_per_row_group: int
) -> None:
    output = {"statistics": statistics, "rows_per_row_group": rows_per_row_group}
    spec = load_spec(DOCUMENT | {"values": values, "output": output})
    task = UnitTask(spec=spec, table_url=str(tmp_path), run_id="run", tag="tag")
    extractor = Extractor(spec)
    made: list[weakref.ref[pa.RecordBatch]] = []

    def extracted() -> Iterator[pa.RecordBatch]:
        raw = pa.RecordBatch.from_pydict({"user": [str(i) for i in range(NUM_ROWS)]})
        for number in range(5):
            # Texts of values are looked for once there is a second batch.
            num_held = 1 if number == 1 and values == "top" else 0
            assert sum(batch() is not None for batch in made) == num_held
            batch = extractor(raw)
            made.append(weakref.ref(batch))
            yield batch
            del batch

    (report,) = write_unit(task, {}, extractor, extracted())
    assert (report.num_rows, len(made)) == (5 * NUM_ROWS, 5)
