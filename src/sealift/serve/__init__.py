"""Serving a sealed model: the server's parts and the client's; torch only in the worker."""
