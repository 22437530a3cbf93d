"""A real attested host: measured boot, a kernel that measures, quotes over both."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.eventlog import parse
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.attest.tpm.ima import parse_list
from sealift.crypto.hash import sha256
from sealift.errors import PolicyError, UnavailableError
from sealift.ids import Digest
from tests.guest.agent import BUNDLE, MODULE, PYTHON, Act
from tests.guest.contents import archive, file_entry
from tests.guest.image import KERNEL_PCR, build_image, kernel_register
from tests.sim.guest import (
    BOUND,
    GuestHost,
    enrol,
    folder,
    now_s,
    refused,
)
from tests.sim.guest import (
    guest_host as boot_guest,
)

pytestmark = pytest.mark.guest


def test_its_evidence_holds_and_rehearses_an_attested_host(
    guest_host: GuestHost,
) -> None:
    appraiser = Appraiser(
        accept=(Level.DEVELOPMENT,),
        rehearse=Level.ATTESTED_HOST,
        references=guest_host.references,
        clock=now_s,
    )
    result = appraiser.appraise(guest_host.clean, BOUND)
    assert result.claims.rehearsing is Level.ATTESTED_HOST
    assert result.claims.level is Level.DEVELOPMENT


def test_software_tpms_never_give_the_real_level(guest_host: GuestHost) -> None:
    appraiser = Appraiser(
        accept=(Level.ATTESTED_HOST,),
        references=guest_host.references,
        clock=now_s,
    )
    with pytest.raises(PolicyError) as caught:
        appraiser.appraise(guest_host.clean, BOUND)
    assert caught.value.code == "development-refused"


def test_a_quote_binds_its_challenge(guest_host: GuestHost) -> None:
    claims = guest_host.examine(guest_host.clean, bound=bytes(32))
    assert set(refused(claims).values()) == {"evidence-unbound"}


def test_the_event_log_explains_the_registers_of_the_boot(
    guest_host: GuestHost,
) -> None:
    body = TpmBody.parse(guest_host.clean.body)
    quoted, log = body.registers()["sha256"], parse(body.event_log)
    replayed = log.replay("sha256")
    assert {0, 4, 7, 9} <= replayed.keys()
    assert all(quoted[number] == value for number, value in replayed.items())


def test_measured_boot_covers_initramfs_and_command_line(guest_host: GuestHost) -> None:
    """So init, Python, the agent and its policy are what the references say."""
    image = build_image(folder())
    body = TpmBody.parse(guest_host.clean.body)
    digests = [
        each.digests["sha256"]
        for each in parse(body.event_log).events
        if each.register == KERNEL_PCR
    ]
    assert digests[1:] == [sha256(image.initrd.read_bytes())]
    quoted = body.registers()["sha256"][KERNEL_PCR]
    assert quoted == kernel_register(image.manifest)
    other = replace(image.manifest, initrd=Digest.of(b"another agent"))
    assert quoted != kernel_register(other)


def test_the_kernel_measured_what_ran(guest_host: GuestHost) -> None:
    measured = parse_list(TpmBody.parse(guest_host.clean.body).ima_list)
    paths = [measured.entry(number).path for number in range(len(measured))]
    assert paths[0] == "boot_aggregate"
    assert {PYTHON, BUNDLE} <= set(paths)
    assert not measured.violations


@pytest.mark.parametrize(
    ("act", "path"),
    [
        ("exec", "/tmp/busybox-unlisted"),
        ("bundle", BUNDLE),
        ("preload", "/tmp/libunlisted.so"),
        ("module", MODULE),
    ],
)
def test_a_bad_act_shows(guest_host: GuestHost, act: Act, path: str) -> None:
    """Before it, and without it, nothing new is refused: the positive control."""
    before = guest_host.guest.collect(BOUND)
    again = guest_host.guest.collect(BOUND)
    known = refused(guest_host.examine(before))
    assert refused(guest_host.examine(again)) == known
    assert guest_host.guest.misbehave(act) == path
    shown = refused(guest_host.examine(guest_host.guest.collect(BOUND)))
    fresh = {found: code for found, code in shown.items() if found not in known}
    assert list(fresh.values()) == ["ima-entry-unlisted"]
    assert next(iter(fresh)).startswith(f"{path} sha256:")


def test_only_new_entries_travel(guest_host: GuestHost) -> None:
    whole = guest_host.guest.collect(BOUND)
    continued = guest_host.guest.continue_from(whole, BOUND)
    earlier = guest_host.examine(whole)
    claims = guest_host.examine(continued, earlier=earlier)
    assert not refused(claims)
    assert len(TpmBody.parse(continued.body).ima_list) == 0
    assert len(TpmBody.parse(whole.body).ima_list) > 0


def test_a_list_that_hides_an_entry_is_refused(guest_host: GuestHost) -> None:
    body = TpmBody.parse(guest_host.clean.body)
    size = len(body.ima_list)
    shown = [parse_list(body.ima_list[:end]) for end in _ends(body.ima_list)]
    assert len(shown) > 2
    for end in _ends(body.ima_list)[:-1]:
        assert end < size
        hidden = replace(body, ima_list=body.ima_list[:end])
        evidence = Evidence(TpmBody.kind, MEDIA_TYPE, codec.encode(hidden))
        assert "ima-replay-differs" in refused(guest_host.examine(evidence)).values()


def test_the_runtime_log_is_extended_inside(guest_host: GuestHost) -> None:
    event = RuntimeEvent("note", b'"sha256:' + b"0" * 64 + b'"')
    before = TpmBody.parse(guest_host.guest.collect(BOUND).body).events
    guest_host.guest.measure(event)
    body = TpmBody.parse(guest_host.guest.collect(BOUND).body)
    assert body.events == (*before, event)
    assert body.registers()["sha256"][15] != bytes(32)


def test_requests_that_fail_say_why(guest_host: GuestHost) -> None:
    with pytest.raises(UnavailableError, match="2 to 64 bytes") as caught:
        guest_host.guest.collect(b"x")
    assert caught.value.code == "usage"


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    image = build_image(folder())
    for each in (*folder().glob("root-*"), folder() / "packages"):
        (tmp_path / each.name).symlink_to(each)
    again = build_image(tmp_path)
    assert again.folder != image.folder
    assert again.manifest == image.manifest
    assert again.initrd.read_bytes() == image.initrd.read_bytes()


def test_archives_do_not_depend_on_the_order_given() -> None:
    entries = [file_entry("b/c", b"1"), file_entry("a", b"2", executable=True)]
    assert archive(entries) == archive(reversed(entries))
    assert archive(entries) != archive(entries[:1])


def test_the_builder_says_where_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.guest"],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"SEALIFT_GUEST": str(folder())},
    )
    assert done.returncode == 0, done.stderr
    assert str(folder()) in done.stdout


def _ends(ima_list: bytes) -> list[int]:
    """Where each entry of a binary list ends."""
    ends, at = [], 0
    while at < len(ima_list):
        for skipped in (24, 0):  # register and recorded hash; then nothing
            size = int.from_bytes(ima_list[at + skipped : at + skipped + 4], "little")
            at += skipped + 4 + size
        ends.append(at)
    return ends


@pytest.mark.soak
def test_a_power_cycle_gives_a_new_boot_on_the_same_tpm() -> None:
    """What was bad before is gone from the list; the references still hold."""
    with boot_guest() as host:
        host.guest.misbehave("exec")
        for orderly in (True, False):
            host.guest.power_cycle(orderly=orderly)
            host.guest.keep_enrolment(enrol(host.guest, host.owner))
            found = set(refused(host.examine(host.guest.collect(BOUND))).values())
            assert found <= (set() if orderly else {"tpm-clock-unsafe"})
