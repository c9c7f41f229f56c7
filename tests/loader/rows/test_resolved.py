from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.loader.rows.resolved import Resolved
from featstore.reading.footer import Footer, Selection
from featstore.schema import Slot, SlotKind

A, B = (Slot(name=name, kind=SlotKind.ID) for name in "ab")
SELECTION = Selection(slots=(A, B))


def footer(directory: Any, name: Any, **columns: Any) -> Footer:
    pq.write_table(pa.table(columns), directory / name)
    return Footer(directory / name)


def test_a_selection_is_looked_for_once_in_files_of_one_schema_and_anew_in_others(
    tmp_path: Path,
) -> None:
    resolved = Resolved()
    first, alike = (footer(tmp_path, name, a=[1], b=[2]) for name in ("1", "2"))
    found = resolved.of(first, SELECTION)
    assert found == first.resolve(SELECTION)
    assert resolved.of(alike, SELECTION) is found
    for other in (
        footer(tmp_path, "3", b=[1], a=[2]),
        footer(tmp_path, "4", a=[1]),
        footer(tmp_path, "5", x=[[1]], b=[1]),
    ):
        assert resolved.of(other, SELECTION) == other.resolve(SELECTION) != found
        assert resolved.of(first, SELECTION) is found
    assert resolved.of(first, Selection(slots=(A,))).slots == {"a": "a"}


def test_only_a_few_selections_are_kept(tmp_path: Path) -> None:
    resolved, file = Resolved(), footer(tmp_path, "1", a=[1], b=[2])
    first = resolved.of(file, SELECTION)
    for _ in range(5):
        resolved.of(file, Selection(slots=(A,)))
    assert resolved.of(file, SELECTION) is not first
