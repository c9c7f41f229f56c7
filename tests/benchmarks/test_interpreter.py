"""The interpreter's share of an epoch's CPU time is judged, and tensors are told apart."""

from pathlib import Path

from featstore.loader.feature_loader import FeatureLoader
from loader_parts.interpreter import judged, tensors_share
from loader_parts.plain_workload import LABEL, PlainWorkload

REPORT = [
    "# Samples: 4K of event 'cpu-clock'",
    "    88.00%|kernels.abi3.so     |[.] read_values",
    "     7.00%|libpython3.11.so.1.0|[.] _PyEval_EvalFrameDefault",
    "     5.00%|_multiarray_umath.cpython-311-x86_64-linux-gnu.so|[.] array_new",
]


def test_the_share_is_the_interpreters_and_numpys() -> None:
    figures = judged(REPORT, most=0.12)
    assert figures["share"] == 0.12
    assert figures["libraries"] == {"kernels": 0.88, "interpreter": 0.07, "numpy": 0.05}
    assert figures["ok"]
    assert not judged(REPORT, most=0.11)["ok"]


def test_a_share_that_was_not_measured_is_not_met() -> None:
    assert judged("perf is not installed", most=0.1) == {
        "share": None,
        "not_measured": "perf is not installed",
        "most": 0.1,
        "ok": False,
    }


def test_making_tensors_takes_a_part_of_the_epoch(tmp_path: Path) -> None:
    workload = PlainWorkload(num_files=1, rows_per_file=4_000)
    (path,) = workload.write(tmp_path)
    slots = workload.columns[:-1]
    with FeatureLoader(
        str(Path(path).parent), slots=slots, labels=[LABEL], batch_size=64
    ) as loader:
        assert 0 < tensors_share(loader) < 1
