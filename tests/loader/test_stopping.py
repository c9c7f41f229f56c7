from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore._native.loading import KERNELS
from featstore.errors import StateError
from featstore.loader.rows.memory_budget import Budget
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from featstore.schema import Slot, SlotKind

SLOT = Slot(name="a", kind=SlotKind.ID)


@pytest.mark.skipif(KERNELS is None, reason="Arrow reads a row group as a whole")
def test_a_row_group_is_read_no_further_once_the_iteration_is_closed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "a.parquet")
    budget = Budget(None)
    with OpenFile(tmp_path / "a.parquet", cancelled=budget.closed) as file:
        reader = RowGroupReader(file, Selection(slots=(SLOT,)), as_values=True, use_threads=False)
        ids: Any = reader.read([0]).slot(SLOT)
        assert ids.tolist() == [1, 2, 3]
        budget.close()
        with pytest.raises(StateError):
            reader.read([0])
