"""SEV-SNP evidence collected in a made guest, over a stand-in of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sealift.attest import Appraiser, Level
from sealift.attest.configfs import SnpAttester, TsmReader
from sealift.attest.snp.evidence import MEDIA_TYPE, SnpBody
from sealift.errors import MalformedError, UnavailableError, UsageError
from tests.sim import snp_made as made
from tests.sim.kinds import with_roots
from tests.sim.tsm_folder import StandInTsmFolder


@dataclass(frozen=True)
class Host:
    """A host of the made root: its chip's key, and the chain it may hand over."""

    authority: made.Authority
    signer: made.Signer

    @property
    def chain(self) -> tuple[bytes, ...]:
        der = self.authority.der
        return (self.signer.certificate, der("ask"), der("ark"))

    def attester(
        self, auxblob: bytes = b"", *, vmpl: int = 0, provider: str = "sev_guest"
    ) -> SnpAttester:
        def quoting(inblob: bytes, privlevel: int) -> tuple[bytes, bytes]:
            report = made.report("Milan", 3, report_data=inblob, vmpl=privlevel)
            return self.signer.sign(report), auxblob

        folder = StandInTsmFolder(quoting, provider=provider)
        return SnpAttester(TsmReader(folder), vmpl)


@pytest.fixture
def host() -> Host:
    return Host(made.authority("Milan"), made.vcek("Milan"))


def table(certificates: tuple[bytes, ...]) -> bytes:
    """The host's table, as the kernel hands it over: entries, an empty one, content."""
    start = 24 * (len(certificates) + 1)
    entries = b""
    for each in certificates:
        entries += b"\x63" * 16 + start.to_bytes(4, "little")
        entries += len(each).to_bytes(4, "little")
        start += len(each)
    return entries + bytes(24) + b"".join(certificates)


def test_collected_evidence_is_appraised_at_tee(host: Host) -> None:
    authority = host.authority
    appraiser = Appraiser(
        accept=(Level.TEE,),
        references=made.references("Milan"),
        collateral=authority.collateral(),
        clock=lambda: made.AT_S,
        verifiers={MEDIA_TYPE: with_roots(MEDIA_TYPE, roots=authority.roots)},
    )
    evidence = host.attester(table(host.chain)).collect(made.BOUND)
    assert appraiser.appraise(evidence, made.BOUND).level is Level.TEE
    assert SnpBody.parse(evidence.body).certificates == host.chain


def test_hosts_need_not_hand_over_certificates(host: Host) -> None:
    assert SnpBody.parse(host.attester().collect(made.BOUND).body).certificates == ()


def test_the_level_that_asks_is_in_the_report(host: Host) -> None:
    zero, two = (host.attester(vmpl=each).collect(made.BOUND) for each in (0, 2))
    assert zero.body != two.body


def test_a_table_that_does_not_parse_is_refused(host: Host) -> None:
    with pytest.raises(MalformedError):
        host.attester(b"\1" * 100).collect(made.BOUND)


def test_a_tdx_guest_is_named(host: Host) -> None:
    made_here = host.attester(provider="tdx_guest")
    with pytest.raises(UnavailableError):
        made_here.collect(made.BOUND)


def test_a_replayed_report_is_not_passed_on(host: Host) -> None:
    report = host.signer.sign(made.report("Milan", 3))
    folder = StandInTsmFolder(lambda inblob, level: (report, b""), provider="sev_guest")
    with pytest.raises(UnavailableError) as caught:
        SnpAttester(TsmReader(folder)).collect(bytes(32))
    assert caught.value.code == "tsm-interfered"


@pytest.mark.parametrize("length", [0, 1, 65])
def test_too_little_or_too_much_to_bind(host: Host, length: int) -> None:
    with pytest.raises(UsageError):
        host.attester().collect(bytes(length))
