"""Numbers and lists for people, the same on every screen and page."""

from __future__ import annotations


def say_bytes(count: int) -> str:
    """Bytes for people: ``79.2 kB``, ``5.1 MB``, ``2.0 GB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def say_s(seconds: float) -> str:
    """Seconds for people: ``6.3 ms``, ``4.2 s``."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def say_loudly(level: str) -> str:
    """``DEVELOPMENT (rehearsing attested-host)``: no reader shall miss it."""
    return level.replace("development", "DEVELOPMENT")
