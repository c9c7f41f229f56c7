"""The key-value stores in which a coordinator keeps its leases."""
