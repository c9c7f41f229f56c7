"""Histories: the events that rows see, stored once in a row group (docs/design/histories.md)."""
