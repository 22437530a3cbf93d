"""C10: a shared broker proves itself to every owner before one byte of a key leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.attester import Attester
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import TOKEN
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Digest, Role
from sealift.release.audit import SignedTreeHead, TreeHead, sign_head
from sealift.release.brokermessages import BrokerAnswer, BrokerRequest
from sealift.release.entrust import broker_appraiser, levels_for_broker
from sealift.release.signed import VerifiedAgreement
from sealift.release.statement import SignedStatement, sign_statement
from sealift.session import Endpoint, accept
from sealift.session.link import Link
from sealift.travel import meetbroker
from sealift.travel.peers import expect_data_owner
from tests.attacks.test_shared_broker_keys import forms
from tests.sim.owners import NOW_S, Consortium
from tests.sim.shared_broker import (
    Clock,
    Town,
    broker_attester,
    entrusting,
    equipped,
    owner_vault,
)


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return entrusting()


@pytest.fixture
def towns(consortium: Consortium, tmp_path: Path) -> Iterator[list[Town]]:
    """Every town that a test starts ends with it."""
    started: list[Town] = []
    yield started
    for town in started:
        town.close()


def refusal(town: Town, owner: str = "ada", appraiser: Appraiser | None = None) -> str:
    """The code with which the owner turns away, or empty: keys would be sent now."""
    try:
        with town.meet(owner, appraiser):
            return ""
    except SealiftError as error:
        return error.code


class Relaying:
    """Shows evidence that was made for another handshake."""

    def __init__(self, genuine: Attester) -> None:
        self._genuine = genuine
        self.media_type = genuine.media_type
        self.honest = False

    def collect(self, bound: bytes) -> Evidence:
        return self._genuine.collect(bound if self.honest else bytes(32))


def test_evidence_of_another_handshake(
    towns: list[Town], consortium: Consortium, tmp_path: Path
) -> None:
    """A machine in between has the genuine broker answer, for a session of its own."""
    relaying = Relaying(broker_attester(consortium))
    towns.append(Town(consortium, tmp_path / "logs", attester=relaying))
    assert refusal(towns[0]) == "evidence-unbound"
    relaying.honest = True  # control: the same attester, asked for this session
    assert refusal(towns[0]) == ""


@pytest.mark.parametrize("wrong", ["code", "role", "attester", "none"])
def test_evidence_of_something_else(
    towns: list[Town], consortium: Consortium, tmp_path: Path, wrong: str
) -> None:
    """The accelerator's own host, other code, a stranger's key."""
    stranger = replace(consortium, attester=SigningKey.generate())
    attester, code = {
        "code": (
            broker_attester(consortium, code=consortium.agreement.code.digest),
            "code-bundle-differs",
        ),
        "role": (broker_attester(consortium, role=Role.ACCELERATOR), "evidence-role"),
        "attester": (broker_attester(stranger), "attester-unknown"),
        "none": (broker_attester(consortium), ""),
    }[wrong]
    towns.append(Town(consortium, tmp_path / "logs", attester=attester))
    assert refusal(towns[0]) == code


def test_a_level_below_the_jobs(
    towns: list[Town], consortium: Consortium, tmp_path: Path
) -> None:
    """Development evidence, where the owner's keys go to real levels only."""
    towns.append(Town(consortium, tmp_path / "logs"))
    plain = broker_appraiser(towns[0].verified, "ada")
    for level in (Level.ATTESTED_HOST, Level.TEE):
        judge = replace(plain, accept=(level,))
        assert refusal(towns[0], appraiser=judge) == "development-refused"
    assert refusal(towns[0], appraiser=plain) == ""


@pytest.mark.parametrize(
    ("accepted", "own", "enough"),
    [
        (("tee",), (), {"tee", "gpu-tee"}),
        (("gpu-tee", "tee"), (), {"tee", "gpu-tee"}),
        (("tee", "attested-host"), (), {"tee", "gpu-tee"}),
        (
            ("tee", "attested-host"),
            ("attested-host",),
            {"tee", "gpu-tee", "attested-host"},
        ),
        (("attested-host",), (), {"tee", "gpu-tee", "attested-host"}),
        (("untrusted-gpu",), (), {"tee", "gpu-tee"}),
        (("development",), (), {"development"}),
    ],
)
def test_which_levels_are_enough(
    consortium: Consortium,
    accepted: tuple[str, ...],
    own: tuple[str, ...],
    enough: set[str],
) -> None:
    """As good as the best place that the owner lets a key go to; by its own rule."""
    resources = tuple(
        replace(each, rule=replace(each.rule, accept=tuple(map(Level, own))))
        for each in consortium.agreement.resources
    )
    world = entrusting(
        consortium, accept=tuple(map(Level, accepted)), resources=resources
    )
    assert set(levels_for_broker(world.verified(), "ada")) == enough


def test_a_stranger_under_the_brokers_name(
    towns: list[Town], consortium: Consortium, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A key that nobody appointed answers for ada: no accelerator asks it anything."""
    towns.append(town := Town(consortium, tmp_path / "logs"))
    impostor = Impostor(town)
    assert impostor.met() in ("other-log", "not-the-owner")
    monkeypatch.setattr(meetbroker, "require_owners_broker", lambda *args, **more: None)
    assert impostor.met() == ""  # mutant


class Impostor:
    """Serves ``broker-cleo``'s log under ``broker-ada``, by an identity of its own."""

    def __init__(self, town: Town) -> None:
        self._town = town
        link = town.stack.enter_context(town.link("broker-ada"))
        ours = Endpoint(
            role=Role.BROKER,
            name="ada",
            agreement=town.verified.digest,
            identity=create_identity("ada"),
        )
        policy = replace(
            expect_data_owner(town.verified),
            roles=frozenset(Role),
            require_identity=False,
            enrolling=True,
            identities=None,
            names=None,
            appraiser=town.verified.appraiser(),
        )

        def serve() -> None:
            while True:
                try:
                    with accept(link.accept(None), ours, policy) as session:
                        session.receive_message(BrokerRequest, 5.0)
                        session.send_message(BrokerAnswer(head=self._head(ours)))
                        session.receive_message(BrokerRequest, 5.0)
                except SealiftError as error:
                    if error.code in ("link-closed", "relay-gone"):
                        return

        threading.Thread(target=serve, daemon=True).start()

    def _head(self, ours: Endpoint) -> SignedTreeHead:
        assert ours.identity is not None
        head = TreeHead(ours.identity.public_key, 1, Digest.of(b"root"), int(NOW_S))
        return sign_head(head, ours.identity)

    def met(self) -> str:
        try:
            with self._town.reach("ada"):
                return ""
        except SealiftError as error:
            return error.code


def test_an_accelerator_judges_the_appointment_itself(
    towns: list[Town], consortium: Consortium, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By its own clock, and by what it knows, whatever the broker thinks."""
    towns.append(town := Town(consortium, tmp_path / "logs"))
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    vault.close()
    later = equipped(consortium, Clock(NOW_S + 601))
    without_clock = consortium.verified()
    said = statement(consortium)
    told = town.verified.under((said,))
    for agreement, code in (
        (later, "appointment-expired"),
        (without_clock, "appointment-expired"),
        (told, "appointment-withdrawn"),
        (town.verified, ""),
    ):
        assert meeting(town, agreement) == code
    monkeypatch.setattr("sealift.release.collect.require_in_force", lambda *args: None)
    assert meeting(town, later) == ""  # mutant


def statement(consortium: Consortium) -> SignedStatement:
    ada = consortium.identities["ada"]
    return sign_statement("withdraw", consortium.agreement, ada, NOW_S)


def meeting(town: Town, agreement: VerifiedAgreement) -> str:
    try:
        with town.reach("ada", agreement=agreement):
            return ""
    except SealiftError as error:
        return error.code


def test_no_key_on_the_wire(
    towns: list[Town], consortium: Consortium, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """P4: what the relay sees of an entrustment and of a release."""
    seen: list[bytes] = []
    towns.append(town := Town(consortium, tmp_path / "logs"))
    record(monkeypatch, seen)
    vault = owner_vault(consortium, "ada", tmp_path / "v")
    town.entrust("ada", vault)
    assert town.collect("ada") == "released"
    vault.close()
    raw = consortium.keys["ada-train"].reveal(TOKEN)
    seed = town.custody.seats["ada"].deputy.seed.reveal(TOKEN)
    wire = b"\0".join(seen)
    assert len(seen) > 8
    for secret in (raw, seed[:32], seed[32:64]):
        assert not any(form in wire for form in forms(secret))
    assert raw in wire + raw  # control of the search


def record(monkeypatch: pytest.MonkeyPatch, seen: list[bytes]) -> None:
    """Keep every frame that any link of this process writes."""
    plain = Link._write

    def write(self: Link, frame: bytes) -> None:
        seen.append(bytes(frame))
        plain(self, frame)

    monkeypatch.setattr(Link, "_write", write)
