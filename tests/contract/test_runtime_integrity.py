"""A host that turns bad after a release loses its lease: done for real, in the guest.

Everything but the wire is real: kernel, measurement list, quotes, each renewal's
evidence, the broker's judgement and its log. One guest boots for all; what an earlier
test did in it is in the reference values of the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from sealift.attest.level import Level
from sealift.attest.reference import TpmReferences
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.attest.tpm.agent import AgentAttester
from sealift.attest.tpm.evidence import TpmBody
from sealift.attest.tpm.ima import parse_list
from sealift.demo.job import make_world, second_act
from sealift.demo.tasks import DIGITS
from sealift.errors import PolicyError, SealiftError
from sealift.ids import Digest, Role
from sealift.release.agreement import ReleaseRule
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.signed import Equipment, VerifiedAgreement
from sealift.release.client import prove_lease, request_head
from sealift.session.endpoint import Endpoint
from tests.contract.test_leases_over_sessions import Line, ask, revocations
from tests.guest.agent import Act
from tests.guest.image import build_image, guest_references
from tests.guest.machine import AgentPort, Guest
from tests.guest.rehearsal import run_second_act
from tests.sim.guest import BOUND, enrol, folder, now_s
from tests.sim.owners import make_broker
from tests.sim.watching import watching
from tests.worlds.consortium import Consortium, make_consortium

pytestmark = pytest.mark.guest
BEAT_S = 4.0
RECIPE = (resources.files("sealift.demo") / "digits" / "recipe.py").read_bytes()
CODE = measure_bundle({"recipe.py": RECIPE}, "recipe.py")
RESET = "tpm-other-attester"  # its attestation key lives no longer than a boot
ACTS: dict[Act, str] = {
    "exec": "a program that nobody agreed on",
    "bundle": "a byte more in the bundle",
    "preload": "a library before all others",
    "module": "a kernel module",
}


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest(build_image(folder())) as booted:
        booted.measure(RuntimeEvent(CODE_BUNDLE, CODE.digest.raw))
        yield booted


class Equipped(Consortium):
    """Judges certificates at the present time."""

    def verified(self) -> VerifiedAgreement:
        return super().verified().equipped(Equipment(clock=now_s))


def as_it_is(guest: Guest) -> TpmReferences:
    """Values of this guest that allow what it did so far."""
    shown = guest.collect(BOUND)
    values = guest_references(guest.image.manifest, shown, guest.root)
    assert values.ima is not None
    allowed = {path: set(digests) for path, digests in values.ima.allow.items()}
    measured = parse_list(TpmBody.parse(shown.body).ima_list)
    for entry in map(measured.entry, range(len(measured))):
        allowed.setdefault(entry.path, set()).add(Digest(entry.digest))
    allow = {path: tuple(sorted(found)) for path, found in allowed.items()}
    return replace(values, ima=replace(values.ima, allow=allow))


def agree(guest: Guest, heartbeat_s: float = BEAT_S) -> Equipped:
    """Parties that agree on this guest; ada's broker has enrolled it."""
    plain = make_consortium()
    owner = plain.identities["ada"]
    guest.keep_enrolment(enrol(guest, owner))
    rule = ReleaseRule(lease_s=60.0, heartbeat_s=heartbeat_s)
    before = plain.agreement
    references = replace(
        before.references, tpm=as_it_is(guest), enrollers=(owner.public_key,)
    )
    held = tuple(replace(each, rule=rule) for each in before.resources)
    after = replace(
        before,
        rehearse=Level.ATTESTED_HOST,
        code=CODE,
        references=references,
        resources=held,
    )
    return Equipped(**{**vars(plain), "agreement": after})


@contextmanager
def broker_of(consortium: Equipped, folder: Path) -> Iterator[Line]:
    box = make_broker(consortium, "ada", folder)
    try:
        with watching(box.broker.leases.look):
            yield Line(consortium, box.broker)
    finally:
        box.close()


def accelerator(line: Line, attester: AgentAttester) -> Endpoint:
    return line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=attester)


@pytest.fixture
def attester(guest: Guest) -> Iterator[AgentAttester]:
    with AgentPort(guest) as port:
        opened = AgentAttester(port.place)
        yield opened
        opened.close()


def test_a_clean_host_keeps_its_lease(
    guest: Guest, attester: AgentAttester, tmp_path: Path
) -> None:
    """The control: the same renewals, and nothing is revoked."""
    with broker_of(agree(guest), tmp_path) as line:
        ours = accelerator(line, attester)
        with line.accelerator(attester, ours) as session:  # type: ignore[arg-type]
            line.collect(session)
            for _ in range(4):
                assert prove_lease(session).good
            assert ask(line, ours.instance.public_key, 0) == (True, "")
    assert revocations(tmp_path) == []


@pytest.mark.parametrize("act", ACTS)
def test_a_bad_act_revokes_at_the_next_renewal(
    guest: Guest, attester: AgentAttester, tmp_path: Path, act: Act
) -> None:
    with broker_of(agree(guest), tmp_path) as line:
        ours = accelerator(line, attester)
        with line.accelerator(attester, ours) as session:  # type: ignore[arg-type]
            line.collect(session)
            assert prove_lease(session).good
            guest.misbehave(act)
            with pytest.raises(SealiftError):
                prove_lease(session)
        found = ask(line, ours.instance.public_key, 5.0)
        assert found == (False, "ima-entry-unlisted")
        assert revocations(tmp_path) == [("ima-entry-unlisted", 1)]
        # The host is what it is: a new instance on it gets nothing either.
        again = accelerator(line, attester)
        with (
            pytest.raises(SealiftError),
            line.accelerator(attester, again) as session,  # type: ignore[arg-type]
        ):
            line.collect(session)


def test_an_agent_that_stops_is_silence(guest: Guest, tmp_path: Path) -> None:
    with broker_of(agree(guest), tmp_path) as line, AgentPort(guest) as port:
        attester = AgentAttester(port.place)
        ours = accelerator(line, attester)
        with line.accelerator(attester, ours) as session:  # type: ignore[arg-type]
            line.collect(session)
            port.close()
            with pytest.raises(SealiftError, match="agent"):
                prove_lease(session)
            who = ours.instance.public_key
            assert ask(line, who, BEAT_S + 5) == (False, "heartbeat-missing")
        attester.close()


@pytest.mark.soak
def test_a_reset_ends_the_lease_and_a_fresh_instance_may_go_on(
    guest: Guest, tmp_path: Path
) -> None:
    """The guest is clean afterwards."""
    consortium = agree(guest, heartbeat_s=60.0)  # longer than a boot: only the reset
    with broker_of(consortium, tmp_path) as line, AgentPort(guest) as port:
        attester = AgentAttester(port.place)
        ours = accelerator(line, attester)
        with line.accelerator(attester, ours) as session:  # type: ignore[arg-type]
            line.collect(session)
            assert prove_lease(session).good
            with ThreadPoolExecutor(1) as pool:
                reset = pool.submit(guest.power_cycle)
                while not reset.done():  # the broker hears from us all the time
                    request_head(session)
                    wait([reset], 1.0)
                reset.result()
            guest.measure(RuntimeEvent(CODE_BUNDLE, CODE.digest.raw))
            guest.keep_enrolment(enrol(guest, consortium.identities["ada"]))
            with pytest.raises(SealiftError):
                prove_lease(session)
        found = ask(line, ours.instance.public_key, 5.0)
        assert found == (False, RESET)
        assert revocations(tmp_path) == [(RESET, 1)]
        with (
            line.accelerator(attester, ours) as session,  # type: ignore[arg-type]
            pytest.raises(PolicyError, match="lease-revoked"),
        ):
            line.collect(session)
        fresh = accelerator(line, attester)
        with line.accelerator(attester, fresh) as session:  # type: ignore[arg-type]
            line.collect(session)
            assert prove_lease(session).good
        attester.close()


# Soak: 20 to 40 s. It hung once on a guest that earlier tests had shared.
@pytest.mark.soak
def test_rows_stop_in_the_midst_of_a_cargo(guest: Guest, tmp_path: Path) -> None:
    """All roles as processes; until the bad act, which is the control, rows flow."""
    world = second_act(
        make_world(tmp_path / "world", DIGITS, host=lambda: as_it_is(guest))
    )
    with AgentPort(guest) as port:
        found = run_second_act(world, port.place, guest.misbehave, clock=time.monotonic)
    assert "ima-entry-unlisted" in found.rules.values()
    assert found.held, found
    assert found.scrubbed_bytes > 0
