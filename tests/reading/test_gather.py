"""Places number pieces and the rows in them with 32 bits, or say that they cannot."""

import numpy as np
import pytest

from featstore.reading.gather import Places, max_pieces, places_of
from tests.native.oracles.rows import rows_in_piece

CUTS = np.array([0, 1])


@pytest.mark.parametrize("row_bits", [0, 1, 20, 31])
def test_the_last_row_of_the_last_piece_that_has_a_number_is_found_again(row_bits: int) -> None:
    num_pieces = max_pieces(row_bits)
    row = np.array([(num_pieces << row_bits) - 1], np.int64)
    places = Places.of(row, num_pieces, row_bits, CUTS)
    assert places.pieces.tolist() == [num_pieces - 1]
    assert rows_in_piece(places).tolist() == [(1 << row_bits) - 1]


@pytest.mark.parametrize(
    ("num_pieces", "row_bits"), [(4_097, 20), (3, 31), (1, 32), ((1 << 32) + 1, 0)]
)
def test_one_piece_more_is_an_error_and_never_another_row(num_pieces: int, row_bits: int) -> None:
    with pytest.raises(OverflowError, match=f"{num_pieces} pieces of up to {1 << row_bits} rows"):
        Places.of(np.zeros(1, np.int64), num_pieces, row_bits, CUTS)


def test_an_order_through_pieces_that_do_not_fit_is_an_error() -> None:
    sizes = [1 << 20] + [0] * 4_096
    with pytest.raises(OverflowError, match="expected at most 32 bits for the number of a piece"):
        places_of(np.zeros(1, np.int64), sizes, CUTS)
