"""What limits this machine: probes of ciphers, GPU and host, and the command that asks them."""
