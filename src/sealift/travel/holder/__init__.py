"""A data owner's processes in a job: its holder and its broker."""
