"""The JSON Schema of training configs, made of the parameters of `FeatureLoader`: their types, the
options' dataclasses, and what the docstrings say of each.
"""

from typing import Any, get_type_hints

from featstore.base.json_schema import (
    DRAFT,
    Schema,
    any_of,
    descriptions,
    object_schema,
    of_options,
    of_type,
    or_null,
)
from featstore.dispatch.options import Dispatch
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.stats import OnStats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.follow import Follow
from featstore.loader.plan.ordering import Ordering
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.candidates import Candidates
from featstore.loader.request.options import SLOT_KEYS, SlotRequest
from featstore.loader.request.request import LABEL_KEYS, HistoryOptions, LabelRequest, Negatives
from featstore.loader.request.train_config import ENTRY_KEYS, KEYS, MIX_KEYS, STOPS
from featstore.staging.options import Staging

# What a config gives as a mapping of fields (`as_options`).
OPTIONS = (
    *(BatchCap, Candidates, Dispatch, Follow, Negatives, Ordering, OnStats),
    *(HistoryOptions, Shuffle, Staging),
)
_REQUIRED = ("table", "slots")


def train_schema() -> dict[str, Any]:
    """The JSON Schema (draft 7) of a training config."""
    hints = get_type_hints(FeatureLoader.__init__)
    texts = descriptions(FeatureLoader, "Args")
    properties = {}
    for key in KEYS:
        schema = _OWN[key]() if key in _OWN else of_type(hints[key], OPTIONS) or {}
        schema = schema if key in _REQUIRED else or_null(schema)
        properties[key] = schema | {"description": texts[key]}
    schema = object_schema(properties | _mixing(), ["slots"])
    one_source = {"oneOf": [{"required": ["table"]}, {"required": [MIX_KEYS[0]]}]}
    return {"$schema": DRAFT, "title": "featstore training config", **schema, **one_source}


def _mixing() -> dict[str, Schema]:
    """The keys `tables` and `stop`."""
    text = {"type": "string"}
    fields = (text, {"type": "number", "exclusiveMinimum": 0}, or_null(text))
    entry = object_schema(dict(zip(ENTRY_KEYS, fields, strict=True)), ["table"])
    tables = {
        "type": "array",
        "items": entry,
        "minItems": 1,
        "description": "In place of `table`: several tables, batches of which are drawn by "
        "`weight` (1 if none is given). `where` of an entry holds besides that of the config.",
    }
    stop = {
        "enum": list(STOPS),
        "description": "Beside `tables`: an epoch ends with the first table that is exhausted, "
        "or when each was read to its end at least once.",
    }
    return {MIX_KEYS[0]: tables, MIX_KEYS[1]: stop}


def _slots() -> Schema:
    """Names, globs, or mappings of a name and the fields of `SlotRequest`."""
    items = any_of([{"type": "string"}, _named(SLOT_KEYS, SlotRequest)])
    return {"type": "array", "items": items, "minItems": 1}


def _labels() -> Schema:
    """Names, or mappings of a name and the fields of `LabelRequest`."""
    return {
        "type": "array",
        "items": any_of([{"type": "string"}, _named(LABEL_KEYS, LabelRequest)]),
    }


def _named(keys: tuple[str, ...], request: type) -> Schema:
    """A mapping of a name and of those fields of a request that are its options."""
    found = of_options(request)["properties"]
    named = {"name": {"type": "string"}}
    return object_schema(named | {key: found[key] for key in keys if key != "name"}, ["name"])


def _histories() -> Schema:
    """Mappings of the fields of `HistoryOptions`, by the names of histories."""
    return {"type": "object", "additionalProperties": or_null(of_options(HistoryOptions))}


_OWN = {"slots": _slots, "labels": _labels, "histories": _histories}
