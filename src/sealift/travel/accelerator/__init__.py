"""The accelerator: what visits it hosts, how their cargo is loaded, what it enforces."""
