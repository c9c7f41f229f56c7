"""Reads a training config, YAML or a mapping, into the arguments of `FeatureLoader`, or of one for
each of its `tables`, batches of which are drawn by weight.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featstore.base.documents import DocumentError, load_yaml
from featstore.base.errors import ConfigError, FeatstoreError, nearest
from featstore.base.redaction import redact, shown
from featstore.files.storage import open_read
from featstore.loader.request.options import as_list, require_known
from featstore.loader.request.request import Request

KEYS = (
    "table",
    "slots",
    "labels",
    "weight",
    "extras",
    "batch_size",
    "batch",
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
    "histories",
    "candidates",
    "transform",
    "on_stats",
    "on_bad_file",
    "stale_groups",
    "progress",
    "debug",
)
COLUMN_KEYS = ("slots", "labels", "weight", "extras", "where", "negatives", "histories")
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
    require_known(name, config, known)
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
    """The arguments of `resolve`: what is said of the columns and rows that are read."""
    return {key: config[key] for key in COLUMN_KEYS if key in config}


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


FIRST_EXHAUSTED, ALL_EXHAUSTED = "first_exhausted", "all_exhausted"
STOPS = (FIRST_EXHAUSTED, ALL_EXHAUSTED)
ENTRY_KEYS = ("table", "weight", "where")
# The loader of a table that may be read several times in an epoch has this many epochs for each:
# the epochs of the loader are `epoch * MOST_PASSES + pass`.
MOST_PASSES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MixedTables:
    """What is mixed.

    Attributes:
        configs: The arguments of one `FeatureLoader` for each table.
        weights: A weight for each, above 0: its share of the batches, beside the others.
        stop: Whether an epoch ends with the `first_exhausted` table, or when each was read to its
            end at least once, `all_exhausted`.
    """

    configs: Sequence[Mapping[str, Any]]
    weights: Sequence[float]
    stop: str


def mixed_tables(config: Mapping[str, Any]) -> MixedTables:
    """The tables that a config mixes.

    Args:
        config: A config with `tables`, as `load_train_config` returns it.

    Raises:
        ConfigError: An entry is malformed, or a key does not go with `tables`.
    """
    _require_mixable(config)
    entries = as_list("tables", config["tables"])
    if not entries:
        raise ConfigError("tables: expected at least one table, found none")
    common = {key: value for key, value in config.items() if key not in ("tables", "stop")}
    stop = config.get("stop", FIRST_EXHAUSTED)
    if stop not in STOPS:
        raise ConfigError(
            f"stop: expected one of {', '.join(STOPS)}, found {stop!r}{nearest(str(stop), STOPS)}"
        )
    return MixedTables(
        configs=[_arguments(i, entry, common) for i, entry in enumerate(entries)],
        weights=[_weight(i, entry) for i, entry in enumerate(entries)],
        stop=stop,
    )


def _require_mixable(config: Mapping[str, Any]) -> None:
    """ConfigError for what a mixture does not have."""
    order = config.get("order")
    kind = order.get("kind") if isinstance(order, Mapping) else getattr(order, "kind", order)
    dispatch = config.get("dispatch")
    options = dispatch if isinstance(dispatch, Mapping) else getattr(dispatch, "__dict__", {})
    refused = {
        "num_epochs": (config.get("num_epochs", 1) != 1, "1; iterate once for each epoch"),
        "follow": (bool(config.get("follow")), "false; a mixture does not wait for partitions"),
        "order": (kind == "replay", "dynamic, static or rank"),
        "progress": (bool(config.get("progress")), "false; on_stats tells how far a mixture is"),
        "dispatch.in_step": (
            options.get("in_step") is False,
            "auto or true; workers of a mixture do not wait for each other's rows, since they "
            "read several tables in turn",
        ),
    }
    for key, (is_found, expected) in refused.items():
        if is_found:
            found = shown(options["in_step"] if "." in key else config[key])
            raise ConfigError(f"{key}: with `tables` expected {expected}; found {found}")


def _arguments(i: int, entry: Any, common: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the loader of one entry. `where` of both the entry and the config holds."""
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"tables[{i}]: expected {{table: ..., weight: ...}}, found {shown(entry)}"
        )
    require_known(f"tables[{i}]", entry, ENTRY_KEYS)
    if entry.get("table") is None:
        raise ConfigError(f"tables[{i}]: expected a key 'table', found none")
    conditions = [each for each in (common.get("where"), entry.get("where")) if each is not None]
    where = {"where": " and ".join(f"({each})" for each in conditions)} if conditions else {}
    return {**common, "table": entry["table"], **where}


def _weight(i: int, entry: Mapping[str, Any]) -> float:
    weight = entry.get("weight", 1)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight <= 0:
        raise ConfigError(
            f"tables[{i}].weight: expected a number above 0, found {weight!r}; leave a table out "
            "to read none of it"
        )
    return float(weight)


def num_passes(stop: str) -> int:
    """How many passes over a table an epoch may have."""
    return MOST_PASSES if stop == ALL_EXHAUSTED else 1


@contextmanager
def naming(table: str) -> Iterator[None]:
    """Puts the table's name before the message of an error."""
    try:
        yield
    except FeatstoreError as error:
        raise type(error)(f"{table}: {error}") from error


def table_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tables, as messages name them: the entry's number, and its URL without secrets."""
    return [
        f"tables[{i}] ({redact(str(config['table']))})"
        if isinstance(config["table"], str)
        else f"tables[{i}]"
        for i, config in enumerate(configs)
    ]


def require_alike(requests: Sequence[Request], names: Sequence[str]) -> None:
    """Checks that a training loop can treat batches of all tables alike.

    Args:
        requests: What is read of each table.
        names: The tables' names, for errors.

    Raises:
        ConfigError: Slots, labels, weight or extras differ between tables.
    """
    first = _columns(requests[0])
    for request, name in zip(requests[1:], names[1:], strict=True):
        found = _columns(request)
        for kind, columns in first.items():
            _require_same(kind, columns, found[kind], (names[0], name))


def _require_same(
    kind: str, first: dict[str, Any], found: dict[str, Any], tables: tuple[str, str]
) -> None:
    """ConfigError that names the first column that differs."""
    of_first, of_other = tables
    for name in [*first, *found]:
        if name not in found or name not in first:
            has, lacks = (of_first, of_other) if name in first else (of_other, of_first)
            raise ConfigError(
                f"{kind}: {name!r} is selected of {has} and not of {lacks}: expected the same "
                "columns of all tables; name columns that all of them have instead of a glob"
            )
        if first[name] != found[name]:
            raise ConfigError(
                f"{kind}: {name!r} differs between tables: expected {_text(first[name])} as in "
                f"{of_first}, found {_text(found[name])} in {of_other}"
            )
    if list(first) != list(found):
        raise ConfigError(
            f"{kind}: expected the order {list(first)} as in {of_first}, found {list(found)} in "
            f"{of_other}: name columns instead of a glob"
        )


def _columns(request: Request) -> dict[str, dict[str, Any]]:
    """What is delivered, by kind and name, with what decides over its values in a batch."""
    slots = {
        item.slot.name: {
            "kind": str(item.slot.kind),
            "shape": "list" if item.slot.is_list else item.slot.width,
            "slot": item.slot.number,
            "num_indices": item.slot.num_indices,
        }
        for item in request.slots
    }
    weight: dict[str, Any] = {} if request.weight is None else {request.weight.name: {}}
    return {
        "slots": slots,
        "labels": {label.name: {} for label in request.labels},
        "weight": weight,
        "extras": {field.name: {"type": str(field.type)} for field in request.extras},
    }


def _text(column: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in column.items())
