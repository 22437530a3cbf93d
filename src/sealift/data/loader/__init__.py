"""Verified rows to batches of tensors, in a seeded order, on the host or on a device."""
