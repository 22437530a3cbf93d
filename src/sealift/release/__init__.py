"""May it have this key? Agreement, broker, vault, audit log, receipts (Perun)."""
