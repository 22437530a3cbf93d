"""The command line: one file per noun, each with `add_parser` and `run`."""
