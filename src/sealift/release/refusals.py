"""Which refusals a broker logs: all of peers with evidence, so many of all others.

Whoever reaches the relay can be refused as often as it likes: strangers must not fill
the disk that releases need. Threads may share it.
"""

from __future__ import annotations

import threading
from typing import Final

from sealift.attest.result import AttestationResult

MAX_UNPROVEN: Final = 1000


class RefusalCount:
    """Counts the refusals of peers without evidence, for one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unproven = 0

    def admit(self, result: AttestationResult | None) -> bool:
        """Count one refusal; whether it is to be logged.

        Args:
            result: What the refused peer's evidence amounted to, if it showed any that
                was accepted.
        """
        if result is not None:
            return True
        with self._lock:
            self._unproven += 1
            return self._unproven <= MAX_UNPROVEN
