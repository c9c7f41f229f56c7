"""Views that the collector does not track: equal to tracked ones, and freed by reference counts."""

import gc
import sys
import weakref

import pytest
import torch

from featstore.native import kernels
from featstore.tensors.columns import Jagged
from featstore.tensors.packed import split, untrack
from tests.programs import run_python

needs_a_known_collector = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="views stay tracked"
)

LATER = """
import gc, sys
import torch
sys.version_info = (3, 14)
from featstore.tensors.packed import split
print([gc.is_tracked(part) for part in split(torch.arange(6), [2, 4])])
"""


def test_views_are_consecutive_and_share_memory() -> None:
    whole = torch.arange(6)
    parts = split(whole, [2, 0, 4])
    assert [part.tolist() for part in parts] == [[0, 1], [], [2, 3, 4, 5]]
    assert parts[2].data_ptr() == whole[2:].data_ptr()


@needs_a_known_collector
def test_views_of_integers_are_not_tracked() -> None:
    assert not any(map(gc.is_tracked, split(torch.arange(6), [2, 0, 4])))


def test_with_a_collector_that_was_not_tried_views_stay_tracked() -> None:
    assert run_python(LATER).stdout.strip() == "[True, True]"


@needs_a_known_collector
def test_an_untracked_column_is_freed_with_its_last_reference() -> None:
    values, offsets = split(torch.arange(6), [4, 2])
    column = Jagged(values, offsets)
    untrack((column,))
    assert not gc.is_tracked(column)
    gone = weakref.ref(values)
    del values, column
    assert gone() is None


def test_floats_whose_gradients_refer_to_their_batch_are_collected_with_it() -> None:
    [view] = split(torch.ones(4), [4])
    batch = {"price": view}
    view.requires_grad_()
    view.register_hook(lambda gradient, batch=batch: gradient)  # type: ignore[no-untyped-call]
    (view * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert view.grad is not None
    assert view.grad.tolist() == [2.0] * 4
    gone = weakref.ref(view)
    del view, batch
    gc.collect()
    assert gone() is None


def test_the_kernel_takes_objects_that_the_collector_never_tracked() -> None:
    text = "not a container"
    kernels.untrack((text, 3, None, torch.ones(1)))
    with pytest.raises(TypeError, match="expected a tuple of objects"):
        kernels.untrack([text])  # type: ignore[arg-type]
