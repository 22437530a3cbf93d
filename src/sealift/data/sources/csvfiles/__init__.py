"""Text tables as people's programs export them."""
