"""Choose the AEAD engine, and say why.

There is one engine now. A caller that asks for another by name is refused: nothing
falls back silently.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealift.channel.backend import AeadBackend
from sealift.channel.cpu import CpuBackend
from sealift.crypto.aead import Suite
from sealift.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Selection:
    """An engine and the reason it was taken."""

    backend: AeadBackend
    reason: str


def select(suite: Suite = Suite.AES_256_GCM, *, prefer: str | None = None) -> Selection:
    """The engine for ``suite``.

    Args:
        suite: The suite that it must compute.
        prefer: The name of an engine, if the caller insists on one.

    Raises:
        UnavailableError: if there is no engine of that name, or none with the suite.
    """
    engines: tuple[AeadBackend, ...] = (CpuBackend(),)
    named = [e for e in engines if prefer in (None, e.name)]
    if not named:
        raise UnavailableError(
            f"there is no AEAD engine named {prefer!r}",
            fix=f"Choose from: {', '.join(e.name for e in engines)}",
            code="no-such-backend",
        )
    fitting = [e for e in named if suite in e.suites()]
    if not fitting:
        raise UnavailableError(f"no AEAD engine computes {suite.name}")
    why = "asked for by name" if prefer else "the only engine in this installation"
    return Selection(fitting[0], f"{fitting[0].name}: {why}")
