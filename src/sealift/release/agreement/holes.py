"""Holes of an agreement: what it leaves open, in words that an owner can act on.

Pure. A hole is not an error: parties may want it. It is said whenever they look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sealift.attest.collateral import DAY_S
from sealift.attest.level import Level
from sealift.release.agreement import Agreement, Resource

OLD_COLLATERAL_S: Final = 90 * DAY_S
_SOFTWARE_WORDS: Final = ("swtpm", "software", "simulator", "localca", "test")


@dataclass(frozen=True, slots=True)
class Hole:
    """One thing that an agreement leaves open.

    Attributes:
        name: Stable, for programs.
        line: For people: what it means.
    """

    name: str
    line: str


def find_holes(agreement: Agreement) -> tuple[Hole, ...]:
    """Everything known to be open, in the order of importance."""
    return tuple(hole for search in _SEARCHES for hole in search(agreement))


def _levels(agreement: Agreement) -> Iterator[Hole]:
    if Level.DEVELOPMENT in agreement.accept:
        yield Hole(
            "level-development",
            f"at level development {agreement.operator} and everybody with access to "
            "its machine can read all rows, all keys and the model",
        )
    if agreement.rehearse is not None:
        yield Hole(
            "rehearsal",
            f"it only rehearses {agreement.rehearse}: the same steps, and no protection",
        )
    if agreement.servers is not None:
        names = ", ".join(agreement.servers.parties.values())
        yield Hole(
            "servers-collude",
            f"any two of {names} together can read rows and weights, and no evidence "
            "shows that they do not",
        )
    for level in (Level.TEE, Level.ATTESTED_HOST):
        if level in agreement.accept:
            yield Hole(
                "no-gpu-binding",
                f"level {level} binds no GPU: what a GPU or its bus shows is open to "
                "the operator; only gpu-tee asks for a measured GPU",
            )


def _roots(agreement: Agreement) -> Iterator[Hole]:
    tpm = agreement.references.tpm
    for root in tpm.roots if tpm else ():
        if root.operator == "virtual":
            yield Hole(
                "virtual-root",
                f"TPM root {root.name} is virtual: whoever runs that cloud is trusted "
                "with everything",
            )
        if root.operator == "software":
            yield Hole(
                "software-root",
                f"TPM root {root.name} is software: it rehearses and proves nothing",
            )
        if root.operator == "hardware" and _sounds_soft(root.name):
            yield Hole(
                "software-root-named-hardware",
                f"TPM root {root.name} counts as hardware and sounds like software: "
                "compare its key with the vendor's",
            )


def _references(agreement: Agreement) -> Iterator[Hole]:
    references = agreement.references
    parties = {party.sign: party.name for party in agreement.parties}
    for each in references.sets:
        who = parties.get(each.signer, "a stranger")
        yield Hole(
            "mutable-references",
            f"{who}, by the key of the reference set {each.name}, may change what "
            "evidence must show, without a new agreement",
        )
    ima = references.tpm.ima if references.tpm else None
    if ima is not None and not ima.must:
        yield Hole(
            "no-must-have",
            "no program is named that must have run (references.tpm.ima.must): no "
            "attested host is accepted before a set of references names one",
        )
    if ima is not None and ima.signers:
        yield Hole(
            "mutable-code",
            f"any file signed by one of {len(ima.signers)} keys may run on the host, "
            "also one that nobody here has seen",
        )
    if references.lowest_tier != "affirming":
        yield Hole(
            "warning-tier",
            "evidence with warnings of its vendor is taken: weaknesses that are known "
            "may be open",
        )
    if references.collateral_max_age_s > OLD_COLLATERAL_S:
        days = references.collateral_max_age_s // DAY_S
        yield Hole(
            "old-collateral",
            f"collateral may be {days} days old: a broken platform counts for so long "
            "after it was revoked",
        )
    yield from _platforms(agreement)


def _platforms(agreement: Agreement) -> Iterator[Hole]:
    references = agreement.references
    if references.tdx is not None and not references.tdx.platforms:
        yield Hole("any-platform", "any TDX machine in the world may answer (rule M7)")
    if references.snp is not None and not references.snp.chips:
        yield Hole("any-platform", "any SEV-SNP chip in the world may answer (rule M7)")
    if references.tpm is not None and references.tpm.revocation == "none":
        yield Hole(
            "no-revocation",
            "a TPM whose certificate names no revocation list counts: nobody would say "
            "that its maker revoked it",
        )
    waived = references.snp is not None and references.snp.revocation == "waived"
    lax = references.nvidia is not None and references.nvidia.revocation == "if-known"
    for name, open_ in (("SEV-SNP chip", waived), ("NVIDIA device", lax)):
        if open_:
            yield Hole("no-revocation", f"an {name} counts after its maker revoked it")
    if references.tdx is not None and references.tdx.tcb_statuses != ("UpToDate",):
        names = ", ".join(references.tdx.tcb_statuses)
        yield Hole("old-firmware", f"TDX firmware counts when it is {names}")


def _owners(agreement: Agreement) -> Iterator[Hole]:
    board = agreement.board
    if board is None:
        return
    for name in agreement.holders:
        if name not in board.veto:
            yield Hole(
                "owner-without-veto",
                f"{name} brings data and has no veto: others may bring a successor into "
                f"force without it; {name}'s own keys stay closed until it signs",
            )
    if board.threshold == 1:
        yield Hole(
            "threshold-of-one",
            f"{board.members[0]} alone may change what belongs to no single owner",
        )


def _rollback(agreement: Agreement) -> Iterator[Hole]:
    if agreement.board is None or agreement.board.rollback is None:
        yield Hole(
            "no-rollback-quorum",
            "nobody is asked which agreement is the last: a broker restored from a "
            "backup serves the one that it remembers",
        )


def _roles(agreement: Agreement) -> Iterator[Hole]:
    operator, serves = agreement.operator, agreement.about == "serve"
    if operator in (agreement.holders if serves else (agreement.model_owner,)):
        has = "brings" if serves else "gets"
        yield Hole(
            "two-roles",
            f"{operator} runs the machines and {has} the model: nobody else sees a run",
        )
    roles = agreement.party(operator).roles
    for role, what in (("data_owner", "brings data"), ("code_owner", "wrote the code")):
        if role in roles:
            yield Hole("two-roles", f"{operator} runs the machines and {what}")
    enrollers = {party.sign: party.name for party in agreement.parties}
    for key in agreement.references.enrollers:
        if key not in enrollers:
            yield Hole(
                "foreign-enroller",
                f"{key.to_text()} may say which TPM is genuine, and is no party's key",
            )


def _time(agreement: Agreement) -> Iterator[Hole]:
    if agreement.not_after is None:
        yield Hole("no-expiry", "the agreement never ends by itself")


def _releases(agreement: Agreement) -> Iterator[Hole]:
    for resource in agreement.resources:
        yield from _resource(resource, agreement)


def _resource(resource: Resource, agreement: Agreement) -> Iterator[Hole]:
    rule = resource.rule
    attested = Level.ATTESTED_HOST in agreement.accept
    if not rule.max_uses:
        yield Hole(
            "unlimited-uses",
            f"the key of {resource.name} may be released any number of times",
        )
    if rule.not_after is None and agreement.not_after is None:
        yield Hole("no-expiry", f"the key of {resource.name} may be released for ever")
    if resource.lease is None and (resource.part != "model" or attested):
        yield Hole(
            "no-lease",
            f"the key of {resource.name} goes out without a lease: a host that turns "
            f"bad later keeps it, nothing is revoked, and a departure is not heard",
        )


def _outputs(agreement: Agreement) -> Iterator[Hole]:
    for each in agreement.resources:
        if each.part == "model" and not each.schema.get("clients"):
            line = f"anybody may ask {each.name}, and learn it answer by answer"
            yield Hole("open-to-all", line)
    if agreement.about == "group":
        yield Hole("no-output-rule", "the code may let out whatever its processes hold")
    if agreement.output is None:
        return
    rule, several = agreement.output, len(agreement.data_owners) > 1
    if rule.min_rows == 1 or rule.min_owner_rows == 1:
        yield Hole(
            "few-rows",
            "a model may leave that was trained on a single row of an owner: whoever "
            "gets it may read that row out of it",
        )
    if rule.metrics and rule.metric_rows == 1:
        yield Hole("few-rows", "a number may leave that was measured on a single row")
    if rule.statistics and rule.statistics_rows == 1:
        yield Hole("few-rows", "a total may leave that was made of a single row")
    if several and rule.min_holders == 1:
        yield Hole("one-owner", "a model may leave that saw the rows of one owner only")
    if rule.recipe_text:
        yield Hole("recipe-text", "the recipe may print rows: its text leaves unread")


def _sounds_soft(name: str) -> bool:
    return any(word in name.lower() for word in _SOFTWARE_WORDS)


_SEARCHES: Final[tuple[Callable[[Agreement], Iterator[Hole]], ...]] = (
    _levels, _roots, _references, _owners, _roles, _releases, _outputs, _rollback, _time,
)  # fmt: skip
