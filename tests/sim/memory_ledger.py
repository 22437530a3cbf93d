"""A ledger that forgets at the end of the process."""

from __future__ import annotations

from dataclasses import dataclass, field

from sealift.crypto.sign import PublicKey
from sealift.release.decision import require_use


@dataclass
class MemoryLedger:
    """See ``sealift.release.vault.ledger.Ledger``, which is in a vault."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    revocations: dict[PublicKey, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    holders: set[tuple[str, PublicKey, str]] = field(default_factory=set)

    def debit(self, line: str, resource: str, limit: int, instance: PublicKey) -> int:
        count = self.uses(line, resource) + 1
        require_use(count, limit, resource)
        self.counts[line, resource] = count
        self.holders.add((line, instance, resource))
        return count

    def uses(self, line: str, resource: str) -> int:
        return self.counts.get((line, resource), 0)

    def held(self, line: str, instance: PublicKey) -> frozenset[str]:
        known = (each for each in self.holders if each[:2] == (line, instance))
        return frozenset(resource for *_, resource in known)

    def revoke(self, instance: PublicKey, rule: str) -> int:
        self.revocations.setdefault(instance, rule)
        return self.epoch()

    def revoked(self, instance: PublicKey) -> str:
        return self.revocations.get(instance, "")

    def epoch(self) -> int:
        return len(self.revocations)

    def remember(self, name: str, number: int) -> None:
        self.numbers[name] = max(number, self.remembered(name))

    def remembered(self, name: str) -> int:
        return self.numbers.get(name, 0)
