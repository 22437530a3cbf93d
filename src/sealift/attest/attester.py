"""The seam on the attesting side: what every kind of evidence is collected through.

An attester may open devices and talk to a platform; it decides nothing. Kinds are found
in ``sealift.attest.attesters``.
"""

from __future__ import annotations

from typing import Protocol

from sealift.attest.evidence import Evidence


class Attester(Protocol):
    """Makes evidence about the process and machine that it runs in."""

    @property
    def media_type(self) -> str:
        """Format of the evidence that ``collect`` returns."""
        ...

    def collect(self, bound: bytes) -> Evidence:
        """Evidence that carries ``bound`` (32 bytes) in its signed field.

        Raises:
            UnavailableError: if the platform cannot make it now.
        """
        ...
