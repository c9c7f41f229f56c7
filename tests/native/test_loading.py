"""Without the compiled kernels: the same values, and one warning."""

import os
import subprocess
import sys
import warnings

import pytest

from featstore._native.loading import load_kernels

HASH = "import pyarrow as pa; from featstore.ops.hashing import value_hash; print(value_hash(pa.array(['a'])).to_pylist())"


def test_kernels_that_were_not_built_are_said_to_be_missing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEATSTORE_NATIVE", raising=False)
    with pytest.warns(RuntimeWarning, match="featstore runs without its compiled kernels"):
        assert load_kernels("featstore._native.no_such_module") is None


def test_kernels_that_are_not_wanted_are_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATSTORE_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_kernels() is None


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_a_process_hashes_alike_with_kernels_and_without(wanted: str) -> None:
    environment = os.environ | {"FEATSTORE_NATIVE": wanted}
    out = subprocess.run([sys.executable, "-c", HASH], capture_output=True, text=True, check=True, env=environment).stdout
    assert out.split() == ["[-8582455328737087284]"]
