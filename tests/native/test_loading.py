"""Without the compiled kernels: the same values, and one warning."""

import shutil
import warnings
from pathlib import Path

import pytest

from featstore.native.loading import KERNELS, load_kernels
from tests.programs import run_python

HASH = (
    "import pyarrow as pa; from featstore.ops.hashing import value_hash; "
    "print(value_hash(pa.array(['a'])).to_pylist())"
)


def test_kernels_that_were_not_built_are_said_to_be_missing_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEATSTORE_NATIVE", raising=False)
    with pytest.warns(
        RuntimeWarning,
        match=r"featstore runs without its compiled kernels, of which there is no build in .*native: ",
    ):
        assert load_kernels("featstore.native.no_such_module") is None


def test_kernels_that_are_not_wanted_are_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATSTORE_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_kernels() is None


@pytest.mark.skipif(
    KERNELS is None, reason="the compiled kernels were not built, or are not wanted"
)
def test_a_path_names_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert KERNELS is not None
    assert KERNELS.__file__ is not None
    other = tmp_path / "other.so"
    shutil.copy(KERNELS.__file__, other)
    monkeypatch.setenv("FEATSTORE_NATIVE", str(other))
    found = load_kernels()
    assert found is not None
    assert found.__file__ == str(other)
    assert found.crc32(b"abc", 0, False) == KERNELS.crc32(b"abc", 0, False)
    monkeypatch.setenv("FEATSTORE_NATIVE", str(tmp_path / "none.so"))
    with pytest.raises(ImportError, match=r"none\.so"):
        load_kernels()
    monkeypatch.setenv("FEATSTORE_NATIVE", "./kernels")
    with pytest.raises(
        ImportError, match="FEATSTORE_NATIVE: expected 0, or a build of the kernels"
    ):
        load_kernels()


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_a_process_hashes_alike_with_kernels_and_without(wanted: str) -> None:
    out = run_python(HASH, variables={"FEATSTORE_NATIVE": wanted}).stdout
    assert out.split() == ["[-8582455328737087284]"]
