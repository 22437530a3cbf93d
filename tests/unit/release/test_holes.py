"""Every hole is found where it is, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sealift.attest.level import Level
from sealift.attest.reference import (
    ImaReferences,
    NvidiaReferences,
    Operator,
    SetName,
    SnpReferences,
    TdxReferences,
    TpmReferences,
    TpmRoot,
)
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Board,
    Party,
    References,
    ReleaseRule,
    RollbackRule,
    ServersRule,
)
from sealift.release.agreement.holes import find_holes
from tests.worlds.consortium import OUTPUT, make_consortium

OPEN = make_consortium().agreement
KEY = SigningKey.generate().public_key
RULE = ReleaseRule(max_uses=9, lease_s=30.0, heartbeat_s=5.0)
OWNERS = ("ada", "bern", "cleo")


def host(
    operator: Operator = "hardware",
    name: str = "vendor",
    revocation: Any = "required",
    **ima: Any,
) -> Any:
    root = TpmRoot(name=name, key=Digest.of(b"root"), operator=operator)
    return TpmReferences(
        roots=(root,),
        endorsement_keys=(),
        pcrs={},
        ima=ImaReferences(allow={}, **{"must": ("/a",), **ima}),
        revocation=revocation,
    )


def _closed() -> Agreement:
    """As far as an agreement can be closed: what is left open names the case below."""
    parties = (
        *(replace(party, roles=("data_owner",)) for party in OPEN.parties[:2]),
        replace(OPEN.parties[2], roles=("data_owner", "model_owner", "code_owner")),
        _operator(),
    )
    return replace(
        OPEN,
        accept=(Level.GPU_TEE,),
        parties=parties,
        operator="dora",
        references=References(),
        resources=tuple(
            replace(each, rule=RULE, cell_rows=16) for each in OPEN.resources
        ),
        output=replace(OUTPUT, metric_rows=16, min_owner_rows=9, statistics_rows=9),
        board=Board(
            members=OWNERS, threshold=2, veto=OWNERS, rollback=RollbackRule(2, 0)
        ),
        not_after=2_000_000_000,
    )


def _operator() -> Party:
    key = SigningKey.generate().public_key
    return Party("dora", ("operator",), key, OPEN.parties[0].hpke)


CLOSED = _closed()
Change = Callable[[Agreement], Agreement]


def rule(**changes: Any) -> Change:
    first, *rest = CLOSED.resources
    changed = replace(first, rule=replace(RULE, **changes))
    return lambda a: replace(a, resources=(changed, *rest))


def output(**changes: Any) -> Change:
    return lambda a: replace(a, output=replace(a.output, **changes))


def board(**changes: Any) -> Change:
    assert CLOSED.board is not None
    changed = replace(CLOSED.board, **changes)
    return lambda a: replace(a, board=changed)


def references(**changes: Any) -> Change:
    return lambda a: replace(a, references=References(**changes))


def development(a: Agreement) -> Agreement:
    named = References(development_attesters=(KEY,))
    return replace(a, accept=(Level.DEVELOPMENT,), references=named)


def served(a: Agreement) -> Agreement:
    servers = [
        replace(a.parties[0], name=name, roles=("share_server",))
        for name in ("cloud-a", "cloud-b", "cloud-c")
    ]
    servers = [replace(each, sign=SigningKey.generate().public_key) for each in servers]
    return replace(
        a,
        accept=(Level.UNTRUSTED_GPU,),
        parties=(*a.parties, *servers),
        servers=ServersRule("cloud-a", "cloud-b", "cloud-c"),
    )


TDX = TdxReferences(
    mrtd=(), rtmr={}, mrconfigid=(), platforms=(b"p" * 16,), features=("avx",)
)
SNP = SnpReferences(measurement=(), host_data=(), min_tcb={})
HOLES: dict[str, tuple[str, Change]] = {
    "development": ("level-development", development),
    "rehearsal": (
        "rehearsal",
        lambda a: replace(development(a), rehearse=Level.ATTESTED_HOST),
    ),
    "tee": ("no-gpu-binding", lambda a: replace(a, accept=(Level.TEE,))),
    "attested host": (
        "no-gpu-binding",
        lambda a: replace(a, accept=(Level.ATTESTED_HOST,)),
    ),
    "servers": ("servers-collude", served),
    "virtual root": ("virtual-root", references(tpm=host("virtual"))),
    "software root": ("software-root", references(tpm=host("software"))),
    "software named hardware": (
        "software-root-named-hardware",
        references(tpm=host(name="swtpm-localca")),
    ),
    "signed sets": (
        "mutable-references",
        references(sets=(SetName(name="hosts", signer=KEY, number=1),)),
    ),
    "nothing that must have run": ("no-must-have", references(tpm=host(must=()))),
    "TPM that nobody revokes": (
        "no-revocation",
        references(tpm=host(revocation="none")),
    ),
    "signed files": ("mutable-code", references(tpm=host(signers=(b"key",)))),
    "old collateral": (
        "old-collateral",
        references(collateral_max_age_s=91 * 86_400),
    ),
    "any TDX machine": ("any-platform", references(tdx=replace(TDX, platforms=()))),
    "any feature": ("any-features", references(tdx=replace(TDX, features=None))),
    "any SNP chip": ("any-platform", references(snp=SNP)),
    "revoked chips": (
        "no-revocation",
        references(snp=replace(SNP, revocation="waived")),
    ),
    "revoked devices": (
        "no-revocation",
        references(
            nvidia=NvidiaReferences(drivers=(), vbios=(), revocation="if-known")
        ),
    ),
    "old firmware": (
        "old-firmware",
        references(tdx=replace(TDX, tcb_statuses=("UpToDate", "OutOfDate"))),
    ),
    "owner without veto": ("owner-without-veto", board(veto=("ada", "bern"))),
    "threshold of one": (
        "threshold-of-one",
        board(members=("ada",), threshold=1, veto=("ada",)),
    ),
    "no quorum": ("no-rollback-quorum", board(rollback=None)),
    "no board": ("no-rollback-quorum", lambda a: replace(a, board=None)),
    "operator gets the model": (
        "two-roles",
        lambda a: replace(a, operator="cleo", parties=OPEN.parties),
    ),
    "a stranger enrols": ("foreign-enroller", references(enrollers=(KEY,))),
    "any number of uses": ("unlimited-uses", rule(max_uses=0)),
    "no lease": (
        "no-lease",
        rule(lease_s=0.0, heartbeat_s=None),
    ),
    "no end": ("no-expiry", lambda a: replace(a, not_after=None)),
    "one row": ("few-rows", output(min_rows=1)),
    "one row of an owner": ("few-rows", output(min_owner_rows=1)),
    "a number of one row": ("few-rows", output(metric_rows=1)),
    "a total of one row": (
        "few-rows",
        output(statistics=("sums",), statistics_rows=1),
    ),
    "one owner": ("one-owner", output(min_holders=1)),
    "text": ("recipe-text", output(recipe_text=True)),
}


@pytest.mark.parametrize(("name", "change"), HOLES.values(), ids=HOLES.keys())
def test_found_where_it_is(name: str, change: Change) -> None:
    assert name in {hole.name for hole in find_holes(change(CLOSED))}


def test_control_a_closed_agreement_has_none() -> None:
    assert find_holes(CLOSED) == ()
