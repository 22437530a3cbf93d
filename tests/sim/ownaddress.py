"""An address that no other test takes, however long nobody listens there."""

from __future__ import annotations

import secrets


def own_address() -> str:
    """Host and port on loopback; ports are given out for each host, and this one is ours."""
    numbers = (str(1 + secrets.randbelow(254)) for _ in range(3))
    return f"127.{'.'.join(numbers)}:7410"
