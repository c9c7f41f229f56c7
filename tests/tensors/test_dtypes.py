import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.tensors.column_arrays import bfloat16_bits
from featstore.tensors.packed import array_of, tensor_of, torch_dtype


@given(st.lists(st.floats(width=32), max_size=50))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    floats = np.array(values, np.float32)
    assert torch.equal(
        tensor_of(bfloat16_bits(floats)).nan_to_num(7.0),
        torch.from_numpy(floats).to(torch.bfloat16).nan_to_num(7.0),
    )


def test_a_tensor_of_bfloat16_goes_through_numpy_and_back() -> None:
    tensor = torch.tensor([1.5, -2.0]).to(torch.bfloat16)
    assert torch.equal(tensor_of(array_of(tensor)), tensor)
    assert array_of(torch.tensor([1, 2])).dtype == np.int64


def test_the_dtype_of_a_tensor_follows_from_that_of_the_array() -> None:
    dtypes = [np.dtype(of) for of in (np.int64, np.int32, np.float32, np.uint16)]
    assert [torch_dtype(dtype) for dtype in dtypes] == [
        torch.int64,
        torch.int32,
        torch.float32,
        torch.bfloat16,
    ]
