"""The process that opens records for a loader: keys by a pipe, rows by a memory file."""
