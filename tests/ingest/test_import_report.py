"""Columns as the inputs of a spec."""

import pyarrow as pa
import yaml

from featstore.ingest.import_job import ImportSchema


def test_columns_are_shown_as_inputs_that_yaml_reads() -> None:
    schema = pa.schema(
        [
            ("user", pa.string()),
            ("a b", pa.list_(pa.float32())),
            ('"', pa.int64()),
            ("no", pa.bool_()),
            ("raw", pa.binary()),
        ]
    )
    text = str(ImportSchema.of(schema))
    assert yaml.safe_load(text) == {
        "inputs": {"user": "string", "a b": "list<double>", '"': "long", "no": "boolean"}
    }
    assert text.endswith("\n# not for a spec: raw (binary)")
