"""Sealed tables for PyTorch users: schema, sealing at home, reading, batches.

``schema`` and ``schemafile`` need the standard library only; ``rows``, ``table``,
``seal`` and ``dataset`` need numpy; only ``loader`` needs torch.
"""
