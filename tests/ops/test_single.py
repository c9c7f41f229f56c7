"""The hash of few values is the hash of many."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops.hashing import sign, value_hash, xxh64
from featstore.ops.single import xxh64_bytes, xxh64_long

WORDS = st.integers(0, 2**64 - 1)


@given(st.binary(max_size=140), WORDS)
def test_bytes_hash_as_in_the_batch_kernel(data: bytes, seed: int) -> None:
    batch = xxh64(
        np.frombuffer(data, np.uint8),
        np.zeros(1, np.int64),
        np.full(1, len(data)),
        seed=seed % 2**63,
    )
    assert xxh64_bytes(data, seed % 2**63) == int(batch[0])


@given(WORDS, WORDS)
def test_a_number_hashes_as_its_eight_bytes(value: int, seed: int) -> None:
    assert xxh64_long(value, seed) == xxh64_bytes(value.to_bytes(8, "little"), seed)


VALUES = st.lists(
    st.none() | st.text(max_size=40) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12
)


@given(VALUES, st.integers(1, 2**31 - 1))
def test_few_rows_have_the_hashes_and_signs_of_many(
    values: list[str | int | None], slot: int
) -> None:
    for kind, arrow_type in ((str, pa.string()), (int, pa.int64())):
        column = pa.array(
            [value if isinstance(value, kind) else None for value in values], arrow_type
        )
        few, many = value_hash(column), value_hash(pa.concat_arrays([column] * 20))
        assert few.to_pylist() * 20 == many.to_pylist()
        assert sign(slot, few, few).to_pylist() * 20 == sign(slot, many, many).to_pylist()
