"""Azure's guests over TDX, under a made Intel: public evidence lacks its collateral."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sealift.attest.azure.verifier import examine_azure
from sealift.attest.collateral import Collateral
from sealift.attest.level import Level
from sealift.attest.reference import AppraisalBasis
from sealift.attest.verifier import Claims, require_passed
from sealift.crypto.hash import sha256
from sealift.errors import SealiftError
from tests.sim import azure_made as made
from tests.sim.intel_world import PPID, IntelWorld
from tests.sim.made_chain import AT_S

WORLD = IntelWorld()
COLLATERAL = WORLD.collateral()


@dataclass
class TdxGuest:
    """A guest over TDX; all fits unless changed."""

    guest: dict[str, Any] = field(default_factory=dict)
    tdx: dict[str, Any] = field(default_factory=dict)
    over: bytes | None = None
    body: dict[str, object] = field(default_factory=dict)
    collateral: Collateral = COLLATERAL

    def examine(self) -> Claims:
        claims = made.claims_text()
        over = sha256(claims) if self.over is None else self.over
        genuine = WORLD.guest
        try:
            WORLD.guest = replace(genuine, **self.guest)
            quote = WORLD.quote(over.ljust(64, b"\0"))
        finally:
            WORLD.guest = genuine
        parts: dict[str, object] = {
            "hcl_report": made.pack_hcl(bytes(1184), claims, kind=4),
            "td_quote": quote,
            "certificates": (),
        }
        guest = made.Guest(body={**parts, **self.body})
        references = WORLD.references(**self.tdx)
        root = WORLD.root.certificate.spki_digest
        return examine_azure(
            guest.evidence_body().to_evidence(),
            AppraisalBasis(
                bound=made.BOUND,
                references=replace(references, tpm=guest.references().tpm),
                collateral=self.collateral,
                at_s=AT_S,
            ),
            intel_roots=(root,),
        )


def refused(guest: TdxGuest) -> str:
    with pytest.raises(SealiftError) as caught:
        require_passed(guest.examine().checks)
    return caught.value.code


def test_a_guest_over_tdx() -> None:
    claims = TdxGuest().examine()
    require_passed(claims.checks)
    assert (claims.level, claims.attester) == (Level.TEE, f"ppid:{PPID.hex()}")
    assert (claims.trust.hardware, claims.trust.executables) == (2, 2)
    assert claims.measurements["mrtd"] == b"\x11" * 48
    assert claims.measurements["pcr4"] == made.PCRS[4]


def test_a_pinned_platform() -> None:
    claims = TdxGuest(tdx={"platforms": (PPID,)}).examine()
    assert claims.trust.instance_identity == 2


REFUSED: dict[str, tuple[TdxGuest, str]] = {
    "other claims": (TdxGuest(over=bytes(32)), "azure-claims"),
    "debug": (TdxGuest(guest={"attributes": 1 << 28 | 1}), "tdx-debug"),
    "paravisor": (TdxGuest(guest={"mrtd": b"\7" * 48}), "tdx-mrtd"),
    "RTMR 0": (TdxGuest(tdx={"rtmr": {}}), "tdx-rtmr"),
    "RTMR 3": (
        TdxGuest(guest={"rtmr": [*WORLD.guest.rtmr[:3], b"\7" * 48]}),
        "tdx-rtmr",
    ),
    "no lists": (TdxGuest(collateral=Collateral()), "collateral-missing"),
    "firmware": (
        TdxGuest(collateral=WORLD.collateral(
            lambda plain: plain.update(tcbLevels=[WORLD.level("OutOfDate")])
        )),
        "tcb-status",
    ),
    "no quote": (TdxGuest(body={"td_quote": b""}), "malformed"),
    "certificates beside it": (TdxGuest(body={"certificates": (b"x",)}), "malformed"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    guest, code = REFUSED[name]
    assert refused(guest) == code


def test_debug_is_contraindicated() -> None:
    trust = TdxGuest(guest={"attributes": 1 << 28 | 1}).examine().trust
    assert (trust.hardware, trust.runtime_opaque) == (96, 96)


def test_references_for_tdx_are_needed() -> None:
    guest = made.Guest(
        body={
            "hcl_report": made.pack_hcl(bytes(1184), made.claims_text(), kind=4),
            "certificates": (),
        }
    )
    with pytest.raises(SealiftError) as caught:
        guest.examine()
    assert caught.value.code == "references-missing"
