"""A data owner's holder in a job: its visits, and what it watches meanwhile."""
