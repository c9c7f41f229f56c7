"""Bytes to the local disk: data files staged ahead of the reader, under a byte budget."""

from featstore.staging.fetcher import Source, StageItem
from featstore.staging.options import Staging
from featstore.staging.stager import Staged, Stager

__all__ = ["Source", "StageItem", "Staged", "Stager", "Staging"]
