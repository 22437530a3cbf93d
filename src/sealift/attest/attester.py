"""The seam on the attesting side: what every kind of evidence is collected through.

An attester may open devices and talk to a platform; it decides nothing. Each
kind has its own, in ``attest/<kind>/attester.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent

Measure = Callable[[RuntimeEvent], None]
"""Extends the register of the runtime log; returns once that is done."""


class Attester(Protocol):
    """Makes evidence about the process and machine that it runs in."""

    @property
    def media_type(self) -> str:
        """Format of the evidence that ``collect`` returns."""
        ...

    def collect(self, bound: bytes) -> Evidence:
        """Evidence that carries ``bound`` (2 to 64 bytes) in its signed field.

        Raises:
            UnavailableError: if the platform cannot make it now.
        """
        ...


@runtime_checkable
class ContinuingAttester(Attester, Protocol):
    """One whose evidence grows, and that can send only what is new.

    Within one session each renewal continues the evidence before, so that its cost does
    not depend on how long the machine has been running.
    """

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """Evidence over ``bound`` that leaves out what ``earlier`` showed.

        Raises:
            UnavailableError: if the platform cannot make it now.
        """
        ...


@runtime_checkable
class MeasuringAttester(Attester, Protocol):
    """One with a register for what the process measures about itself."""

    def measure(self, event: RuntimeEvent) -> None:
        """Extend the runtime log's register with ``event``.

        Raises:
            UnavailableError: if the platform cannot now.
        """
        ...


def unmeasured(event: RuntimeEvent) -> None:
    """For a machine without such a register: development evidence has none."""


def measuring(attester: Attester) -> Measure:
    """What extends the register of this attester, or does nothing if it has none."""
    return attester.measure if isinstance(attester, MeasuringAttester) else unmeasured
