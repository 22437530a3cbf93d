"""An owner's broker: which agreement is in force, who is asked what, what may leave."""
