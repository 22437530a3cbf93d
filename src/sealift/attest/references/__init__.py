"""Reference values by kind of evidence: what the parties agreed it must show."""
