"""One job at its accelerator: settings, keys and leases, and the work of its groups."""
