"""Libraries that are imported when they are first used, so that a run which does not need them
starts without them (docs/design/plans.md).
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """Stands for a module of another project; the first attribute that is asked for imports it.

    Python's own `importlib.util.LazyLoader` is not safe with several threads before 3.12. This one
    leaves the import to `import_module`, which is.

    Args:
        name: The full name of the module.
    """

    if not TYPE_CHECKING:  # a checker sees the import that stands beside each use

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # what tools ask of any object is no use of the library
                raise AttributeError(name)
            return getattr(import_module(self.__name__), name)
