"""The backend "sealift" of torch.distributed, for scripts that torchrun or Ray starts.

    import sealift.integrations.process_group  # registers it
    torch.distributed.init_process_group("sealift")

Agreement, identity and evidence come from the environment: ``SEALIFT_JOB``, ``SEALIFT_KEY``
and what else a command line would say (``train/job/rolesetup.py``). Each rank is the
accelerator of its number, with a fresh instance key for each group; a group's first rank
runs its relay. The rendezvous store tells addresses and nothing else: whoever changes one
leads a rank to somebody without the evidence, or with another view of the group.
Not here: that the script is the agreed code. Torch's client of the store runs in the
process that holds the keys (rule M2 holds for plans, not for users' scripts), and so do
the ranks' gradients.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Self

import torch.distributed as dist

from sealift import __version__
from sealift.attest.evidence import Attester
from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.transport import Deadline
from sealift.channel.transport.unixsocket import LocalListener
from sealift.codec import encode
from sealift.collective.group import MAX_RANKS
from sealift.collective.meeting import Charter, GroupMeeting
from sealift.errors import PeerError
from sealift.events import discard
from sealift.ids import Digest
from sealift.integrations.objects import use_for_sealed_groups
from sealift.integrations.torchgroup import SealedProcessGroup
from sealift.release.agreement.code import load_bundle
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import Registry
from sealift.session.relay.server import Relay
from sealift.train.job.hostattester import EvidencePlaces, open_attester
from sealift.train.job.rolesetup import RoleSetup, given, set_up_rank
from sealift.train.job.settings import parse_address
from sealift.travel.peers import accelerator_names, expect_accelerator

RELAY, PLACE = "relay", "direct path"  # of a group, in its first rank; of a rank
LOOPBACK: Final = "127.0.0.1"
LINGER_S, _PAUSE_S = 5.0, 0.02
_FRAMEWORKS: Final = ("torch", "accelerate", "lightning", "peft", "ray", "transformers")


@cache
def this_host() -> tuple[RoleSetup, Attester]:
    """What this process is and proves; a passphrase is read once.

    Raises:
        SealiftError: the first thing that is wrong, before anything is started.
    """
    setup = set_up_rank(os.environ, "rank", clock=time.time, sink=discard)  # noqa: TID251 - no command line is above
    load_bundle(Path(setup.job.bundle), setup.agreement.agreement.code)
    return setup, open_attester(setup, EvidencePlaces.read(given(os.environ)))


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Torch's store, which strangers may read and change: it tells addresses alone.

    Attributes:
        store: Of one group.
        listen: Host that this rank listens on.
        told: Host that the others dial.
        timeout_s: How long another rank may take to tell its own.
    """

    store: Any
    listen: str
    told: str
    timeout_s: float

    @classmethod
    def of(cls, options: Any, *, leads: bool) -> Self:
        """A rank's.

        Args:
            options: Torch's.
            leads: Whether it is the job's first, which is where the store is: the others
                know it by the name that they were told.
        """
        found = options.store
        while isinstance(found, dist.PrefixStore):
            found = found.underlying_store
        host = getattr(
            found, "host", LOOPBACK
        )  # without a host all are on this machine
        made = partial(cls, options.store, timeout_s=options.timeout.total_seconds())
        if host == "localhost" or host.startswith("127."):
            return made(LOOPBACK, LOOPBACK)
        if leads:  # torch's own store listens there as well
            return made("0.0.0.0", host)  # noqa: S104 - everybody proves itself
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 1))  # sends nothing
            own = probe.getsockname()[0]
        return made(own, own)

    def tell(self, what: str, port: int) -> str:
        """Where ``what`` of this rank is."""
        place = f"{self.told}:{port}"
        self.store.set(what, place)
        return place

    def ask(self, what: str) -> str:
        """Where another rank says that ``what`` is.

        Raises:
            PeerError: ``peer-timeout``.
        """
        try:
            return str(self.store.get(what).decode("ascii", "replace"))
        except RuntimeError as error:
            raise PeerError(
                f"no rank gave its {what}'s address", why=error, code="peer-timeout"
            ) from None


def open_group(options: Any, _: object = None) -> SealedProcessGroup:
    """What ``init_process_group`` and ``new_group`` call on every rank of a group.

    Args:
        options: Torch's ``_DistributedBackendOptions``.

    Raises:
        SealiftError: as ``this_host``, ``Charter`` and ``GroupMeeting.meet``.
    """
    setup, attester = this_host()
    rank = options.group_rank
    members = options.global_ranks_in_group or range(options.group_size)
    charter = _charter(setup, members, options.group_id)
    rendezvous = Rendezvous.of(options, leads=members[rank] == 0)
    endpoint = setup.attested(charter.names[rank], attester)
    with ExitStack() as stack:
        client, vouch = _join(stack, rendezvous, charter.names, rank)
        listener = TcpListener(rendezvous.listen, 0)
        place = rendezvous.tell(f"{PLACE} {rank}", listener.address[1])
        host = DirectHost(local=LocalListener(), tcp=listener, tcp_address=place)
        stack.callback(host.close)
        places = [rendezvous.ask(f"{PLACE} {each}") for each in range(rank)]
        meeting = GroupMeeting(
            charter,
            endpoint,
            client,
            partial(expect_accelerator, setup.agreement),
            host=host,
            dialler=PathDialler(places=places),
            vouch=vouch,
            versions=_versions(),
            timeout_s=rendezvous.timeout_s,
        )
        return SealedProcessGroup(meeting.meet(), stack.pop_all())


def _charter(setup: RoleSetup, members: Sequence[int], group: str) -> Charter:
    """The group's: all ranks have the same settings and name of the group."""
    names = accelerator_names(max(members) + 1)
    return Charter(
        agreement=setup.agreement.digest,
        job=setup.job.name,
        shape=Digest.of(encode(setup.job.settings) + group.encode()),
        names=tuple(names[member] for member in members),
    )


def _versions() -> dict[str, str]:
    """Of Sealift, torch, and the frameworks that this rank has loaded."""
    found = {n: getattr(sys.modules.get(n), "__version__", "") for n in _FRAMEWORKS}
    return {"sealift": __version__} | {n: str(it) for n, it in found.items() if it}


def _join(
    stack: ExitStack, rendezvous: Rendezvous, names: Sequence[str], rank: int
) -> tuple[RelayClient, Callable[[bytes], None]]:
    """A connection to the relay, which the group's first rank runs."""
    if rank:
        address = parse_address(rendezvous.ask(RELAY))
        client = RelayClient.dial(address, names[rank], rendezvous.timeout_s)
        return stack.enter_context(client), lambda circuit: None
    relay = stack.enter_context(_relaying(rendezvous.listen, names[1:]))
    rendezvous.tell(RELAY, relay.address[1])
    return stack.enter_context(relay.local_client(names[0])), relay.vouch


@contextmanager
def _relaying(listen: str, others: Sequence[str]) -> Iterator[Relay]:
    """A relay that goes after the others have: their last words are on their way."""
    places = Registry(strangers=MAX_RANKS, strangers_each=MAX_RANKS)
    with Relay.listen(listen, registry=places) as relay:
        yield relay
        deadline = Deadline(LINGER_S)
        while relay.names & set(others) and deadline.remaining_s():
            time.sleep(_PAUSE_S)


use_for_sealed_groups()
dist.Backend.register_backend("sealift", open_group, True, ["cpu", "cuda"])
