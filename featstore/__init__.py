"""featstore: from raw logs to training batches.

The public names and modules below are resolved on first use, so that `import featstore` loads no
heavy library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from featstore.api import extract as extract
    from featstore.api import import_raw as import_raw
    from featstore.base.errors import FeatstoreError as FeatstoreError
    from featstore.dispatch import Dispatch as Dispatch
    from featstore.explore.report.report import report as report
    from featstore.explore.table import Table as Table
    from featstore.explore.table import open_table as open_table
    from featstore.extraction.units.extractor import Extractor as Extractor
    from featstore.loader.feature_loader import FeatureLoader as FeatureLoader
    from featstore.loader.plan.shuffle import Shuffle as Shuffle
    from featstore.samples.dispatched_order import DispatchedOrder as DispatchedOrder
    from featstore.samples.random_order import RandomOrder as RandomOrder
    from featstore.samples.sample_dataset import SampleDataset as SampleDataset
    from featstore.samples.sample_store import SampleStore as SampleStore
    from featstore.spec.parse import load_spec as load_spec
    from featstore.spec.user import check_operator as check_operator
    from featstore.spec.user import operator as operator
    from featstore.staging import Staging as Staging
    from featstore.tensors.batch import Batch as Batch
    from featstore.tensors.columns import Jagged as Jagged

# The public names and the modules that define them. Static checkers see the imports above.
_HOMES = {
    "Batch": "featstore.tensors.batch",
    "Dispatch": "featstore.dispatch",
    "DispatchedOrder": "featstore.samples.dispatched_order",
    "Extractor": "featstore.extraction.units.extractor",
    "FeatstoreError": "featstore.base.errors",
    "FeatureLoader": "featstore.loader.feature_loader",
    "Jagged": "featstore.tensors.columns",
    "RandomOrder": "featstore.samples.random_order",
    "SampleDataset": "featstore.samples.sample_dataset",
    "SampleStore": "featstore.samples.sample_store",
    "Shuffle": "featstore.loader.plan.shuffle",
    "Staging": "featstore.staging",
    "Table": "featstore.explore.table",
    "check_operator": "featstore.spec.user",
    "extract": "featstore.api",
    "import_raw": "featstore.api",
    "load_spec": "featstore.spec.parse",
    "open_table": "featstore.explore.table",
    "operator": "featstore.spec.user",
    "report": "featstore.explore.report.report",
}

# Modules that are used by their names after `import featstore` alone.
_MODULES = ("api", "dispatch", "errors")

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("featstore-pipeline")
    if name in _MODULES:
        return import_module(f"featstore.{name}")
    if name not in _HOMES:
        raise AttributeError(
            f"module 'featstore' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}"
        )
    errors = import_module("featstore.base.errors")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise errors.missing_extra(f"featstore.{name}", error) from error


def __dir__() -> list[str]:
    return sorted(__all__)
