"""The HTTP rim of a broker: the KBS protocol, health and metrics."""
