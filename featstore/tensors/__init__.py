"""What moves: batches of tensors, their columns in packed buffers and in shared memory."""
