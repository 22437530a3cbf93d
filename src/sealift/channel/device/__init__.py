"""What an engine on a device is, the stand-in on the host, and what waits for a verdict."""
