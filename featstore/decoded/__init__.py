"""Data files on this host: where they are read, and their decoded columns in a cache."""
