"""Transfers to a device: modes, keys, sending, opening, sealing ahead."""
