"""One rank of a group, in a process of its own: what it is told, it does, and tells.

``python -m tests.sim.hostrank SETTINGS``; used with ``tests/sim/hosts.py``.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np

from sealift.attest import Appraiser, Level, ReferenceValues
from sealift.attest.development import DevelopmentAttester
from sealift.channel.record.frames import FrameOpener, FrameSealer
from sealift.channel.record.layout import PREFIX_BYTES
from sealift.channel.transport.tcp import TcpListener
from sealift.collective.group import Array, SealedGroup
from sealift.collective.meeting import Charter, GroupMeeting
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.hash import sha256
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Digest, Role
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay

AGREEMENT, BUNDLE = Digest.of(b"agreement"), Digest.of(b"bundle")
JOB = "diagnoses-of-three-wards"
PORT, RELAY_PORT = 7101, 7100
SECRETS: list[bytes] = []


def gradients(rank: int, step: int, elements: int) -> Array:
    """What a rank contributes to a step; a test knows it, too."""
    return np.random.default_rng([rank, step]).standard_normal(elements, np.float32)


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def remember_keys() -> None:
    """Every secret key that this process makes is kept for the test."""
    begin = SecretKey.__init__

    def kept(self: SecretKey, material: Any) -> None:
        begin(self, material)
        SECRETS.append(bytes(material))

    SecretKey.__init__ = kept  # type: ignore[method-assign]


def seal_nothing() -> None:
    """The control: pipes whose frames are what they carry."""

    def bare(self: Any, plaintext: Any, frame: Any, *bound: Any, **final: Any) -> None:
        seal(self, plaintext, frame, *bound, **final)
        frame[PREFIX_BYTES:-TAG_BYTES] = plaintext

    def read(self: Any, frame: Any, out: Any, *bound: Any, **final: Any) -> None:
        out[:] = frame[PREFIX_BYTES:-TAG_BYTES]

    seal = FrameSealer.seal
    FrameSealer.seal, FrameOpener.open_into = bare, read  # type: ignore[method-assign]


class Rank:
    """What the settings say.

    Args:
        rank: Its number; its host's as well.
        addresses: Of the hosts, by rank; the relay is at the first.
        attester: Seed of the key that all ranks' evidence is signed with, in hex.
        direct: Whether pipes go from host to host, or all through the relay.
        elements: Of the tensors of each step, one after the other.
        steps: How many; none is until an error comes.
        timeout_s: For the meeting, and for a record.
        sealed: False is the control.
    """

    def __init__(self, rank: int, addresses: list[str], **how: Any) -> None:
        self.rank, self.addresses, self.how = rank, addresses, how
        self.names = tuple(f"accelerator-{each}" for each in range(len(addresses)))
        self.attester = SigningKey(SecretKey(bytes.fromhex(how["attester"])))

    def work(self) -> None:
        with ExitStack() as stack:
            meeting = self._meeting(stack)
            with meeting.meet() as group:
                tell("met", paths=meeting.paths)
                steps = self.how["steps"] or 1 << 30
                for number in range(steps):
                    self._step(group, number)

    def _step(self, group: SealedGroup, number: int) -> None:
        sums = []
        for elements in self.how["elements"]:
            tensor = gradients(self.rank, number, elements)
            group.all_reduce(tensor)
            sums.append(sha256(tensor.data).hex())
        tell("step", sums=sums)

    def _meeting(self, stack: ExitStack) -> GroupMeeting:
        relay = RelayClient.dial(
            (self.addresses[0], RELAY_PORT),
            self.names[self.rank],
            self.how["timeout_s"],
        )
        stack.callback(relay.close)
        host = None
        if self.how["direct"]:
            listener = TcpListener(self.addresses[self.rank], PORT)
            stack.callback((host := DirectHost(tcp=listener)).close)
        return GroupMeeting(
            Charter(agreement=AGREEMENT, job=JOB, shape=BUNDLE, names=self.names),
            self._endpoint(),
            relay,
            self._expect,
            host=host,
            dialler=PathDialler(
                local=False, places={f"{each}:{PORT}" for each in self.addresses}
            ),
            timeout_s=self.how["timeout_s"],
        )

    def _endpoint(self) -> Endpoint:
        attester = DevelopmentAttester(
            self.attester, role=Role.ACCELERATOR, code_bundle=BUNDLE
        )
        return Endpoint(
            role=Role.ACCELERATOR,
            name=self.names[self.rank],
            agreement=AGREEMENT,
            attester=attester,
        )

    def _expect(self, name: str) -> PeerPolicy:
        references = ReferenceValues(
            development_attesters=(self.attester.public_key,), code_bundle=BUNDLE
        )
        return PeerPolicy(
            roles=frozenset({Role.ACCELERATOR}),
            require_evidence=True,
            appraiser=Appraiser(accept=(Level.DEVELOPMENT,), references=references),
            names=frozenset({name}),
        )


def main() -> int:
    settings = json.loads(sys.argv[1])
    if "relay" in settings:
        with Relay.listen(settings["relay"], RELAY_PORT):
            tell("listens")
            threading.Event().wait()
    remember_keys()
    if not settings["sealed"]:
        seal_nothing()
    try:
        Rank(**settings).work()
    except SealiftError as error:
        tell("failed", code=error.code, kind=type(error).__name__, said=str(error))
        return error.exit_code
    finally:
        tell("keys", secrets=[each.hex() for each in SECRETS])
    return 0


if __name__ == "__main__":
    sys.exit(main())
