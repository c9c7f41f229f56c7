"""The key-value stores in which a coordinator keeps its leases."""

from featstore.dispatch.stores.address import Store, StoreAddress, bind, open_store

__all__ = ["Store", "StoreAddress", "bind", "open_store"]
