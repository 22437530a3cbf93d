"""A holder that attacks: its first three visits are attacks, then it behaves.

``python -m sealift.demo.hostile`` runs it as a process of its own, with a real party's
identity and sealed files: the strongest position from which another party can attack an
accelerator. No command of ``sealift`` reaches this module. It is the ordinary holder
(``travel.attendance``) with a session in between that sends other frames than it was
given; the accelerator's side is untouched.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from sealift.channel.rawfile import RawSealedFile
from sealift.crypto.identity import Identity, load_identity
from sealift.crypto.kdf import Label
from sealift.crypto.keys import SecretKey
from sealift.data.card import CARD_SUFFIX, SEALED_SUFFIX, read_card
from sealift.demo.passing import PassingSession, copy_key
from sealift.demo.stop import leave_on_sigterm
from sealift.errors import SealiftError
from sealift.events import Sink, emit
from sealift.ids import Buffer, Role
from sealift.release.equip import equip
from sealift.release.files import read_whole
from sealift.release.heads import HeadStore
from sealift.release.signed import VerifiedAgreement, load_verified
from sealift.session.endpoint import Endpoint
from sealift.session.link import Link
from sealift.train.eventlines import EventLines
from sealift.train.settings import JobTable, parse_address, read_job
from sealift.travel.attendance import Attendance
from sealift.travel.frame import Placement, build_frame, parse_frame
from sealift.travel.holder import HeldResource
from sealift.travel.lease import Lease, SignedLease
from sealift.travel.paths import VisitSession
from sealift.travel.peers import link_name

REPLAY: Final = "replay"
BEYOND_LEASE: Final = "beyond-lease"
PREVIOUS_KEY: Final = "previous-key"
TRIES: Final = (REPLAY, BEYOND_LEASE, PREVIOUS_KEY)


class HostileSession(PassingSession):
    """Stands between an honest holder and its session, and spoils what it sends.

    Args:
        session: The real one.
        lease: Of this visit.
        attack: What to try; empty to behave.
        previous: The key of the visit before.
    """

    def __init__(
        self,
        session: VisitSession,
        lease: Lease,
        *,
        attack: str,
        previous: SecretKey | None = None,
    ) -> None:
        super().__init__(session, lease)
        self._attack = attack
        self._previous = previous
        self._first: bytes | None = None

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """This visit's key, or the key of the visit before."""
        key = super().export(label, context)
        if self._attack == PREVIOUS_KEY and self._previous is not None:
            return copy_key(self._previous)
        return key

    def send_raw(self, frame: Buffer) -> None:
        """The frame, or what the attack makes of it."""
        frame = bytes(frame)  # its memory is used again for the next one
        if self._attack == REPLAY and self._first is not None:
            frame = self._first
        elif self._attack == BEYOND_LEASE:
            frame = self._move(frame)
        self._first = self._first or frame
        super().send_raw(frame)

    def _move(self, raw: bytes) -> bytes:
        """The same record, properly authenticated, behind the end of the lease."""
        assert self.visit_key is not None, "frames are built with it"
        frame = parse_frame(raw)
        place = Placement(
            sequence=frame.sequence,
            record=frame.record_index,
            offset=self.lease.offset + self.lease.max_bytes,
            length=frame.length,
            skip=0,
        )
        return build_frame(self.visit_key, self.lease, place, frame.record)


class Attacker:
    """Puts a hostile session into each of the first visits, in the order of ``TRIES``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._left = list(TRIES)
        self._last: HostileSession | None = None

    def __call__(self, session: VisitSession, signed: SignedLease) -> VisitSession:
        """The session that the holder gets to see."""
        attack = self._left.pop(0) if self._left else ""
        previous = self._last.visit_key if self._last else None
        if attack:
            visit = signed.lease.visit.to_text()
            emit(self._sink, "hostile.tries", attack=attack, visit=visit)
        self._last = HostileSession(
            session, signed.lease, attack=attack, previous=previous
        )
        return self._last


def main() -> int:
    """Attend a job, attacking it first; the exit code."""
    args = _parse()
    leave_on_sigterm()
    try:
        job = read_job(args.job)
        passphrase = read_whole(args.passphrase_file, 1024).decode().strip()
        identity = load_identity(args.key, passphrase)
        agreement = equip(
            load_verified(Path(job.agreement)),
            clock=time.time,  # noqa: TID251 - a process begins here
            enroller=identity.public_key,
        )
        with _dial(args.orchestrator, identity) as link:
            _attendance(args, job, agreement, identity)(link).serve()
    except SealiftError as error:
        print(f"sealift: {error} [{error.code}]", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sealift.demo.hostile")
    parser.add_argument("job", type=Path)
    parser.add_argument("--orchestrator", required=True)
    for name in ("key", "passphrase-file", "sealed", "receipts", "heads"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args()


def _dial(address: str, identity: Identity) -> AbstractContextManager[Link]:
    return Link.dial(parse_address(address), link_name(Role.HOLDER, identity.name))


def _attendance(
    args: argparse.Namespace,
    job: JobTable,
    agreement: VerifiedAgreement,
    identity: Identity,
) -> Callable[[Link], Attendance]:
    endpoint = Endpoint(
        role=Role.HOLDER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )
    args.receipts.mkdir(parents=True, exist_ok=True)
    lines = EventLines(sys.stdout)
    return lambda link: Attendance(
        link,
        endpoint,
        agreement,
        held=_held(agreement, identity.name, args.sealed),
        heads=HeadStore(args.heads),
        receipts=args.receipts,
        job=job.name,
        clock=time.monotonic,
        sink=lines,
        between=Attacker(lines),
    )


def _held(
    agreement: VerifiedAgreement, owner: str, folder: Path
) -> dict[str, HeldResource]:
    held = {}
    for resource in agreement.agreement.resources_of(owner):
        card = read_card(folder / f"{resource.name}{CARD_SUFFIX}")
        source = RawSealedFile(folder / f"{resource.name}{SEALED_SUFFIX}")
        held[resource.name] = HeldResource(resource, source, card.leaves)
    return held


if __name__ == "__main__":
    sys.exit(main())
