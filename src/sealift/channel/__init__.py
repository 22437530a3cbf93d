"""Sealed streams: data at rest, transfers, hand-over and messages in one format."""
