"""Children that are forked while loaders of their parent read on read every row, and end."""

import threading
from pathlib import Path

import pytest

from featstore.loader.feature_loader import FeatureLoader
from tests.forks import in_a_fork
from tests.parquet_files import put_row_files
from tests.threads import beside

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
NUM_FILES, FILE_ROWS = 40, 200


def test_children_that_are_forked_while_threads_of_the_parent_read_end(
    tmp_path: Path, is_campaign: bool
) -> None:
    put_row_files(tmp_path, [FILE_ROWS] * NUM_FILES, row_group_size=50)
    ended = threading.Event()

    def num_rows() -> int:
        with FeatureLoader(str(tmp_path), slots=["row"], batch_size=50) as loader:
            return sum(batch.num_rows for batch in loader)

    def read_on() -> None:
        while not ended.is_set():
            num_rows()

    with beside(read_on, read_on):
        try:
            for _ in range(1000 if is_campaign else 40):
                assert in_a_fork(lambda: num_rows() != NUM_FILES * FILE_ROWS) == 0
        finally:
            ended.set()
