"""A report of perf becomes shares of the loader's parts."""

import pytest

from loader_parts.profile import library_of, part_of, profile, shares_of

REPORT = """\
# Samples: 306  of event 'cpu-clock'
#
    40.00%|kernels.abi3.so     |[.] read_values
    10.00%|kernels.abi3.so     |[.] snappy_decompress
    20.00%|libpython3.11.so.1.0|[.] _PyEval_EvalFrameDefault
     5.00%|libpython3.11.so.1.0|[.] gc_collect_main
    10.00%|libc.so.6           |[.] malloc
     9.00%|[kernel.kallsyms]   |[k] clear_page_erms
     6.00%|libunknown.so       |[.] work

"""


def test_samples_are_sorted_by_library_and_function() -> None:
    assert shares_of(REPORT.splitlines(), part_of) == {
        "decode": 0.4,
        "interpreter": 0.2,
        "decompress": 0.1,
        "allocation": 0.1,
        "page faults": 0.09,
        "other": 0.06,
        "garbage collection": 0.05,
    }


def test_samples_are_sorted_by_library_alone() -> None:
    assert shares_of(REPORT.splitlines(), library_of) == {
        "kernels": 0.5,
        "interpreter": 0.25,
        "libc": 0.1,
        "system": 0.09,
        "other": 0.06,
    }


@pytest.mark.parametrize(
    ("library", "owner"),
    [
        ("libpython3.11.so.1.0", "interpreter"),
        ("python3.11", "interpreter"),
        ("_struct.cpython-311-x86_64-linux-gnu.so", "interpreter"),
        ("_multiarray_umath.cpython-311-x86_64-linux-gnu.so", "numpy"),
        ("lib.cpython-311-x86_64-linux-gnu.so", "arrow"),
        ("libarrow.so.2300", "arrow"),
        ("libtorch_python.so", "torch"),
        ("kernels.abi3.so", "kernels"),
        ("[kernel.kallsyms]", "system"),
    ],
)
def test_each_library_has_an_owner(library: str, owner: str) -> None:
    assert library_of(library) == owner


def test_without_perf_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert profile(lambda: iter(())) == "perf is not installed"


def test_a_few_samples_are_no_shares() -> None:
    assert shares_of([], part_of) == "perf took only 0 samples"
    assert (
        shares_of(REPORT.replace("306", "17").splitlines(), part_of) == "perf took only 17 samples"
    )
