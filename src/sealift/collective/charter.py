"""Who is in a group, and the one view of it that every pair confirms before it sums.

The charter is fixed before anybody meets: the agreement, the job, the shape of the run,
and who has which rank. The view adds what is fresh: each rank's instance key, as its
sessions proved it, and the epoch, which rank 0 draws anew whenever the ranks start. Every
pair compares digests of its views inside its own session (rule C8: nothing of a former
start fits), so a relay that splits a group, or a rank that is two, is found by whoever
meets it.
Source: spec/collective.md section 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealift.codec import encode
from sealift.collective.group import MAX_RANKS
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey
from sealift.errors import IntegrityError, UsageError
from sealift.ids import Digest

EPOCH_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What every rank knows before it meets another.

    Attributes:
        agreement: Digest of the agreement that all work under.
        job: Name of the job.
        shape: Digest of what decides the result's bits.
        names: The ranks' names, in the order of ranks.
    """

    agreement: Digest
    job: str
    shape: Digest
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= MAX_RANKS:
            raise UsageError(
                f"a group must have 1 to {MAX_RANKS} ranks; this one has "
                f"{len(self.names)}",
                code="bad-world",
            )
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise UsageError(
                f"the name {twice[0]} is used for two ranks", code="bad-world"
            )

    def view(self, instances: Sequence[PublicKey], epoch: bytes) -> Digest:
        """The group as this rank sees it; both ends of every pair must have this digest.

        Args:
            instances: Proven instance keys, in the order of ranks.
            epoch: ``EPOCH_BYTES`` that rank 0 drew.

        Raises:
            IntegrityError: code ``one-key-two-ranks``.
        """
        for rank, key in enumerate(instances):
            if key in instances[:rank]:
                raise IntegrityError(
                    f"{self.names[rank]} is the same process as another rank",
                    why="two ranks have one instance key",
                    code="one-key-two-ranks",
                )
        keys = [key.raw for key in instances]
        return Digest(labelled(Label.GROUP_VIEW.value, encode(self), *keys, epoch))


def demand_same_view(ours: Digest, theirs: Digest, name: str) -> None:
    """Compare with what ``name`` sees.

    Raises:
        IntegrityError: code ``two-views``.
    """
    if theirs != ours:
        raise IntegrityError(
            f"{name} has joined another group than this rank",
            why="its charter, instance keys or epoch differ",
            code="two-views",
        )
