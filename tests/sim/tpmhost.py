"""A host with a software TPM, enrolled with an owner, whose kernel measures files."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sealift import codec
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.reference import AppraisalBasis, ReferenceValues
from sealift.attest.tpm.attester import TpmAttester, TpmSources
from sealift.attest.tpm.enrolment import (
    Enrolment,
    SignedEnrolment,
    check_answer,
    make_challenge,
    require_pair,
    sign_enrolment,
)
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.attest.tpm.verifier import examine_tpm
from sealift.attest.verifier import Claims
from sealift.crypto.sign import SigningKey
from tests.sim.swtpm import Maker, SoftwareTpm, shut_down, software_tpm
from tests.worlds.softwarehost import StandInKernel, software_references

BOUND = bytes(range(32))
AGENT = "/usr/lib/agent"


def now_s() -> float:
    """Seconds since 1970: the makers' certificates begin when they are made."""
    return dt.datetime.now(dt.UTC).timestamp()


def enrol(attester: TpmAttester, owner: SigningKey, maker: Maker) -> SignedEnrolment:
    """What an owner's broker does once: challenge, check, sign."""
    request = attester.enrolment_request()
    ek, ak = require_pair(request)
    credential, secret = make_challenge(ek, ak.name)
    check_answer(secret, attester.answer(credential))
    enrolment = Enrolment(
        attestation_key=ak.name,
        endorsement_key=ek.spki_digest,
        root=maker.root.spki_digest,
        at_s=int(now_s()),
    )
    return sign_enrolment(enrolment, owner)


@dataclass
class TpmHost:
    """One host."""

    folder: Path
    tpm: SoftwareTpm
    attester: TpmAttester
    kernel: StandInKernel
    owner: SigningKey = field(default_factory=SigningKey.generate)

    def sources(self, **changes: Any) -> TpmSources:
        return sources(self.folder, self.tpm, **changes)

    def reopen(self, **changes: Any) -> None:
        """A new process on this host."""
        self.attester.close()
        self.attester = TpmAttester(self.sources(**changes))
        self.kernel.client = self.attester.client

    def boot(self, *, orderly: bool = True) -> None:
        """A power cycle, and a kernel that measures from its beginning.

        Without an orderly shutdown the TPM does not vouch for its clock afterwards.
        """
        if orderly:
            shut_down(self.attester.client)
        self.attester.close()
        self.tpm.reset()
        self.attester = TpmAttester(self.sources())
        self.kernel.client = self.attester.client
        self.kernel.boot()
        self.kernel.run(AGENT, b"an agent")

    def evidence(self, bound: bytes = BOUND) -> Evidence:
        return self.attester.collect(bound)

    def references(self, **changes: Any) -> ReferenceValues:
        root = self.tpm.maker.root
        tpm = software_references(self.attester, self.kernel, root, AGENT)
        return ReferenceValues(
            enrollers=(self.owner.public_key,), tpm=replace(tpm, **changes)
        )


def sources(folder: Path, tpm: SoftwareTpm, **changes: Any) -> TpmSources:
    standard: dict[str, Any] = {
        "tpm": tpm.name,
        "state": folder / "state",
        "event_log": None,
        "ima_list": folder / "ima",
        "issuers": tpm.maker.issuers,
    }
    return TpmSources(**{**standard, **changes})


@contextlib.contextmanager
def tpm_host(
    number: int = 0, by: str = "maker", owner: SigningKey | None = None
) -> Iterator[TpmHost]:
    """A booted and enrolled host, with two programs that ran."""
    folder = Path(tempfile.mkdtemp(prefix="host-"))
    (folder / "ima").write_bytes(b"")
    with software_tpm(number, by) as tpm:
        attester = TpmAttester(sources(folder, tpm))
        kernel = StandInKernel(attester.client, folder / "ima", ("sha256", "sha384"))
        owner = owner or SigningKey.generate()
        host = TpmHost(folder, tpm, attester, kernel, owner)
        try:
            kernel.boot()
            kernel.run("/usr/bin/python3.11", b"an interpreter")
            kernel.run(AGENT, b"an agent")
            attester.keep_enrolment(enrol(attester, owner, tpm.maker))
            yield host
        finally:
            host.attester.close()
            shutil.rmtree(folder)


def examine(
    evidence: Evidence,
    references: ReferenceValues,
    *,
    bound: bytes | None = BOUND,
    collateral: Collateral | None = None,
    at_s: int | None = None,
) -> Claims:
    return examine_tpm(
        evidence,
        AppraisalBasis(
            bound=bound,
            references=references,
            collateral=collateral or Collateral(),
            at_s=int(now_s()) if at_s is None else at_s,
        ),
    )


def appraiser(references: ReferenceValues, **changes: Any) -> Appraiser:
    standard: dict[str, Any] = {
        "accept": (Level.DEVELOPMENT,),
        "rehearse": Level.ATTESTED_HOST,
        "clock": now_s,
    }
    return Appraiser(references=references, **{**standard, **changes})


def changed(evidence: Evidence, change: Callable[[TpmBody], TpmBody]) -> Evidence:
    """The evidence with another body."""
    body = change(TpmBody.parse(evidence.body))
    return Evidence(TpmBody.kind, MEDIA_TYPE, codec.encode(body))


def failed(claims: Claims) -> set[str]:
    """Codes of the checks that failed."""
    return {each.code for each in claims.checks if not each.passed}
