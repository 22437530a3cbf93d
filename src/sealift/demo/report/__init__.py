"""The demo's page: one file, no script, nothing from outside."""
