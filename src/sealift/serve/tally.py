"""What a server counts: numbers and stable names, nothing of anybody's rows."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Final

MAX_CODES: Final = 100  # refusals by name; strangers choose what fails
KEPT: Final = 2048  # newest latencies, for percentiles


class Tally:
    """Counts since the start, and the newest latencies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._latencies_s: deque[float] = deque(maxlen=KEPT)

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._numbers[name] += number

    def answered(self, latency_s: float) -> None:
        """A question was answered, so long after it arrived."""
        with self._lock:
            self._numbers["answered"] += 1
            self._latencies_s.append(latency_s)

    def refused(self, code: str) -> None:
        """A question or a client was refused."""
        with self._lock:
            known = code in self._refused or len(self._refused) < MAX_CODES
            self._refused[code if known else "other"] += 1

    def numbers(self) -> dict[str, int | float]:
        """Everything by name; percentiles are of the newest questions."""
        with self._lock:
            found: dict[str, int | float] = dict(sorted(self._numbers.items()))
            for code, count in sorted(self._refused.items()):
                found[f"refused_{code.replace('-', '_')}"] = count
            newest = sorted(self._latencies_s)
        for share, name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
            if newest:
                place = min(len(newest) - 1, int(share * len(newest)))
                found[name] = round(newest[place] * 1000, 3)
        return found
