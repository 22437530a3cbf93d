"""Files of vendors' tools, read for people at the command line; not the trust core."""
