"""Values of slots, compared."""

from typing import Any

import numpy as np

from featstore.reading.buffers import Ragged


def assert_equal(found: Any, expected: Any) -> None:
    """Asserts that two slots' values are equal, wherever their lists begin in the buffers."""
    if isinstance(expected, Ragged):
        np.testing.assert_array_equal(np.diff(found.offsets), np.diff(expected.offsets))
        found, expected = (of.values[of.offsets[0] : of.offsets[-1]] for of in (found, expected))
    np.testing.assert_array_equal(found, expected)
