"""A served model behind its door, where evidence is longer than any handshake before it.

The quote is of a made Intel, for a real one answers only its own challenge; the
firmware's log in the evidence is a real machine's, and the registers follow from it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.configfs import TdxAttester, TsmReader
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent, module_event
from sealift.attest.tdx import evidence as tdx
from sealift.attest.tpm.eventlog import parse
from sealift.errors import PeerError, PolicyError, RefusedError
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.serve import admission
from sealift.serve.admission import SHORT_FRAME_BYTES
from sealift.serve.client import connect
from tests.sim.intel_world import IntelWorld
from tests.sim.made_chain import AT_S
from tests.sim.served import Served, rows
from tests.sim.startedserver import Started
from tests.sim.tsm_folder import StandInTsmFolder
from tests.sim.vectors import vectors_folder

pytestmark = pytest.mark.vectors
# A machine's log, how many modules ran in it since, and the least that evidence has then.
MODULES = 3000
GUESTS = {
    "grub": ("tdx/gotdx_ccel_data.dat", 0, SHORT_FRAME_BYTES),
    "cloud": ("ccel/CCEL_data_gcp", 0, SHORT_FRAME_BYTES),
    "busy": ("ccel/CCEL_data_gcp", MODULES, 400 << 10),
}


class TdxServed:
    """A TDX guest that serves, and what its clients judge it with."""

    def __init__(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.intel = IntelWorld()
        replayed = parse(log.read_bytes()).replay("sha384")
        for number in range(3):  # in such a log RTMR 0 is register 1
            self.intel.guest.rtmr[number] = replayed.get(number + 1, bytes(48))
        self.served = Served(accept=(Level.TEE,))
        folder = StandInTsmFolder(lambda inblob, _: (self.intel.quote(inblob), b""))
        self.attester = TdxAttester(TsmReader(folder), self.intel.guest, log)
        self.code = self.served.verified.agreement.code.digest
        self.attester.measure(RuntimeEvent(CODE_BUNDLE, self.code.raw))
        files = self.served.verified.agreement.code.files
        references = replace(
            self.intel.references(), code_bundle=self.code, code_files=files
        )
        appraiser = Appraiser(
            accept=(Level.TEE,),
            references=references,
            collateral=self.intel.collateral(),
            clock=lambda: AT_S,
            verifiers={tdx.MEDIA_TYPE: self.intel.verifier()},
        )
        monkeypatch.setattr(VerifiedAgreement, "appraiser", lambda _: appraiser)
        self.started = Started(self.served, self.attester)

    def run_modules(self, number: int) -> None:
        """As the server measures what its worker imports."""
        files = self.served.verified.agreement.code.files
        ((path, digest),) = files.items()
        for _ in range(number):
            self.attester.measure(module_event(path, digest))


@pytest.fixture(params=GUESTS)
def guest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TdxServed:
    log, modules, least_bytes = GUESTS[request.param]
    made = TdxServed(vectors_folder() / log, monkeypatch)
    made.run_modules(modules)
    assert len(made.attester.collect(bytes(32)).body) > least_bytes
    return made


def test_it_is_judged_asked_and_judged_again(guest: TdxServed) -> None:
    with guest.started.listening() as address:
        with connect(address, guest.served.policy(development=False)) as client:
            assert (client.seen.level, client.seen.code) == ("tee", guest.code)
            assert client.predict(rows(1.0))["y"].tolist() == [[2.0, 3.0]]
            client.renew()
            assert client.predict(rows(2.0))["y"].tolist() == [[4.0, 5.0]]
        other = guest.served.policy(levels=(Level.GPU_TEE,))
        with pytest.raises(PolicyError):
            connect(address, other)


def test_a_changed_register_is_refused(guest: TdxServed) -> None:
    """The control: what lies in so much evidence is looked at."""
    with guest.started.listening() as address:
        guest.intel.guest.rtmr[1] = bytes(48)
        with pytest.raises(RefusedError):
            connect(address, guest.served.policy())


def test_control_a_door_with_short_frames_both_ways(
    guest: TdxServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "LONG_FRAME_BYTES", SHORT_FRAME_BYTES)
    with guest.started.listening() as address, pytest.raises(PeerError):
        connect(address, guest.served.policy())
