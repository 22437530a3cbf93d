"""What a party remembers of every log: the largest head it saw (rule H6).

The first head of a log is taken as it is, after its signature; from then on every other
head must be shown to be of the same log, by a consistency proof. A log that was rolled
back or forked after that cannot show one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.sign import PublicKey
from sealift.errors import IntegrityError, MalformedError, PolicyError
from sealift.release.agreement import Party
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import locked, read_whole, write_whole
from sealift.release.log.entries import (
    SignedTreeHead,
    TreeHead,
    verify_growth,
    verify_head,
)

MAX_FILE_BYTES: Final = 1 << 20
# (log, first, second) -> consistency proof, from that log's broker
Prove = Callable[[PublicKey, int, int], tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file's form."""

    heads: dict[str, SignedTreeHead] = field(default_factory=dict)


def _no_proof(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
    raise PolicyError(
        "a tree head without proof that its log only grew",
        why=f"from {first} to {second} entries",
        code="head-unproven",
    )


class HeadStore:
    """The last head seen of every log, in one file that several processes may share.

    Args:
        path: The file; made when the first head is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept = _load(path)

    def last(self, log: PublicKey) -> SignedTreeHead | None:
        """The largest head that was kept of a log."""
        return self._kept.get(log.to_text())

    def admit(self, signed: SignedTreeHead, prove: Prove = _no_proof) -> None:
        """Check a head against the one kept, and keep the larger of the two.

        Args:
            signed: The head that somebody showed us.
            prove: Gets the consistency proof between two sizes, smaller first; the
                proof need not come from a trusted place.

        Raises:
            IntegrityError: ``head-unsigned``, or ``log-forked``: rolled back or forked.
            PolicyError: ``head-unproven``, if there is no proof.
        """
        head = verify_head(signed)
        while True:
            kept = self._reload(signed.log)
            if kept is not None:
                _verify_same_log(kept.head, head, prove)  # may dial: under no lock
                if head.size <= kept.size:
                    return
            if self._replace(kept, signed):
                return

    def _reload(self, log: PublicKey) -> SignedTreeHead | None:
        """The larger head of what this process saw and what the file holds."""
        with self._lock:
            seen = (*self._kept.values(), *_load(self._path).values())
            by_size = sorted(seen, key=lambda signed: signed.size)
            self._kept = {signed.log.to_text(): signed for signed in by_size}
            return self.last(log)

    def _replace(self, kept: SignedTreeHead | None, signed: SignedTreeHead) -> bool:
        """Keep ``signed``, unless somebody else kept another head meanwhile."""
        with locked(self._path.parent):
            if self._reload(signed.log) != kept:
                return False
            with self._lock:
                heads = {**self._kept, signed.log.to_text(): signed}
                write_whole(self._path, encode(_Kept(heads)))
                self._kept = heads
        return True


def _verify_same_log(kept: TreeHead, head: TreeHead, prove: Prove) -> None:
    if head.size == 0 < kept.size:
        # The empty log is a prefix of every log, so no proof would catch this one.
        raise IntegrityError(
            "the log was emptied",
            why=f"a head of {kept.size} entries was kept",
            fix="Keep that head: it shows that its owner rolled the log back",
            code="log-forked",
        )
    earlier, later = sorted((kept, head), key=lambda entry: entry.size)
    proof: tuple[bytes, ...] = ()
    if 0 < earlier.size < later.size:
        proof = prove(head.log, earlier.size, later.size)
    verify_growth(earlier, later, proof)


class ShownHeads:
    """What an accelerator shows to every holder: the latest head of each log it used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[PublicKey, SignedTreeHead] = {}

    def show(self, head: SignedTreeHead) -> None:
        """Show this one from now on, in place of an earlier one of its log."""
        with self._lock:
            shown = self._heads.get(head.log)
            if shown is None or shown.size < head.size:
                self._heads[head.log] = head

    def __call__(self) -> tuple[SignedTreeHead, ...]:
        """One head of each log."""
        with self._lock:
            return tuple(self._heads.values())


def log_owner(signed: SignedTreeHead, verified: VerifiedAgreement) -> Party:
    """Whose log it is: one owner key, one log. The signature is checked elsewhere.

    Raises:
        PolicyError: ``other-log``: of no party.
    """
    for party in verified.agreement.parties:
        if party.sign == signed.log:
            return party
    raise PolicyError("a tree head of a log of no party", code="other-log")


def find_head(path: Path, log: PublicKey) -> SignedTreeHead:
    """The head of a log in a file: a single head, or a store of many.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is neither.
        PolicyError: ``no-head``, if it holds no head of this log.
    """
    raw = read_whole(path, MAX_FILE_BYTES)
    try:
        kept = decode(_Kept, raw).heads
    except MalformedError:
        single = _single_head(raw, path)
        kept = {single.log.to_text(): single}
    if log.to_text() not in kept:
        raise PolicyError(
            f"{path} holds no head of this log",
            why=f"the log's owner is {log}",
            code="no-head",
        )
    return kept[log.to_text()]


def _single_head(raw: bytes, path: Path) -> SignedTreeHead:
    try:
        return decode(SignedTreeHead, raw)
    except MalformedError as error:
        raise MalformedError(
            f"{path} holds no tree heads", why=error, code="bad-heads"
        ) from None


def _load(path: Path) -> dict[str, SignedTreeHead]:
    if not path.exists():
        return {}
    raw = read_whole(path, MAX_FILE_BYTES)
    return decode(_Kept, raw, max_bytes=MAX_FILE_BYTES).heads
