"""The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), over arrays. `dispatch/plan.py` has it over single integers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mixed(values: NDArray[Any]) -> NDArray[Any]:
    """A bijection of 64-bit words that scatters them: uint64 of the same shape."""
    # Two multiplications with xor-shifts before them, after which each bit depends on all.
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    result: NDArray[Any] = values ^ values >> np.uint64(31)
    return result
