import pickle

from featstore.dispatch.stores.served import ServerIdentity


def test_the_first_server_is_recognised_also_after_pickling() -> None:
    server = ServerIdentity()
    assert server.is_same("a", is_durable=True)
    assert not server.is_same("b")
    copy = pickle.loads(pickle.dumps(server))
    assert not copy.is_same("b")
    assert copy.is_known
    assert not copy.has_ended
