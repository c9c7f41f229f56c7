"""The architecture: import floors, one owner for each heavy library, a light `import featstore`."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import deltalake
import grimp
import pyarrow as pa
import pytest

import featstore
from tests.parquet_files import put_parquet
from tests.programs import run_python
from tests.rooms import arrows, cycle, rooms

ROOT = Path(__file__).parents[1]
OWNERS = {
    "deltalake": {"featstore.table"},
    "duckdb": {"featstore.explore"},
    "fsspec": {"featstore.files"},
    "matplotlib": {"featstore.explore"},
    "obstore": {"featstore.files"},
    "polars": {"featstore.explore", "featstore.base.table_result"},
    "pyiceberg": {"featstore.table"},
    "pyroaring": {"featstore.table"},
    "pyspark": {"featstore.extraction.spark", "featstore.ingest", "featstore.tools"},
    "sqlglot": {"featstore.selection"},
    "torch": {
        "featstore.dispatch.stores.torch_store",
        "featstore.loader",
        "featstore.samples",
        "featstore.tensors",
        "featstore.tools",
    },
    "yaml": {"featstore.base.documents"},
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("featstore", include_external_packages=True, cache_dir=None)


def test_imports_go_down_only() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_types_of_the_tests_are_checked_as_strictly_as_those_of_the_package() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert checked["strict"]
    assert {"featstore", "tests"} <= set(checked["files"])
    softened = [str(override["module"]) for override in checked["overrides"]]
    assert not [modules for modules in softened if "featstore" in modules or "tests" in modules]


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_each_heavy_library_has_one_owner(graph: grimp.ImportGraph, library: str) -> None:
    importers = (
        graph.find_modules_that_directly_import(library) if library in graph.modules else set()
    )
    strangers = {
        name
        for name in importers
        if not any(name == o or name.startswith(f"{o}.") for o in OWNERS[library])
    }
    assert importers, f"nobody imports {library}: is the owner's name right?"
    assert not strangers


def test_no_function_imports_our_own_modules(graph: grimp.ImportGraph) -> None:
    inside = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "featstore").rglob("*.py")
        if path != ROOT / "featstore" / "__init__.py"
        for line in path.read_text().splitlines()
        if line.startswith((" ", "\t"))
        and line.strip().startswith(("from featstore", "import featstore"))
    ]
    allowed = [line for line in inside if "TYPE_CHECKING" in line]
    assert inside == allowed


# Calls that take a failed look for an absence, or leave out what they cannot see: of `pathlib`, of
# `os.path`, of fsspec and of delta-rs. `featstore/files/looks.py` has those that raise.
BLIND = {
    *("exists", "is_file", "is_dir", "rglob", "glob", "lexists", "isfile", "isdir", "walk"),
    "is_deltatable",
}
# Who may call them, and why.
SIGHTED = {
    "featstore/files/walking.py": "entries of os.scandir, whose failures raise",
    "featstore/files/storage.py": "entries of os.scandir; what fails stays where it is",
    "featstore/staging/cache_listing.py": "entries of os.scandir",
    "featstore/table/delta.py": "delta-rs raises all but what is missing of a remote listing",
    "featstore/ingest/join_output.py": "Hadoop's file system in the JVM, which raises",
    "featstore/base/host.py": "the control group of this process, which bounds memory and no data",
    "featstore/tools/interpreter.py": "the interpreter",
    "featstore/tools": "a tree that this process has just made; the demo's generated rows",
}


def test_looks_that_may_fail_are_taken_in_one_place() -> None:
    blind = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in (ROOT / "featstore").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in BLIND
    }
    strangers = {call for call in blind if not call.startswith(tuple(SIGHTED))}
    assert not strangers
    assert all(any(call.startswith(place) for call in blind) for place in SIGHTED)


# Who may make a pool whose threads do not have the caller's policy of retries, and why.
BARE_POOLS = {
    "featstore/files/retry.py": "`thread_pool` itself",
    "featstore/staging/filling.py": "syncs a local file",
    "featstore/extraction/spark/runners.py": "waits for a job of Spark",
}


def test_threads_of_pools_that_reach_stores_have_the_policy_of_retries_of_their_caller() -> None:
    makers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "featstore").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ThreadPoolExecutor")
    }
    assert makers == set(BARE_POOLS)


def test_a_class_name_stands_for_one_class() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "featstore").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_fixture_has_the_scope_of_a_package() -> None:
    """Folders of tests are none to pytest, and such a fixture holds for the whole session."""
    paths = (ROOT / "tests").rglob("*.py")
    assert [path for path in paths if re.search(r"scope=[\"']package", path.read_text())] == []


def test_the_house_has_few_rooms_and_no_arrow_goes_up() -> None:
    found, between = rooms(), arrows()
    assert len(found) <= 33
    assert len(between) <= 218
    assert cycle(between) == []
    assert max(found.values()) <= 18


def _loaded(statement: str) -> set[str]:
    report = "print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(run_python(f"import sys, json; {statement}; {report}").stdout))


def test_importing_featstore_loads_nothing_but_its_names_and_a_few_modules_of_python() -> None:
    more = _loaded("import featstore") - _loaded("pass")
    assert {name for name in more if name.partition(".")[0] not in sys.stdlib_module_names} == {
        "featstore"
    }
    assert len(more) < 20


@pytest.mark.parametrize(
    "part", ["featstore.staging", "featstore.dispatch", "featstore.dispatch.stores.sqlite"]
)
def test_staging_and_dispatch_load_neither_torch_nor_pyarrow(part: str) -> None:
    assert not {"torch", "pyarrow"} & _loaded(f"import {part}")


_FIRST_BATCH = (
    "import featstore; loader = featstore.FeatureLoader({url!r}, slots=['row'], batch_size=2); "
    "next(iter(loader)); loader.close()"
)


@pytest.mark.parametrize("is_delta", [False, True])
def test_a_first_batch_of_local_files_loads_no_library_that_it_does_not_use(
    tmp_path: Path, is_delta: bool
) -> None:
    """pyarrow imports pandas in many of its functions, which takes longer than all the rest."""
    put_parquet(tmp_path / "plain" / "a.parquet", {"row": [1, 2]})
    delta = str(tmp_path / "delta")
    deltalake.write_deltalake(delta, pa.table({"row": [1, 2]}))
    url = delta if is_delta else str(tmp_path / "plain")
    modules = _loaded(_FIRST_BATCH.format(url=url))
    assert "featstore.loader.iteration.iteration" in modules
    heavy = {"pandas", "sqlglot", "fsspec", "obstore", "duckdb", "pyarrow.acero", "pyspark"}
    assert not heavy & modules


@pytest.mark.parametrize("room", ["request", "plan"])
def test_a_plan_is_made_without_torch(room: str) -> None:
    files = (ROOT / "featstore" / "loader" / room).glob("*.py")
    modules = ", ".join(
        f"featstore.loader.{room}.{file.stem}" for file in files if file.stem != "__init__"
    )
    assert "torch" not in _loaded(f"import {modules}")


def test_rows_are_decoded_without_torch() -> None:
    """Decoding may go to other hosts, which need no torch then."""
    assert "torch" not in _loaded("import featstore.loader.batches.split_reader")


def test_a_sqlite_store_in_use_loads_neither_torch_nor_pyarrow(tmp_path: Path) -> None:
    use = (
        f"from featstore.dispatch.stores.address import bind; "
        f"bind('sqlite://{tmp_path}/x.db').open().add('n', 1)"
    )
    modules = _loaded(use)
    assert "featstore.dispatch.stores.sqlite" in modules
    assert not {"torch", "pyarrow"} & modules


def test_every_public_name_resolves_and_they_are_few() -> None:
    names = [name for name in featstore.__all__ if name != "__version__"]
    assert len(names) <= 20
    assert all(getattr(featstore, name) is not None for name in names)


@pytest.mark.parametrize("name", ["api.preview", "dispatch.serve", "errors.InputError"])
def test_modules_that_pages_name_are_there_after_the_import_of_featstore_alone(name: str) -> None:
    run_python(f"import featstore; featstore.{name}")


def test_public_names_are_frozen() -> None:
    golden = json.loads((ROOT / "tests" / "golden" / "public_names.json").read_text())
    assert sorted(featstore.__all__) == golden


def test_an_unknown_public_name_answers_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Loader'; it has .*FeatureLoader"):
        featstore.Loader  # noqa: B018
