"""A look ahead: what `host`, `train` and `join` would do, and whether they could.

Above the commands: it adds its flags to their parsers, and asks what they ask before they
start. Nothing is started or released here, nothing is written but the draft of a table.toml, and
no port but the orchestrator's is dialled.
"""
