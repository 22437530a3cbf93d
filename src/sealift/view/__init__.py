"""Pages that a browser shows: one file each, without a script, nothing loaded."""
