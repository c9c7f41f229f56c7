"""Options as a config or a caller gives them: objects, mappings, lists, functions; and those of a
selected slot: which there are, and which slots allow them. `decode.py` applies them.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeVar

from featstore.base.errors import ConfigError, SelectionError, nearest, require_integer
from featstore.base.redaction import shown
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.histories.file_format import StoredHistory
from featstore.selection.slot_names import select

SLOT_KEYS = ("name", "buckets", "max_len", "pad", "keep", "pad_side", "dtype")
FIRST, LAST = KEPT_ENDS = ("first", "last")
RIGHT, LEFT = PAD_SIDES = ("right", "left")
# What `truncate` of a spec keeps.
_KEPT_OF_SPEC = {"head": FIRST, "tail": LAST}
_DTYPES = {SlotKind.ID: ("int64", "int32"), SlotKind.FLOAT: ("float32", "float16", "bfloat16")}


@dataclass(frozen=True, kw_only=True)
class SlotRequest:
    """A slot, and the options under which its values are delivered.

    Attributes:
        slot: The slot, as the table's schema declares it.
        buckets: Ids become `1 + sign % (buckets - 1)`, in `[0, buckets)`; 0 stays "missing".
        max_len: Lists are cut to this many elements.
        pad: Lists become a matrix (num_rows, pad): cut, or filled up with the missing mark, so that
            an id of 0, or NaN, is no value.
        keep: Which elements of lists that are cut stay, `first` or `last`.
        pad_side: Where lists are filled up, `right` or `left`.
        dtype: int32 for ids below 2^31, float16 or bfloat16 for floats; None is int64 or float32.
        history: The name of the history that the slot is of, if any.
    """

    slot: Slot
    buckets: int | None = None
    max_len: int | None = None
    pad: int | None = None
    keep: str = FIRST
    pad_side: str = RIGHT
    dtype: str | None = None
    history: str | None = None

    @property
    def is_as_stored(self) -> bool:
        """Whether values are delivered as they are stored."""
        options = (self.buckets, self.max_len, self.pad, self.dtype)
        return all(option is None for option in options)

    @property
    def is_jagged(self) -> bool:
        """Whether batches hold the slot as values and offsets."""
        return self.slot.is_list and self.pad is None

    @property
    def batch_width(self) -> int | None:
        """The width of the matrix that batches hold; None if it is a vector, or jagged."""
        return self.pad or self.slot.width

    @property
    def batch_dtype(self) -> str:
        """The dtype of the values in batches."""
        return self.dtype or ("int64" if self.slot.kind is SlotKind.ID else "float32")

    @property
    def key(self) -> list[object]:
        """The slot's part of the request's digest. Options that were added later are in it only
        where they are used, so that older digests stay valid.
        """
        later: dict[str, object] = {
            name: value
            for name, value in (("pad", self.pad), ("dtype", self.dtype))
            if value is not None
        }
        later |= {"keep": LAST} if self.keep == LAST else {}
        later |= {"pad_side": LEFT} if self.pad_side == LEFT else {}
        return [self.slot.name, self.buckets, self.max_len, *([later] if later else [])]


def requested_slots(
    schema: SlotSchema, items: Sequence[Any], histories: Sequence[StoredHistory] = ()
) -> tuple[SlotRequest, ...]:
    """Each selected slot once, in the order of first mention. The options of a mapping also apply
    to a slot that a glob selects.

    Args:
        schema: The table's slots.
        items: Names, globs, or mappings of a `name` and options.
        histories: The table's histories, the slots of which come after the others.

    Raises:
        ConfigError: An unknown option, one that the slot's kind, shape or values do not allow, two
            different mappings of one slot, or different `buckets` of slots that share signs.
        SelectionError: A name or glob that selects no slot.
    """
    options: dict[str, Mapping[str, Any]] = {}
    patterns = []
    owners = {slot.name: history for history in histories for slot in history.slots}
    more = tuple(slot for history in histories for slot in history.slots)
    table, schema = schema, SlotSchema(slots=(*schema.slots, *more))
    for item in items:
        if isinstance(item, Mapping):
            name = require_keys("slots", item, SLOT_KEYS)
            _refuse_column(name, schema, table)
            _ = schema[name]
            if options.get(name, item) != item:
                raise ConfigError(
                    f"slots: {name!r}: expected options once, found {dict(options[name])} and "
                    f"{dict(item)}: a slot is delivered once"
                )
            options[name] = item
            patterns.append(name)
        elif isinstance(item, str):
            _refuse_column(item, schema, table)
            patterns.append(item)
        else:
            raise ConfigError(
                f"slots: expected a name or {{name: ..., buckets: ...}}, found {item!r}"
            )
    requested = tuple(
        _slot(schema[name], options.get(name, {}))
        if name not in owners
        else _slot_of_history(schema[name], options.get(name, {}), owners[name])
        for name in select(patterns, schema.names)
    )
    require_shared_buckets(requested)
    return requested


def require_shared_buckets(requested: Sequence[SlotRequest]) -> None:
    """ConfigError if slots that share signs have different buckets: one item would have an id of
    its own in each, and an embedding table that they share would hold it twice.
    """
    first: dict[int, SlotRequest] = {}
    for item in requested:
        shared = item.slot.share_slot or item.slot.number
        other = item if shared is None else first.setdefault(shared, item)
        if other.buckets != item.buckets:
            raise ConfigError(
                f"slots: {other.slot.name!r} and {item.slot.name!r} share their signs "
                f"(share_slot): expected the same buckets of both, found "
                f"{other.buckets or 'none'} and {item.buckets or 'none'}: one item would have two "
                "ids"
            )


def _slot(slot: Slot, options: Mapping[str, Any]) -> SlotRequest:
    buckets = _integer(slot, options, "buckets", minimum=2)
    max_len = _integer(slot, options, "max_len")
    pad = _integer(slot, options, "pad")
    if buckets is not None and slot.kind is not SlotKind.ID:
        raise ConfigError(
            f"slots: {slot.name!r}: buckets are for id slots, found a {slot.kind} slot"
        )
    if buckets is not None and buckets > 2**63:
        raise ConfigError(
            f"slots: {slot.name!r}: buckets: expected at most 2^63, as signs have 63 bits, found "
            f"{buckets}"
        )
    if buckets is not None and slot.num_indices is not None:
        raise ConfigError(
            f"slots: {slot.name!r}: holds indices below {slot.num_indices}, not signs: leave out "
            f"buckets"
        )
    for key, value in (("max_len", max_len), ("pad", pad)):
        if value is not None and not slot.is_list:
            raise ConfigError(
                f"slots: {slot.name!r}: {key} is for lists, found shape {slot.shape_text}"
            )
    if pad is not None and max_len is not None:
        raise ConfigError(
            f"slots: {slot.name!r}: expected pad or max_len, found both: pad cuts lists too"
        )
    is_cut = max_len is not None or pad is not None
    kept_by_spec = _KEPT_OF_SPEC.get(slot.truncate or "", FIRST) if is_cut else FIRST
    return SlotRequest(
        slot=slot,
        buckets=buckets,
        max_len=max_len,
        pad=pad,
        keep=_one_of(slot, options, "keep", KEPT_ENDS, "max_len or pad", is_cut) or kept_by_spec,
        pad_side=_one_of(slot, options, "pad_side", PAD_SIDES, "pad", pad is not None) or RIGHT,
        dtype=_dtype(slot, options, buckets),
    )


def _refuse_column(name: str, schema: SlotSchema, table: SlotSchema) -> None:
    """SelectionError for a column of the table that is no slot, with the option that it is for.

    Args:
        name: The name.
        schema: The slots, with those of histories.
        table: The table's schema, with its other columns.
    """
    weight = () if table.weight is None else (table.weight,)
    for what, option, columns in (
        ("a label", "labels", table.labels),
        ("the weight", "weight", weight),
        ("a kept column", "extras", table.kept),
        ("a partition key", "extras", table.partition_keys),
    ):
        if name not in schema and name in [column.name for column in columns]:
            raise SelectionError(
                f"slots: {name!r}: expected a slot, found {what} of the table: name it in "
                f"`{option}`"
            )


_OF_HISTORIES = {
    "pad": "pad lists in `transform`",
    "max_len": "shorten all of them by max_len in `histories`",
}


def _slot_of_history(slot: Slot, options: Mapping[str, Any], history: StoredHistory) -> SlotRequest:
    """A slot of a history, all of which have one length in each row."""
    for key in _OF_HISTORIES:
        if options.get(key) is not None:
            raise ConfigError(
                f"slots: {slot.name!r}: {key}: expected none, as the slot is of the history "
                f"{history.name!r}, the lists of which are as long as each other: "
                f"{_OF_HISTORIES[key]}"
            )
    found = _slot(slot, options)
    if slot in [age for age, _ in history.ages] and found.dtype is not None:
        raise ConfigError(
            f"slots: {slot.name!r}: expected dtype float32 of what is made while reading, found "
            f"{found.dtype}: convert it in `transform`"
        )
    return replace(found, history=history.name)


def _one_of(
    slot: Slot,
    options: Mapping[str, Any],
    key: str,
    known: Sequence[str],
    needs: str,
    has_needed: bool,
) -> str | None:
    """An option that is one of a few words, None if it is not given."""
    value = options.get(key)
    if value is None:
        return None
    if value not in known:
        raise ConfigError(
            f"slots: {slot.name!r}: {key}: expected {' or '.join(known)}, found {value!r}"
            f"{nearest(str(value), known)}"
        )
    if not has_needed:
        raise ConfigError(
            f"slots: {slot.name!r}: expected {needs} beside {key}, found neither: lists are "
            "delivered whole"
        )
    return str(value)


def _dtype(slot: Slot, options: Mapping[str, Any], buckets: int | None) -> str | None:
    """The dtype, or None where it is the kind's own. ConfigError for one that cannot hold the
    slot's values.
    """
    if options.get("dtype") is None:
        return None
    known, dtype = _DTYPES[slot.kind], str(options["dtype"]).removeprefix("torch.")
    if dtype not in known:
        raise ConfigError(
            f"slots: {slot.name!r}: expected dtype {' or '.join(known)} for {slot.kind} slots, "
            f"found {dtype!r}{nearest(dtype, known)}"
        )
    num_ids = slot.num_indices if buckets is None else buckets
    if dtype == "int32" and (num_ids is None or num_ids > 2**31):
        found = "signs of 63 bits" if num_ids is None else f"ids below {num_ids}"
        raise ConfigError(
            f"slots: {slot.name!r}: dtype int32 is for ids below 2^31, found {found}: give buckets "
            f"of 2^31 or less"
        )
    return None if dtype == known[0] else dtype


def _integer(slot: Slot, options: Mapping[str, Any], key: str, minimum: int = 1) -> int | None:
    if options.get(key) is None:
        return None
    return require_integer(f"slots: {slot.name!r}: {key}", options[key], minimum)


Options = TypeVar("Options")


def as_options(
    kind: type[Options], value: Options | Mapping[str, Any] | None, what: str
) -> Options | None:
    """An options object as it is, or built from a mapping of its fields.

    Args:
        kind: The dataclass of the options.
        value: An object of it, a mapping, or None, which stays None.
        what: The argument's name, for errors.

    Raises:
        ConfigError: Not a mapping, or one with unknown keys.
    """
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: expected keys of {kind.__name__}, found {shown(value)}")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    require_known(what, value, known)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in value and field.default is field.default_factory is MISSING:
            raise ConfigError(f"{what}: expected a key {field.name!r}, found {shown(value)}")
    return kind(**value)


def require_known(what: str, keys: Iterable[object], known: Collection[str]) -> None:
    """ConfigError for a key that there is not."""
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"{what}: unknown key {key!r}{nearest(str(key), known)}; there are "
                f"{', '.join(known)}"
            )


def as_list(what: str, items: Any) -> list[Any]:
    """The items of a list in a config. ConfigError for text, a mapping, or what is no list."""
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise ConfigError(f"{what}: expected a list, found {items!r}")
    return list(items)


def require_keys(what: str, item: Mapping[str, Any], known: Collection[str]) -> str:
    """The name of an item that is a mapping. ConfigError where it has none, or unknown keys."""
    for key in item:
        if key not in known:
            raise ConfigError(
                f"{what}: unknown key {key!r} in {dict(item)}{nearest(str(key), known)}"
            )
    if not isinstance(item.get("name"), str):
        raise ConfigError(f"{what}: expected a name in {dict(item)}")
    return str(item["name"])


def function_of(option: str, value: object) -> Callable[..., Any]:
    """The function that an option names.

    Args:
        option: The option's name, for errors.
        value: A function, or `package.module:function`.

    Raises:
        ConfigError: It cannot be imported, or not called.
    """
    found: Any = value
    if isinstance(value, str):
        module, _, name = value.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{option}: expected 'package.module:function', found {value!r}: {error}"
            ) from error
    if not callable(found):
        raise ConfigError(f"{option}: expected a function, found {value!r}")
    function: Callable[..., Any] = found
    return function
