"""A world whose agreement rehearses attested hosts, on a software TPM of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues
from sealift.demo.folder import World
from sealift.release.agreement import Agreement, ReleaseRule
from sealift.release.agreement.signed import (
    SignedAgreement,
    add_signature,
    load_signed,
    save_signed,
)
from tests.sim.jobworld import identities
from tests.sim.tpmhost import TpmHost


def rehearse_attested_host(
    world: World,
    references: ReferenceValues,
    enrollers: Sequence[str],
    rule: ReleaseRule | None = None,
) -> None:
    """Sign the world's agreement again, with one host's reference values."""
    before = load_signed(world.agreement).agreement
    keys = tuple(identities()[name].public_key for name in enrollers)
    after = replace(
        before,
        rehearse=Level.ATTESTED_HOST,
        references=replace(before.references, tpm=references.tpm, enrollers=keys),
    )
    if rule is not None:
        resources = tuple(replace(each, rule=rule) for each in after.resources)
        after = replace(after, resources=resources)
    sign_again(world, after)


def sign_again(world: World, agreement: Agreement) -> None:
    """Every party signs another agreement."""
    signed = SignedAgreement(agreement)
    for party in agreement.parties:
        signed = add_signature(signed, identities()[party.name])
    save_signed(signed, world.agreement)


def host_words(host: TpmHost, state: Path) -> tuple[str, ...]:
    """What `sealift accelerator` is told of the host."""
    issuers = host.folder / "issuers.pem"
    from base64 import encodebytes

    issuers.write_bytes(
        b"".join(
            b"-----BEGIN CERTIFICATE-----\n"
            + encodebytes(der)
            + b"-----END CERTIFICATE-----\n"
            for der in host.tpm.maker.issuers
        )
    )
    return (
        "--tpm", host.tpm.name, "--tpm-state", str(state), "--event-log", "none",
        "--ima-list", str(host.folder / "ima"), "--tpm-issuers", str(issuers),
    )  # fmt: skip
