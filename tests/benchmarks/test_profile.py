"""A report of perf becomes shares of the loader's parts."""

import pytest

from loader_parts.profile import profile, shares_of

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
    assert shares_of(REPORT.splitlines()) == {
        "decode": 0.4,
        "interpreter": 0.2,
        "decompress": 0.1,
        "allocation": 0.1,
        "page faults": 0.09,
        "other": 0.06,
        "garbage collection": 0.05,
    }


def test_without_perf_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert profile(lambda: iter(())) == "perf is not installed"


def test_a_few_samples_are_no_shares() -> None:
    assert shares_of(REPORT.replace("306", "17").splitlines()) == "perf took only 17 samples"
