import numpy as np
import pyarrow as pa
import pytest

from featstore.table.codecs import MIN_VALUES, pays_to_compress
from featstore.table.encoding import num_in_dictionary

NUM_ROWS = 65_536
RNG = np.random.default_rng(5)
SIGNS = RNG.integers(1, 2**63, 1 << 18)


def pays(values: object, codec: str = "snappy") -> bool:
    column = pa.chunked_array([values])
    return pays_to_compress(column, num_in_dictionary(column), pa.Codec(codec))


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
@pytest.mark.parametrize(
    "values",
    [
        SIGNS[:NUM_ROWS],
        SIGNS[RNG.integers(0, 20_000, NUM_ROWS)],
        RNG.integers(0, 1_000, NUM_ROWS).astype(np.float32),
    ],
    ids=["unique signs", "signs that repeat", "floats that repeat"],
)
def test_what_was_drawn_at_random_is_not_compressed(values: object, codec: str) -> None:
    assert not pays(values, codec)


def test_the_codec_that_the_file_has_decides() -> None:
    floats = RNG.random(NUM_ROWS).astype(np.float32)  # zstd packs their exponents
    assert not pays(floats, "snappy")
    assert pays(floats, "zstd")


@pytest.mark.parametrize(
    "values",
    [
        np.repeat(SIGNS[: NUM_ROWS // 64], 64),
        np.where(RNG.random(NUM_ROWS) < 0.01, SIGNS[1], SIGNS[0]),
    ],
    ids=["signs in runs", "nearly always one sign"],
)
def test_runs_and_skew_are_compressed(values: object) -> None:
    assert pays(values)


def test_a_column_of_few_values_is_compressed_without_a_trial() -> None:
    assert pays(SIGNS[: MIN_VALUES - 1])
    assert not pays(SIGNS[:MIN_VALUES])
    assert pays(SIGNS[:0])


def test_a_dictionary_that_outweighs_its_indices_does_not_pay_however_these_shrink() -> None:
    # Indices of 18 bits are 147 kB, their dictionary is 2 MB.
    column, codec = pa.chunked_array([np.zeros(NUM_ROWS, np.int64)]), pa.Codec("snappy")
    assert pays_to_compress(column, 2, codec)
    assert not pays_to_compress(column, 1 << 18, codec)


def test_slices_and_chunks_do_not_change_the_choice() -> None:
    ids = pa.array(np.concatenate([SIGNS[:10], np.repeat(SIGNS[:1_024], 64)]))
    whole = pa.chunked_array([ids.slice(10)])
    cut = pa.chunked_array([ids.slice(10, 1), ids.slice(11, 0), ids.slice(11)])
    found = [pays_to_compress(column, 1_024, pa.Codec("snappy")) for column in (whole, cut)]
    assert found == [True, True]
