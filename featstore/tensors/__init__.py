"""Batches of tensors, and their columns in packed buffers and in shared memory."""
