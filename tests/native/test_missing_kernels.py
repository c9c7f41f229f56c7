"""A featstore without its compiled kernels says what to do."""

import shutil
from pathlib import Path

import featstore
from tests.programs import run_python


def test_a_package_without_its_kernels_says_what_to_do(tmp_path: Path) -> None:
    package = Path(featstore.__file__).parent
    shutil.copytree(package, tmp_path / "featstore", ignore=shutil.ignore_patterns("*.so"))
    done = run_python("import featstore.ops.hashing", cwd=tmp_path, status=1)
    folder = tmp_path / "featstore" / "native"
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: expected featstore's compiled kernels in {folder}, found none that this "
        "Python can load (No module named 'featstore.native.kernels'): install featstore again, "
        "and leave its source tree if Python imports that instead"
    )
