"""Reads a training config, YAML or a mapping, into the arguments of `FeatureLoader`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featstore.base.documents import DocumentError, load_yaml
from featstore.base.errors import ConfigError, nearest
from featstore.base.redaction import redact
from featstore.files.storage import open_read

KEYS = (
    "table",
    "slots",
    "labels",
    "weight",
    "extras",
    "batch_size",
    "where",
    "seed",
    "num_epochs",
    "drop_last",
    "order",
    "shuffle",
    "staging",
    "dispatch",
    "follow",
    "tail",
    "memory_budget",
    "decode_threads",
    "negatives",
    "transform",
    "on_stats",
    "on_bad_file",
    "stale_groups",
    "progress",
    "debug",
)
_COLUMN_KEYS = ("slots", "labels", "weight", "extras", "where")
# Instead of `table`: several tables, and when an epoch of them ends.
MIX_KEYS = ("tables", "stop")


def load_train_config(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `FeatureLoader` that a config gives.

    Args:
        source: The path or URL of a YAML file, or its content as a mapping. A relative `table` in
            it is relative to the working directory.
        overrides: Values that replace those of the config.

    Returns:
        The arguments. With `tables` in place of `table`, `request.mixed_tables` makes those of one
        loader for each table of them.

    Raises:
        ConfigError: Not a config, an unknown key (the nearest known one is named), no `slots`, or
            neither or both of `table` and `tables`.
    """
    name = "training config" if isinstance(source, Mapping) else redact(str(source))
    config = dict(source) if isinstance(source, Mapping) else _parse(str(source), name)
    config |= overrides or {}
    known = (*KEYS, *MIX_KEYS)
    for key in config:
        if key not in known:
            raise ConfigError(
                f"{name}: unknown key {key!r}{nearest(str(key), known)}; there are "
                f"{', '.join(known)}"
            )
    _require_one_source(name, config)
    if config.get("slots") is None:
        raise ConfigError(f"{name}: expected a key 'slots', found none")
    return {
        "labels": (),
        "extras": (),
        **{key: value for key, value in config.items() if value is not None},
    }


def load_of_table(config_url: str, table: str | None) -> dict[str, Any]:
    """As of `load_train_config`, with another table if one is given."""
    return load_train_config(config_url, {} if table is None else {"table": table})


def column_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments say of the columns and rows that are read, without `negatives`."""
    return {key: config[key] for key in _COLUMN_KEYS if key in config}


def _require_one_source(name: str, config: Mapping[str, Any]) -> None:
    """ConfigError unless there is one of `table` and `tables`."""
    is_mixed = config.get("tables") is not None
    if is_mixed and config.get("table") is not None:
        raise ConfigError(f"{name}: expected a key 'table' or 'tables', found both")
    if not is_mixed and config.get("table") is None:
        raise ConfigError(f"{name}: expected a key 'table', or 'tables', found none")
    if not is_mixed and config.get("stop") is not None:
        raise ConfigError(f"{name}: stop: expected it beside `tables`, found `table`")


def _parse(url: str, name: str) -> dict[str, Any]:
    try:
        with open_read(url) as file:
            config = load_yaml(file.read())
    except FileNotFoundError:
        raise ConfigError(f"{name}: expected a training config, found no such file") from None
    except DocumentError as error:
        raise ConfigError(f"{name}: expected YAML, found: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(
            f"{name}: expected keys such as table and slots, found {type(config).__name__}"
        )
    return config
