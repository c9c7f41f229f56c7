"""What data files and metadata say of a history: frozen, and refused where it is anything else."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.base.schema import HISTORY as KEY
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.histories.file_format import StoredHistory, histories_of, list_columns
from featstore.loader.feature_loader import FeatureLoader
from tests.history_tables import HISTORY, schema_of

GOLDEN = Path(__file__).parents[1] / "golden"
SLOTS = st.builds(
    Slot,
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
    kind=st.sampled_from(SlotKind),
    shape=st.just((None,)),
    number=st.none() | st.integers(1, 2**31 - 1),
    op=st.none() | st.just("hash"),
    num_indices=st.none() | st.integers(1, 9),
    share_slot=st.none() | st.integers(1, 9),
)


def test_a_data_file_is_read_as_it_was_frozen(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "history_1.parquet", tmp_path / "part.parquet")
    frozen = json.loads((GOLDEN / "history_1.json").read_text())
    schema = pq.read_schema(tmp_path / "part.parquet")
    assert schema.field("clicks_end").metadata[KEY].decode() == frozen["metadata"]
    assert HISTORY.to_metadata() == frozen["metadata"]
    slots = ["row", *frozen["rows"]]
    with FeatureLoader(str(tmp_path), slots=slots, batch_size=100) as loader:
        [batch] = [batch.clone() for batch in loader]
    assert batch["row"].tolist() == list(range(frozen["num_rows"]))
    for name, rows in frozen["rows"].items():
        values, offsets = batch[name].values.tolist(), batch[name].offsets.tolist()
        assert [values[a:b] for a, b in pairwise(offsets)] == rows


def test_a_data_file_has_columns_that_the_schema_lacks() -> None:
    metadata = pq.ParquetFile(GOLDEN / "history_1.parquet").metadata
    columns = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
    stored = {column.path_in_schema: column for column in columns}
    hidden = ["clicks_key", *(f"clicks_{what}.list.element" for what in ("item", "price", "at"))]
    assert list(stored)[-4:] == hidden
    assert "DELTA_BINARY_PACKED" in stored["clicks_at.list.element"].encodings
    assert schema_of().names == ("row", "tags")


@given(st.lists(SLOTS, max_size=3, unique_by=lambda slot: slot.name), st.data())
def test_metadata_give_the_history_again(slots: list[Slot], data: st.DataObject) -> None:
    ages = [slot for slot in slots if slot.kind is SlotKind.FLOAT and data.draw(st.booleans())]
    found = StoredHistory(
        name=data.draw(st.text(st.characters(codec="utf-8"), max_size=4)),
        key="user",
        as_of="ts",
        at="at",
        logged_at=data.draw(st.none() | st.just("arrived")),
        max_len=data.draw(st.integers(1, 2**63 - 1)),
        window_us=data.draw(st.none() | st.integers(1, 2**63 - 1)),
        lists=tuple(slot for slot in slots if slot not in ages),
        ages=tuple((slot, "day") for slot in ages),
    )
    again = StoredHistory.from_metadata(found.to_metadata(), "here")
    assert again == found
    assert again.to_metadata() == found.to_metadata()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.data())
def test_other_metadata_are_a_data_file_error_or_a_history(data: st.DataObject) -> None:
    described: Any = json.loads(HISTORY.to_metadata())
    for _ in range(data.draw(st.integers(1, 3))):
        inner = data.draw(st.sampled_from([described, *described["slots"], *described["derived"]]))
        key = data.draw(st.sampled_from([*inner, "other"]))
        if key in ("slots", "derived") or data.draw(st.booleans()):
            inner.pop(key, None)
            if key in ("slots", "derived"):
                break
        else:
            inner[key] = data.draw(JSON)
    text = json.dumps(described)
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    try:
        found = StoredHistory.from_metadata(text, "here")
    except DataFileError:
        return
    assert StoredHistory.from_metadata(found.to_metadata(), "here") == found


@given(st.binary(max_size=40))
def test_bytes_that_are_no_metadata_are_refused(found: bytes) -> None:
    with pytest.raises(DataFileError, match="here: expected what describes a history"):
        StoredHistory.from_metadata(found, "here")


def test_a_later_format_and_segments_are_refused() -> None:
    text = HISTORY.to_metadata()
    with pytest.raises(DataFileError, match="format 1 or earlier, found format 2; read it with a"):
        StoredHistory.from_metadata(text.replace('"version":1', '"version":2'), "here")
    with pytest.raises(DataFileError, match="or segments"):
        StoredHistory.from_metadata(text.replace('"segments":[]', '"segments":["a"]'), "here")
    column = pa.field("x_end", pa.int32(), metadata={KEY: b"{}"})
    with pytest.raises(DataFileError, match="the table's column 'x_end': expected what describes"):
        histories_of(SlotSchema(kept=(column,)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_len": 0}, "max_len: expected 1 to 2"),
        ({"window_us": 0}, "window_us: expected 1 to 2"),
        ({"ages": ((Slot(name="a", kind=SlotKind.ID, shape=(None,)), "day"),)}, "expected a float"),
        ({"lists": (Slot(name="a", kind=SlotKind.ID),)}, "expected lists with names of their own"),
    ],
)
def test_a_history_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(HISTORY, **changed)


@given(st.lists(st.integers(0, 5) | st.none(), max_size=12))
def test_lists_stand_at_their_holders(lengths: list[int | None]) -> None:
    holders = [row for row, length in enumerate(lengths) if length is not None]
    of_holders = np.array([lengths[row] for row in holders], np.int64)
    total = int(of_holders.sum())
    values: dict[str, Any] = {
        "clicks_item": np.arange(total),
        "clicks_price": np.arange(total, dtype=np.float32),
        "clicks_at": np.arange(total),
    }
    found = list_columns(HISTORY, np.array(holders, np.int64), of_holders, values, len(lengths))
    rows = found["clicks_item"].to_pylist()
    assert [len(row) for row in rows] == [length or 0 for length in lengths]
    assert [value for row in rows for value in row] == list(range(total))
    assert found["clicks_at"].type == HISTORY.times.arrow_type()
    with pytest.raises(ValueError, match=f"clicks_at: expected {total} values, found {total + 1}"):
        list_columns(
            HISTORY,
            np.array(holders, np.int64),
            of_holders,
            values | {"clicks_at": np.arange(total + 1)},
            len(lengths),
        )
