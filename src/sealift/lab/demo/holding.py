"""A holder's process of the demo, with something of ours between it and its sessions.

It has a real party's identity and sealed files, and is the ordinary holder
(``travel.attendance``) otherwise. No command of ``sealift`` reaches it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from sealift.channel.record.rawfile import RawSealedFile
from sealift.crypto.identity import Identity, load_identity
from sealift.data.schema.card import CARD_SUFFIX, SEALED_SUFFIX, read_card
from sealift.errors import SealiftError
from sealift.events import Sink
from sealift.ids import Role
from sealift.lab.demo.stop import leave_on_sigterm
from sealift.release.equip import equip
from sealift.release.files import read_whole
from sealift.release.heads import HeadStore
from sealift.release.signed import VerifiedAgreement, load_verified
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.train.eventlines import EventLines
from sealift.train.settings import JobTable, parse_address, read_job
from sealift.travel.attendance import Attendance, Between, Receipts
from sealift.travel.holder import HeldResource
from sealift.travel.peers import relay_name
from sealift.travel.served import SERVED_NAME, ServedVisits

MakeBetween = Callable[[Sink], Between]


def attend(program: str, make_between: MakeBetween) -> int:
    """Attend the job that the command line names; the exit code.

    Args:
        program: How it was started.
        make_between: Makes what stands between holder and sessions.
    """
    args = _parse(program)
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
        with ExitStack() as stack:
            relay = stack.enter_context(_dial(args.orchestrator, identity, agreement))
            held = _held(agreement, identity.name, args.sealed, stack)
            _attendance(args, job, agreement, identity, make_between)(
                relay, held
            ).serve()
    except SealiftError as error:
        print(f"sealift: {error} [{error.code}]", file=sys.stderr)
        return error.exit_code
    return 0


def _parse(program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("job", type=Path)
    parser.add_argument("--orchestrator", required=True)
    for name in ("key", "passphrase-file", "sealed", "receipts", "heads"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args()


def _dial(
    address: str, identity: Identity, agreement: VerifiedAgreement
) -> AbstractContextManager[RelayClient]:
    name = relay_name(Role.HOLDER, identity.name)
    prove = prover(identity, agreement.digest, name)
    return RelayClient.dial(parse_address(address), name, prove=prove)


def _attendance(
    args: argparse.Namespace,
    job: JobTable,
    agreement: VerifiedAgreement,
    identity: Identity,
    make_between: MakeBetween,
) -> Callable[[RelayClient, dict[str, HeldResource]], Attendance]:
    endpoint = Endpoint(
        role=Role.HOLDER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )
    args.receipts.mkdir(parents=True, exist_ok=True)
    lines = EventLines(sys.stdout)
    return lambda relay, held: Attendance(
        relay,
        endpoint,
        agreement,
        held=held,
        heads=HeadStore(args.heads),
        served=ServedVisits(args.heads.with_name(SERVED_NAME)),
        receipts=Receipts(args.receipts),
        job=job.name,
        clock=time.monotonic,
        sink=lines,
        between=make_between(lines),
    )


def _held(
    agreement: VerifiedAgreement, owner: str, folder: Path, stack: ExitStack
) -> dict[str, HeldResource]:
    held = {}
    for resource in agreement.agreement.resources_of(owner):
        card = read_card(folder / f"{resource.name}{CARD_SUFFIX}")
        source = RawSealedFile(folder / f"{resource.name}{SEALED_SUFFIX}")
        stack.callback(source.close)
        held[resource.name] = HeldResource(resource, source, card.leaves)
    return held
