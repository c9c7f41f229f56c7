"""Tables on disk: paths, metadata, data files, and the snapshots that reference them."""
