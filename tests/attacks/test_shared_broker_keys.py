"""C10: what a shared broker refuses to take, and what nobody takes from one."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Digest, Role
from sealift.release import custody as custody_module
from sealift.release import speaking
from sealift.release.appointment import (
    Allotment,
    Appointment,
    SignedAppointment,
    sign_appointment,
)
from sealift.release.audit import TreeHead, sign_head
from sealift.release.custody import Custody, Meeting
from sealift.release.entrustmessages import EntrustInfo, Entrustment, sign_entrusted
from sealift.release.signed import VerifiedAgreement
from sealift.release.speaking import log_owner, require_in_force, verify_appointment
from sealift.release.statement import sign_statement
from sealift.release.statementdesk import StatementDesk
from sealift.release.vault import Vault
from tests.sim.owners import NOW_S, Consortium, SimPeer
from tests.sim.shared_broker import Clock, entrusting, equipped

NOW = int(NOW_S)


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return entrusting()


class Desk:
    """ada's meeting with a custody, without a wire; every part can be replaced."""

    def __init__(self, consortium: Consortium, folder: Path) -> None:
        self.consortium = consortium
        self.clock = Clock()
        self.verified = equipped(consortium, self.clock)
        self.custody = Custody(
            self.verified,
            folder,
            clock=self.clock,
            monotonic=lambda: 0.0,
            statements=StatementDesk(self.verified),
        )
        self.meeting = self.meet("ada")

    def meet(self, owner: str) -> Meeting:
        peer = SimPeer(
            role=Role.HOLDER,
            name=owner,
            identity=self.consortium.identities[owner].public_key,
            instance=SigningKey.generate().public_key,
            hpke=HpkePrivateKey.generate().public,
            agreement=self.verified.digest,
            result=None,
        )
        return self.custody.meet(
            peer, secrets.token_bytes(32), HpkePrivateKey.generate()
        )

    def said(self, **changes: object) -> Appointment:
        allotted = tuple(
            Allotment(each.name, each.key, 3)
            for each in self.verified.agreement.resources_of("ada")
        )
        plain = Appointment(
            agreement=self.verified.digest,
            owner="ada",
            key=self.meeting.deputy.public_key,
            resources=allotted,
            level="development",
            evidence=Digest.of(b"evidence"),
            at_s=NOW,
            not_after=NOW + 600,
        )
        return replace(plain, **changes)  # type: ignore[arg-type]

    def appoint(self, by: str = "ada", **changes: object) -> SignedAppointment:
        return sign_appointment(self.said(**changes), self.consortium.identities[by])

    def given(
        self,
        appointment: SignedAppointment | None = None,
        *,
        keys: dict[str, SecretKey] | None = None,
        to: HpkePrivateKey | None = None,
        by: str = "ada",
        **info: object,
    ) -> Entrustment:
        held = keys or self.consortium.keys
        recipient = (to or self.meeting.hpke).public
        owner = self.consortium.identities[by]
        sealed = []
        for each in self.verified.agreement.resources_of("ada"):
            plain = EntrustInfo(
                agreement=self.verified.digest,
                resource=each.name,
                owner="ada",
                recipient=self.meeting.th2,
                challenge=self.meeting.challenge,
            )
            about = replace(plain, **info)  # type: ignore[arg-type]
            key = held[each.name].reveal(TOKEN)
            sealed.append(sign_entrusted(about, key, recipient, owner))
        return Entrustment(appointment or self.appoint(), tuple(sealed))

    def refusal(self, given: Entrustment, meeting: Meeting | None = None) -> str:
        """The code, or empty."""
        try:
            self.custody.admit(given, meeting or self.meeting)
        except SealiftError as error:
            return error.code
        return ""


@pytest.fixture
def desk(consortium: Consortium, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(consortium, tmp_path)
    yield desk
    desk.custody.close()


def test_taken(desk: Desk) -> None:
    """Control: what all of the others differ from."""
    assert desk.refusal(desk.given()) == ""
    assert desk.custody.seats["ada"].vault.resources().keys() == {
        "ada-train", "ada-heldout",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"owner": "bern"}, "appointment-unsigned"),
        ({"agreement": Digest.of(b"another")}, "appointment-foreign"),
        ({"key": SigningKey.generate().public_key}, "appointment-foreign"),
        ({"at_s": NOW - 900, "not_after": NOW - 1}, "appointment-expired"),
        ({"at_s": NOW + 900, "not_after": NOW + 999}, "appointment-expired"),
        ({"resources": ()}, "appointment-foreign"),
    ],
    ids=["owner", "agreement", "instance", "expired", "early", "resources"],
)
def test_another_appointment(desk: Desk, changes: dict[str, object], code: str) -> None:
    assert desk.refusal(desk.given(desk.appoint(**changes))) == code


@pytest.mark.parametrize("uses", [0, 11], ids=["any number", "one more"])
def test_more_uses_than_the_rule(desk: Desk, uses: int) -> None:
    """The rule, which all signed, says ten: no appointment says more."""
    allotted = tuple(replace(each, uses=uses) for each in desk.said().resources)
    given = desk.given(desk.appoint(resources=allotted))
    assert desk.refusal(given) == "appointment-foreign"


def test_of_another_owner_and_its_resources(desk: Desk) -> None:
    """bern appoints the key that was made for ada."""
    bern = tuple(
        Allotment(each.name, each.key, 3)
        for each in desk.verified.agreement.resources_of("bern")
    )
    foreign = desk.appoint("bern", owner="bern", resources=bern)
    assert desk.refusal(desk.given(foreign)) == "appointment-foreign"
    assert (
        desk.refusal(desk.given(desk.appoint(resources=bern))) == "appointment-foreign"
    )


def test_signed_by_another(desk: Desk) -> None:
    assert desk.refusal(desk.given(desk.appoint("cleo"))) == "appointment-unsigned"
    assert desk.refusal(desk.given(by="cleo")) == "release-unsigned"


def test_sealed_to_another_key(desk: Desk) -> None:
    """Not the one that this session's evidence covers."""
    assert desk.refusal(desk.given(to=HpkePrivateKey.generate())) == "authentication"


@pytest.mark.parametrize(
    "info",
    [
        {"recipient": bytes(32)},
        {"challenge": bytes(32)},
        {"resource": "ada-train"},
        {"owner": "bern"},
        {"agreement": Digest.of(b"another")},
        {"expiry_s": 10**6},
    ],
    ids=lambda info: next(iter(info)),
)
def test_sealed_for_something_else(desk: Desk, info: dict[str, object]) -> None:
    assert desk.refusal(desk.given(**info)) == "release-foreign"


def test_replayed_into_another_session(desk: Desk) -> None:
    given, later = desk.given(), desk.meet("ada")
    assert desk.refusal(given, later) == "release-foreign"


def test_another_key_than_agreed(desk: Desk) -> None:
    keys = {name: SecretKey.generate() for name in desk.consortium.keys}
    assert desk.refusal(desk.given(keys=keys)) == "other-key"


def test_mutant_that_compares_no_commitment_takes_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: SecretKey.generate() for name in desk.consortium.keys}
    agreed = {each.name: each.key for each in desk.verified.agreement.resources}
    monkeypatch.setattr(
        custody_module, "key_commitment", lambda key, name: agreed[name]
    )
    monkeypatch.setattr(Vault, "resources", lambda self: {})  # it compares once more
    assert desk.refusal(desk.given(keys=keys)) == ""


def test_twice(desk: Desk) -> None:
    assert desk.refusal(desk.given()) == ""
    desk.meeting = desk.meet("ada")
    assert desk.refusal(desk.given()) == "already-entrusted"


def test_withdrawn_before(desk: Desk) -> None:
    ada = desk.consortium.identities["ada"]
    said = sign_statement("withdraw", desk.consortium.agreement, ada, NOW_S)
    desk.custody.statements.admit(said)
    assert desk.refusal(desk.given()) == "appointment-withdrawn"
    later = desk.appoint(at_s=NOW + 1)
    assert desk.refusal(desk.given(later)) == ""


def test_nobody_withdraws_for_another(desk: Desk) -> None:
    """A statement in ada's name by cleo's key ends nothing."""
    cleo = desk.consortium.identities["cleo"]
    said = sign_statement("withdraw", desk.consortium.agreement, cleo, NOW_S)
    forged = replace(said, statement=replace(said.statement, party="ada"))
    with pytest.raises(SealiftError) as caught:
        desk.custody.statements.admit(forged)
    assert caught.value.code == "statement-altered"
    assert desk.refusal(desk.given()) == ""


# What accelerators, holders and auditors take: the same appointment, seen from outside.


def owner_of_head(
    verified: VerifiedAgreement, signed: SignedAppointment | None, key: SigningKey
) -> str:
    head = TreeHead(key.public_key, 1, Digest.of(b"root"), NOW)
    return log_owner(sign_head(head, key, signed), verified).name


def test_heads_of_an_appointed_key(desk: Desk) -> None:
    key = SigningKey.generate()
    good = desk.appoint(key=key.public_key)
    assert owner_of_head(desk.verified, good, key) == "ada"
    for signed, code in (
        (None, "other-log"),
        (desk.appoint(), "other-log"),  # for another key
        (desk.appoint("cleo", key=key.public_key), "appointment-unsigned"),
        (
            desk.appoint(key=key.public_key, agreement=Digest.of(b"x")),
            "appointment-foreign",
        ),
        (
            desk.appoint(key=key.public_key, at_s=1, not_after=NOW - 1),
            "appointment-expired",
        ),
    ):
        with pytest.raises(SealiftError) as caught:
            owner_of_head(desk.verified, signed, key)
        assert caught.value.code == code


def test_mutant_that_believes_any_appointment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SigningKey.generate()
    forged = desk.appoint("cleo", key=key.public_key)
    monkeypatch.setattr(
        speaking,
        "verify_appointment_signature",
        lambda signed, owner: signed.appointment,
    )
    assert owner_of_head(desk.verified, forged, key) == "ada"


def test_an_owner_that_signed_for_no_shared_broker(desk: Desk) -> None:
    """cleo is not named; its own signature under an appointment changes nothing."""
    key = SigningKey.generate()
    cleo = tuple(
        Allotment(each.name, each.key, 0)
        for each in desk.verified.agreement.resources_of("cleo")
    )
    said = desk.appoint("cleo", owner="cleo", resources=cleo, key=key.public_key)
    with pytest.raises(SealiftError) as caught:
        owner_of_head(desk.verified, said, key)
    assert caught.value.code == "not-entrusting"


def test_good_for_a_time_only(desk: Desk) -> None:
    said = verify_appointment(desk.appoint(), desk.verified)
    require_in_force(said, desk.verified, NOW)
    for at_s in (0.0, NOW - 301, NOW + 601):
        with pytest.raises(SealiftError) as caught:
            require_in_force(said, desk.verified, at_s)
        assert caught.value.code == "appointment-expired"
    ada = desk.consortium.identities["ada"]
    for kind, code in (("withdraw", "appointment-withdrawn"), ("leave", "owner-left")):
        word = sign_statement(kind, desk.consortium.agreement, ada, NOW_S)  # type: ignore[arg-type]
        with pytest.raises(SealiftError) as caught:
            require_in_force(said, desk.verified.under((word,)), NOW)
        assert caught.value.code == code


# P4: no plain key, and nothing that unwraps one, on the disk.


def forms(raw: bytes) -> tuple[bytes, ...]:
    return (
        raw,
        raw.hex().encode(),
        base64.b64encode(raw).rstrip(b"="),
        base64.urlsafe_b64encode(raw).rstrip(b"="),
    )


def on_disk(folder: Path, raw: bytes) -> bool:
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert files
    return any(form in content for form in forms(raw) for content in files)


def secrets_of(desk: Desk) -> Iterator[bytes]:
    yield desk.consortium.keys["ada-train"].reveal(TOKEN)
    seed = desk.custody.seats["ada"].deputy.seed.reveal(TOKEN)
    yield seed[:32]
    yield seed[32:64]


def test_nothing_on_the_disk(desk: Desk, tmp_path: Path) -> None:
    assert desk.refusal(desk.given()) == ""
    kept = list(secrets_of(desk))
    assert not any(on_disk(tmp_path, raw) for raw in kept)
    desk.custody.close()
    assert not any(on_disk(tmp_path, raw) for raw in kept)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_mutant_that_writes_it_is_found(desk: Desk, tmp_path: Path, place: int) -> None:
    assert desk.refusal(desk.given()) == ""
    raw = list(secrets_of(desk))[place]
    (tmp_path / "core").write_bytes(b"x" * 100 + raw)
    assert on_disk(tmp_path, raw)


FILES = {".log", ".log-wal", ".log-shm"}


def test_the_vault_has_no_file(desk: Desk, tmp_path: Path) -> None:
    assert desk.refusal(desk.given()) == ""
    assert {path.suffix for path in tmp_path.iterdir()} <= FILES


def test_mutant_with_a_vault_on_the_disk_is_found(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_the_disk(identity: Identity) -> Vault:
        return Vault.create(tmp_path / "v.db", identity)

    monkeypatch.setattr(Vault, "in_memory", on_the_disk)
    assert desk.refusal(desk.given()) == ""
    assert not {path.suffix for path in tmp_path.iterdir()} <= FILES
