from pathlib import Path

import pytest

from featstore.base.errors import ConfigError
from featstore.dispatch.stores.address import bind
from tests.programs import run_python


@pytest.mark.parametrize("url", ["redis://x", "nothing", "", "auto"])
def test_an_unknown_store_url_lists_the_known_ones(url: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"no dispatch store .*memory:// .*sqlite:///absolute/path.* tcp://host:port",
    ):
        bind(url)


def test_a_torch_store_without_torch_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from featstore.dispatch.stores.address import "
        "bind; bind('torch://h:1').open()"
    )
    done = run_python(code, status=1)
    last = done.stderr.splitlines()[-1]
    assert (
        "MissingDependencyError: a dispatch store torch:// needs torch: install it with  pip install "
        "'featstore-pipeline[torch]'" in last
    )


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite://relative/x.db", "sqlite:///", "sqlite:///directory/"]
)
def test_a_sqlite_store_needs_the_absolute_path_of_a_file(url: str) -> None:
    with pytest.raises(ConfigError, match="expected sqlite:///absolute/path/of/a/file"):
        bind(url)


def test_binding_opens_nothing(tmp_path: Path) -> None:
    bind(f"sqlite://{tmp_path}/d/x.db")
    assert list(tmp_path.iterdir()) == []


def test_a_store_can_be_opened_by_its_url(tmp_path: Path) -> None:
    store = bind(f"sqlite://{tmp_path}/d/x.db").open()
    assert store.add("n", 2) == 2
    store.close()
