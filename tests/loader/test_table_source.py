"""The life of a loader whose dispatch store does not answer."""

import time

import pytest

from featstore.dispatch.stores.tcp import TcpStore
from featstore.loader.feature_loader import FeatureLoader
from tests.dispatch.stores.served import ServerProcess


def test_the_verdict_of_a_process_that_has_iterated_needs_no_store(
    table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess() as server:
        dispatch = {"store": server.url, "run_id": "run"}
        loader = FeatureLoader(table_url, slots=["row"], dispatch=dispatch)
        next(iter(loader))
        loader.close()
        monkeypatch.setattr(TcpStore, "_exchange", lambda *_: pytest.fail("the store was asked"))
        assert loader.verdict() == ""


def test_a_verdict_waits_seconds_for_a_store_that_does_not_answer(table_url: str) -> None:
    with ServerProcess() as server:
        dispatch = {"store": server.url, "run_id": "run"}
        with FeatureLoader(table_url, slots=["row"], dispatch=dispatch) as loader:
            server.stop()
            start = time.monotonic()
            assert loader.verdict().startswith(
                "whether DataLoader workers read the batches is not known: dispatch store tcp://"
            )
            assert time.monotonic() - start < 60
