"""Data-parallel iterations: torch's own, the published way, and the product's."""
