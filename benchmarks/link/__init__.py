"""Transfers to a device, served models and training steps, sealed beside plain."""
