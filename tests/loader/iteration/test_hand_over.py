"""The debug flag: who writes to a batch in place is told which column."""

from typing import Any

import pytest

from featstore.base.errors import BatchError
from featstore.loader.feature_loader import FeatureLoader


def write_row(batch: Any) -> None:
    batch["row"][0] = 7


def write_list(batch: Any) -> None:
    batch["tags"].values.mul_(2)


def write_label(batch: Any) -> None:
    batch.labels["click"].numpy()[:] = 5


def write_weight(batch: Any) -> None:
    batch.weight.add_(1)


@pytest.mark.parametrize("shuffle", [None, {"window_rows": 40}])
@pytest.mark.parametrize(
    ("write", "named"),
    [
        (write_row, r"batch\['row'\]"),
        (write_list, r"batch\['tags'\]"),
        (write_label, r"batch\.labels\['click'\]"),
        (write_weight, r"batch\.weight"),
    ],
)
def test_a_write_is_found_when_the_next_batch_is_asked_for(
    table_url: str, write: Any, named: str, shuffle: Any
) -> None:
    loader = FeatureLoader(
        table_url,
        slots=["row", "tags"],
        labels=["click"],
        weight="half",
        batch_size=50,
        debug=True,
        shuffle=shuffle,
    )
    batches = iter(loader)
    write(next(batches))
    with pytest.raises(BatchError, match=rf"{named}.* was written in place: .*batch\.clone\(\)"):
        next(batches)


def test_a_write_is_found_at_ack(table_url: str) -> None:
    loader = FeatureLoader.from_config({"table": table_url, "slots": ["row"], "debug": True})
    write_row(next(iter(loader)))
    with pytest.raises(BatchError):
        loader.ack()
    loader.close()


def test_a_copy_may_be_written_and_reading_is_no_write(table_url: str) -> None:
    for batch in FeatureLoader(table_url, slots=["*"], labels=["click"], batch_size=33, debug=True):
        write_row(batch.clone())
        assert batch["pair"].sum() == 0


def write_and_return(batch: Any) -> Any:
    write_row(batch)
    return batch


def write_and_add(batch: Any) -> Any:
    write_list(batch)
    return {"more": batch["row"] + 1}


@pytest.mark.parametrize(
    ("transform", "named"), [(write_and_return, "row"), (write_and_add, "tags")]
)
def test_a_transform_that_writes_in_place_is_named(
    table_url: str, transform: Any, named: str
) -> None:
    how: Any = {"slots": ["row", "tags"], "batch_size": 50, "transform": transform}
    message = (
        rf"transform write_and_.* failed on rows 0 to .*batch\['{named}'\] was written in place"
    )
    with pytest.raises(BatchError, match=message):
        list(FeatureLoader(table_url, debug=True, **how))
