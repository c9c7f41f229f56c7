"""`tf.train.Example` and `tf.train.SequenceExample` without tensorflow, by the protobuf package.

Both are read as one message: an Example has features only, a SequenceExample, whose context has the
same field number, has lists of features besides. The numbers are those of tensorflow's
`example.proto` and `feature.proto`.
"""

import functools
from typing import Any

from featstore.base.errors import import_extra

KINDS = ("bytes_list", "float_list", "int64_list")
_LABEL_OPTIONAL, _LABEL_REPEATED = 1, 3  # of descriptor.proto
_TYPE_STRING, _TYPE_MESSAGE = 9, 11
_VALUE_TYPES = {"bytes_list": 12, "float_list": 2, "int64_list": 3}


@functools.cache
def example_class() -> Any:
    """The class of both messages, with the fields `features` and `feature_lists`.

    Raises:
        MissingDependencyError: protobuf is not installed.
    """
    what = "reading TFRecord"
    descriptors = import_extra("google.protobuf.descriptor_pb2", what)
    pools = import_extra("google.protobuf.descriptor_pool", what)
    factory = import_extra("google.protobuf.message_factory", what)
    file = descriptors.FileDescriptorProto(
        name="featstore/example.proto", package="featstore.tf", syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(KINDS, 1):
        values = file.message_type.add(name=kind)
        values.field.add(name="value", number=1, label=_LABEL_REPEATED, type=_VALUE_TYPES[kind])
        _add_message(feature, kind, kind, number).oneof_index = 0
    _add_map(file, "Features", "feature", "Feature")
    steps = file.message_type.add(name="FeatureList")
    _add_message(steps, "feature", "Feature", 1, _LABEL_REPEATED)
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
    example = file.message_type.add(name="Example")
    _add_message(example, "features", "Features", 1)
    _add_message(example, "feature_lists", "FeatureLists", 2)
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("featstore.tf.Example"))


def _add_message(
    holder: Any, name: str, message: str, number: int, label: int = _LABEL_OPTIONAL
) -> Any:
    return holder.field.add(
        name=name,
        number=number,
        label=label,
        type=_TYPE_MESSAGE,
        type_name=f".featstore.tf.{message}",
    )


def _add_map(file: Any, message: str, field: str, value: str) -> None:
    """A message with one field, a map from texts to messages: a repeated entry of key and value."""
    holder = file.message_type.add(name=message)
    # The name that protobuf demands of the entries of a map.
    entry_name = "".join(part.title() for part in field.split("_")) + "Entry"
    entry = holder.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_LABEL_OPTIONAL, type=_TYPE_STRING)
    _add_message(entry, "value", value, 2)
    _add_message(holder, field, f"{message}.{entry_name}", 1, _LABEL_REPEATED)
