"""The attested host that tests use: one guest a worker, booted once, then shared.

A bad act stays in its measurement list until the next boot. So tests compare what an
act added, and tests that need a clean list use ``clean``, which was collected first.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis, ReferenceValues
from sealift.attest.tpm.enrolment import (
    Enrolment,
    SignedEnrolment,
    check_answer,
    make_challenge,
    require_pair,
    sign_enrolment,
)
from sealift.attest.tpm.verifier import examine_tpm
from sealift.attest.verifier import Claims
from sealift.crypto.sign import SigningKey
from tests.guest.image import build_image, fetched, guest_references
from tests.guest.machine import Guest

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "swtpm": "swtpm",
    "swtpm_setup": "swtpm-tools",
}
BOUND = bytes(range(32))


def folder() -> Path:
    """Where `make guest` put it, or would."""
    return Path(os.environ.get("SEALIFT_GUEST") or ROOT / "build" / "guest")


def lacks_guest() -> str | None:
    """What this machine lacks to boot one, or None."""
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"{program} (apt-get install {package})"
    return (
        None if fetched(folder() / "packages") else "the guest's packages (make guest)"
    )


def now_s() -> int:
    return int(dt.datetime.now(dt.UTC).timestamp())


def enrol(guest: Guest, owner: SigningKey) -> SignedEnrolment:
    """What an owner's broker does once: challenge, check, sign."""
    ek, ak = require_pair(guest.enrolment_request())
    credential, secret = make_challenge(ek, ak.name)
    check_answer(secret, guest.answer(credential))
    enrolment = Enrolment(
        attestation_key=ak.name,
        endorsement_key=ek.spki_digest,
        root=guest.root.spki_digest,
        at_s=now_s(),
    )
    return sign_enrolment(enrolment, owner)


@dataclass
class GuestHost:
    """A booted and enrolled guest.

    Attributes:
        clean: Evidence over ``BOUND``, from before anything bad was done.
    """

    guest: Guest
    owner: SigningKey
    references: ReferenceValues
    clean: Evidence

    def examine(
        self, evidence: Evidence, *, bound: bytes | None = BOUND, **basis: Any
    ) -> Claims:
        return examine(evidence, self.references, bound=bound, **basis)


@contextlib.contextmanager
def guest_host() -> Iterator[GuestHost]:
    """Boot one."""
    image = build_image(folder())
    owner = SigningKey.generate()
    with Guest(image) as guest:
        guest.keep_enrolment(enrol(guest, owner))
        clean = guest.collect(BOUND)
        tpm = guest_references(image.manifest, clean, guest.root)
        references = ReferenceValues(enrollers=(owner.public_key,), tpm=tpm)
        yield GuestHost(guest, owner, references, clean)


def examine(
    evidence: Evidence,
    references: ReferenceValues,
    *,
    bound: bytes | None = BOUND,
    at_s: int | None = None,
    earlier: Claims | None = None,
) -> Claims:
    basis = AppraisalBasis(
        bound=bound,
        references=references,
        collateral=Collateral(),
        at_s=now_s() if at_s is None else at_s,
    )
    if earlier is None:
        return examine_tpm(evidence, basis)
    return examine_tpm(evidence, basis, earlier=earlier)


def refused(claims: Claims) -> dict[str, str]:
    """What failed: code by what was found."""
    return {each.found: each.code for each in claims.checks if not each.passed}
