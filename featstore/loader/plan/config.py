"""A training config: YAML, or a mapping, to the arguments of `FeatureLoader`."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from featstore.documents import DocumentError, load_yaml
from featstore.errors import ConfigError, nearest
from featstore.files.storage import open_read
from featstore.redaction import redact, shown

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
    "negatives",
    "transform",
    "on_bad_file",
    "progress",
    "debug",
)
Options = TypeVar("Options")


def load_train_config(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `FeatureLoader` that a config file, by path or URL, or a mapping gives;
    `overrides` replace its keys.

    A relative `table` is relative to the working directory. ConfigError for what is no config, for
    unknown keys (with the nearest), and where `table` or `slots` is missing.
    """
    name = "training config" if isinstance(source, Mapping) else redact(str(source))
    config = dict(source) if isinstance(source, Mapping) else _parse(str(source), name)
    config |= overrides or {}
    for key in config:
        if key not in KEYS:
            raise ConfigError(
                f"{name}: unknown key {key!r}{nearest(str(key), KEYS)}; there are {', '.join(KEYS)}"
            )
    for key in ("table", "slots"):
        if config.get(key) is None:
            raise ConfigError(f"{name}: expected a key {key!r}, found none")
    return {
        "labels": (),
        "extras": (),
        **{key: value for key, value in config.items() if value is not None},
    }


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


def as_options(
    kind: type[Options], value: Options | Mapping[str, Any] | None, what: str
) -> Options | None:
    """An option object as it is, or made of a mapping with the same keys. ConfigError for unknown
    keys.
    """
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: expected keys of {kind.__name__}, found {shown(value)}")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise ConfigError(
                f"{what}: unknown key {key!r}{nearest(str(key), known)}; there are "
                f"{', '.join(known)}"
            )
    return kind(**value)
