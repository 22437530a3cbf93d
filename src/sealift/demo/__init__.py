"""All roles on this machine, real data, real cryptography: the first contact."""
