"""Parquet at the level of bytes: Thrift's compact protocol, and footers that are checked before
Arrow sees them.
"""
