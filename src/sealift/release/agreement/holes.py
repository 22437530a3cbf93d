"""Holes of an agreement: what it does not protect, in words that an owner can act on.

Pure. A hole is not an error, because the parties may want it, but they see it every time.

What an owner's own program refuses to sign unless the owner names it with --allow.

People answer questions by habit, so a plain yes is not enough for terms that can show
single rows: the owner must name each such exception on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.attest.collateral import DAY_S
from sealift.attest.level import Level
from sealift.errors import PolicyError
from sealift.release.agreement import Agreement, Resource
from sealift.release.agreement.explain import ExceptionName, explain
from sealift.release.agreement.phrases import FLOOR_ROWS

OLD_COLLATERAL_S: Final = 90 * DAY_S
_SOFTWARE_WORDS: Final = ("swtpm", "software", "simulator", "localca", "test")


EXCEPTIONS: Final[dict[ExceptionName, str]] = {
    "recipe-text": "text of the recipe is shared unchecked",
    "statistics": f"sums over fewer than {FLOOR_ROWS} rows are shared",
    "metric-rows": f"numbers over fewer than {FLOOR_ROWS} rows are shared",
    "model-to": "the model goes to a party that is not its owner",
    "round-updates": f"updates over a table of fewer than {FLOOR_ROWS} rows are shared",
    "step-updates": f"updates over fewer than {FLOOR_ROWS} rows are shared",
    "shared-noise": "your privacy budget holds only as long as other owners' machines add their noise",
    "rows-away": "your rows are sent to a machine that proves nothing",
}


def require_allowed(
    agreement: Agreement, owner: str, allowed: Sequence[str], *, sealed: bool = True
) -> None:
    """Refuse terms below the floor, unless the owner named each exception.

    Args:
        agreement: What is to be signed.
        owner: Who would sign it; a party without rows has no floor.
        allowed: Of ``EXCEPTIONS``, as the owner named them.
        sealed: As for ``explain``.

    Raises:
        PolicyError: ``below-floor``, with each exception and its reason.
    """
    if not any(each.part != "model" for each in agreement.resources_of(owner)):
        return
    sentences = explain(agreement, owner, sealed=sealed)
    below = {each.exception: None for each in sentences if each.exception}
    missing = [each for each in below if each not in allowed]
    if missing:
        raise PolicyError(
            "the agreement shares something that you must allow explicitly",
            why="; ".join(f"{EXCEPTIONS[each]} (--allow {each})" for each in missing),
            code="below-floor",
        )


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
            f"it only rehearses level {agreement.rehearse}, without its protection",
        )
    if agreement.servers is not None:
        names = ", ".join(agreement.servers.parties.values())
        yield Hole(
            "servers-collude",
            f"any two of {names} together can read rows and weights, and no evidence can show that they do not",
        )
    for level in (Level.TEE, Level.ATTESTED_HOST):
        if level in agreement.accept:
            yield Hole(
                "no-gpu-binding",
                f"level {level} does not check GPUs: the operator can read what "
                "is on a GPU or its bus; only gpu-tee requires a measured GPU",
            )


def _roots(agreement: Agreement) -> Iterator[Hole]:
    tpm = agreement.references.tpm
    for root in tpm.roots if tpm else ():
        if root.operator == "virtual":
            yield Hole(
                "virtual-root",
                f"TPM root {root.name} is virtual: the operator of that cloud can read everything and forge its evidence",
            )
        if root.operator == "software":
            yield Hole(
                "software-root", f"TPM root {root.name} is software: it proves nothing"
            )
        soft = any(word in root.name.lower() for word in _SOFTWARE_WORDS)
        if root.operator == "hardware" and soft:
            yield Hole(
                "software-root-named-hardware",
                f"TPM root {root.name} is declared as hardware, and its name "
                "suggests software: compare its key with the vendor's",
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
            "references.tpm.ima.must names no program that must have run: no "
            "attested host is accepted before a reference set names one",
        )
    if ima is not None and ima.signers:
        yield Hole(
            "mutable-code",
            f"any file signed by one of {len(ima.signers)} keys may run on the "
            "host, also one that no party has seen",
        )
    if references.lowest_tier != "affirming":
        yield Hole(
            "warning-tier",
            "evidence with warnings of its vendor is accepted: it may have known weaknesses",
        )
    if references.collateral_max_age_s > OLD_COLLATERAL_S:
        days = references.collateral_max_age_s // DAY_S
        yield Hole(
            "old-collateral",
            f"collateral may be {days} days old: a platform is accepted for so long after its revocation",
        )
    yield from _platforms(agreement)


def _platforms(agreement: Agreement) -> Iterator[Hole]:
    references = agreement.references
    if references.tdx is not None and not references.tdx.platforms:
        yield Hole("any-platform", "any TDX machine is accepted (rule M7)")
    if references.snp is not None and not references.snp.chips:
        yield Hole("any-platform", "any SEV-SNP chip is accepted (rule M7)")
    if references.tpm is not None and references.tpm.revocation == "none":
        yield Hole(
            "no-revocation",
            "a TPM whose certificate names no revocation list is accepted: "
            "nobody would learn that its manufacturer revoked it",
        )
    waived = references.snp is not None and references.snp.revocation == "waived"
    lax = references.nvidia is not None and references.nvidia.revocation == "if-known"
    for name, open_ in (("SEV-SNP chip", waived), ("NVIDIA device", lax)):
        if open_:
            yield Hole("no-revocation", f"an {name} is accepted after its revocation")
    if references.tdx is not None and references.tdx.features is None:
        yield Hole(
            "any-features",
            "a TDX guest may have any extended feature of its processor (XFAM), for "
            "example processor tracing",
        )
    if references.tdx is not None and references.tdx.tcb_statuses != ("UpToDate",):
        names = ", ".join(references.tdx.tcb_statuses)
        yield Hole("old-firmware", f"TDX firmware is accepted when it is {names}")


def _owners(agreement: Agreement) -> Iterator[Hole]:
    board = agreement.board
    if board is None:
        return
    for name in agreement.holders:
        if name not in board.veto:
            yield Hole(
                "owner-without-veto",
                f"{name} brings data and has no veto: the others can put a successor "
                f"into force without it; {name}'s own keys are not released until it signs",
            )
    if board.threshold == 1:
        yield Hole(
            "threshold-of-one",
            f"{board.members[0]} alone may change everything that belongs to no single owner",
        )


def _rollback(agreement: Agreement) -> Iterator[Hole]:
    if agreement.board is None or agreement.board.rollback is None:
        yield Hole(
            "no-rollback-quorum",
            "no owner is asked which agreement is the latest: a broker "
            "restored from a backup serves the one in its backup",
        )


def _roles(agreement: Agreement) -> Iterator[Hole]:
    operator, serves = agreement.operator, agreement.about == "serve"
    if operator in (agreement.holders if serves else (agreement.model_owner,)):
        has = "brings" if serves else "gets"
        yield Hole(
            "two-roles",
            f"{operator} runs the machines and {has} the model: no other party can check a run",
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
                f"{key.to_text()} may confirm which TPM is genuine, and belongs to no party",
            )


def _time(agreement: Agreement) -> Iterator[Hole]:
    if agreement.not_after is None:
        yield Hole("no-expiry", "the agreement never expires")


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
        yield Hole(
            "no-expiry",
            f"the key of {resource.name} may be released without an end date",
        )
    if resource.lease is None and (resource.part != "model" or attested):
        yield Hole(
            "no-lease",
            f"the key of {resource.name} is released without a lease: a host that is compromised "
            "later still has it, and neither a revocation nor a departure ends its use",
        )


def _outputs(agreement: Agreement) -> Iterator[Hole]:
    for each in agreement.resources:
        if each.part == "model" and not each.schema.get("clients"):
            line = f"anybody may ask {each.name}, and can copy it by collecting answers"
            yield Hole("open-to-all", line)
    if agreement.about == "group":
        yield Hole("no-output-rule", "the code may share whatever its processes hold")
    if agreement.output is None:
        return
    rule, several = agreement.output, len(agreement.data_owners) > 1
    if rule.min_rows == 1 or rule.min_owner_rows == 1:
        yield Hole(
            "few-rows",
            "a model that was trained on a single row of an owner may be "
            "released: whoever gets it may be able to extract that row",
        )
    if rule.metrics and rule.metric_rows == 1:
        yield Hole(
            "few-rows", "a number that was measured on a single row may be shared"
        )
    if rule.statistics and rule.statistics_rows == 1:
        yield Hole("few-rows", "a total over a single row may be shared")
    if several and rule.min_holders == 1:
        yield Hole("one-owner", "a model of only one owner's rows may be released")
    if rule.recipe_text:
        yield Hole(
            "recipe-text", "the recipe may print rows: its text is shared unchecked"
        )


_SEARCHES: Final[tuple[Callable[[Agreement], Iterator[Hole]], ...]] = (
    _levels, _roots, _references, _owners, _roles, _releases, _outputs, _rollback, _time,
)  # fmt: skip
