"""Bytes to the local disk: data files staged ahead of the reader, under a byte budget."""

from featstore.staging.options import Staging
from featstore.staging.stager import Staged, StageItem, Stager

__all__ = ["StageItem", "Staged", "Stager", "Staging"]
