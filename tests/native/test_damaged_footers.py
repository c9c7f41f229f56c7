"""Footers with single bits flipped, read in a process of their own, which must not abort."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.parquet_files import put_parquet
from tests.programs import run_python

NUM_FLIPS = 3_000
WORKER = Path(__file__).with_name("read_flips.py")


def table() -> pa.Table:
    draw = random.Random(5)
    ids = [draw.randrange(1, 2**40) for _ in range(300)]
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "7"}),
        ("tags", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("at", pa.timestamp("us", "UTC")),
        ("pair", pa.struct([("a", pa.float32()), ("b", pa.string())])),
    ]
    columns = [
        ids,
        [[draw.randrange(9) for _ in range(draw.randrange(4))] or None for _ in ids],
        [f"text {one % 7}" for one in ids],
        ids,
        [{"a": one / 2, "b": str(one)} if one % 3 else None for one in ids],
    ]
    schema = pa.schema(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


OTHERS = {"write_page_index": True, "store_schema": False}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "how"), [(1, {}), (2, OTHERS)])
def test_no_flipped_bit_of_a_footer_aborts_the_process_or_invents_rows(
    tmp_path: Path, seed: int, how: Any
) -> None:
    path = put_parquet(tmp_path / "whole.parquet", table(), row_group_size=200, **how)
    done = run_python(WORKER, path, NUM_FLIPS // 2, seed)
    found = json.loads(done.stdout)
    assert sum(found.values()) == NUM_FLIPS // 2
    assert found["refused"] > NUM_FLIPS // 20, f"expected many that are damaged, found {found}"
