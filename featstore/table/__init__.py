"""What is on disk: paths, metadata, data files, and the snapshots that name them."""
