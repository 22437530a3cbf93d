"""Terms of an agreement: who takes part, who may change it, and what evidence must show.

How every part refuses what contradicts itself, and what is out of time, stands first.
Source: spec/release.md section Amendments (rules H6 and H7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final, Literal

from sealift.attest.reference import (
    COLLATERAL_MAX_AGE_S,
    LowestTier,
    NvidiaReferences,
    ReferenceValues,
    SetName,
    SnpReferences,
    TdxReferences,
    TpmReferences,
)
from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.hash import labelled
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest, check_name

# Sentences about the agreement say these of parties, so no party is called so.
NO_NAMES: Final = ("you", "nobody", "everybody", "anybody", "everyone", "anyone")
LAST_S: Final = 253_402_300_799  # 9999-12-31T23:59:59Z, the last that RFC 3339 can say


def require_distinct(names: Iterable[str], field: str) -> None:
    """Refuse a name that stands twice."""
    if any(count > 1 for count in Counter(names).values()):
        raise inconsistent("is named twice", field)


def require_within(value: float, low: float, high: float, field: str) -> None:
    """Refuse a number outside ``low`` .. ``high``."""
    if not low <= value <= high:
        raise inconsistent(f"is {value}, outside the range {low} .. {high}", field)


def require_positive(value: float, most: float, field: str) -> None:
    """Refuse a number of seconds that is not above 0 and up to ``most``."""
    if not 0 < value <= most:
        raise inconsistent(f"must be above 0 s and at most {most:g} s", field)


def require_window(not_before: int | None, not_after: int | None) -> None:
    """Refuse a time that never comes; both are seconds since 1970."""
    for name, at_s in (("not_before", not_before), ("not_after", not_after)):
        if at_s is not None:
            require_within(at_s, 0, LAST_S, name)
    if not_before is not None and not_after is not None and not_after <= not_before:
        raise inconsistent("is not after not_before", "not_after")


def require_now(
    what: str,
    at_s: float,
    not_before: int | None,
    not_after: int | None,
    *,
    code: tuple[str, str],
) -> None:
    """Refuse a use before, or after, the time that was agreed on; a code for each.

    Raises:
        PolicyError: with that code.
    """
    if not_before is not None and at_s < not_before:
        raise PolicyError(
            f"{what} is not valid yet",
            why=f"it becomes valid in {not_before - at_s:,.0f} s",
            code=code[0],
        )
    if not_after is not None and at_s > not_after:
        raise PolicyError(
            f"{what} is not valid any more",
            why=f"it expired {at_s - not_after:,.0f} s ago",
            code=code[1],
        )


def inconsistent(why: str, field: str) -> MalformedError:
    """The error for a document that contradicts itself; ``why`` says what ``field`` does."""
    return MalformedError(
        "the agreement is not consistent",
        why=f"{field} {why}",
        field=field,
        code="bad-agreement",
    )


def servers_not_apart(why: str) -> PolicyError:
    """The error for servers that could combine two shares of a secret (rule H10)."""
    return PolicyError(
        "the job's share servers are not independent", why=why, code="servers-not-apart"
    )


def code_refused(owner: str) -> PolicyError:
    """The error for a recipe that is a program, where an owner's rule allows graphs alone."""
    return PolicyError(
        f"the recipe is a program, and {owner} allows only graphs",
        why='its rule says recipe = "graph"',
        code="code-recipe",
    )


PartyRole = Literal[
    "data_owner", "model_owner", "code_owner", "operator", "share_server"
]


@dataclass(frozen=True, slots=True)
class Party:
    """An organisation: its name, what it brings, and its public keys."""

    name: str
    roles: tuple[PartyRole, ...]
    sign: PublicKey
    hpke: HpkePublicKey

    def __post_init__(self) -> None:
        check_name(self.name, what="party name")
        if self.name in NO_NAMES:
            raise inconsistent(f"is {self.name}, a reserved word", "name")
        if len(set(self.roles)) != len(self.roles):
            raise inconsistent("names a role twice", "roles")


@dataclass(frozen=True, slots=True)
class ServersRule:
    """Whose servers compute with shares: three parties, each with one share.

    Attributes:
        P: Name of the party that gets the sum of data and mask.
        M: Of the one that gets the difference.
        Z: Of the one that gets the mask's seed.
    """

    P: str
    M: str
    Z: str

    def __post_init__(self) -> None:
        if len(set(self.parties.values())) != len(self.parties):
            raise servers_not_apart("one party has two of the shares P, M and Z")

    @property
    def parties(self) -> dict[Literal["P", "M", "Z"], str]:
        """The party of each share."""
        return {"P": self.P, "M": self.M, "Z": self.Z}

    @property
    def promise(self) -> str:
        """What it means, in words."""
        names = ", ".join(f"{share} ({n})" for share, n in self.parties.items())
        return (
            f"the servers {names} may compute products: each sees sizes and uniformly random "
            "numbers, any two together can read rows and weights; wrong answers are detected"
        )


@dataclass(frozen=True, slots=True)
class RollbackRule:
    """How many owners must show what they saw before an agreement counts as the last.

    Attributes:
        quorum: q, of the n owners of data.
        faulty: f, how many of them may lie; ``2 q > n + f`` (rule H6).
    """

    quorum: int
    faulty: int

    def __post_init__(self) -> None:
        require_within(self.quorum, 1, 64, "quorum")
        require_within(self.faulty, 0, 63, "faulty")

    def check_for(self, owners: int, field: str) -> None:
        """Refuse a quorum that two disjoint sets of owners could form, or nobody."""
        require_within(self.quorum, 1, owners, field)
        if 2 * self.quorum <= owners + self.faulty:
            raise inconsistent(
                f"is too small: 2 * {self.quorum} is not above {owners} owners + {self.faulty} faulty",
                field,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Who may bring a successor into force, for what no single owner brought.

    Attributes:
        members: Names of parties.
        threshold: Signatures of members that a successor needs; more than half, so
            that no two successors can both have them.
        veto: Members without whose signature there is no successor.
        rollback: Asks the owners which agreement is the last; None asks nobody.
    """

    members: tuple[str, ...]
    threshold: int
    veto: tuple[str, ...] = ()
    rollback: RollbackRule | None = None

    def __post_init__(self) -> None:
        require_distinct(self.members, "members")
        require_distinct(self.veto, "veto")
        require_within(self.threshold, 1, len(self.members), "threshold")
        faulty = self.rollback.faulty if self.rollback else 0
        if 2 * self.threshold <= len(self.members) + faulty:
            raise inconsistent(
                "is too small: two disjoint sets of members could each sign a successor",
                "threshold",
            )
        for name in self.veto:
            if name not in self.members:
                raise inconsistent(
                    f"names {name[:80]!r}, which is not a member of the board", "veto"
                )


BUNDLE_LABEL: Final = "sealift v1 code bundle"
RecipeKind = Literal["graph", "code"]
GRAPH_ENTRY: Final = "graph.json"
GRAPH_WEIGHTS: Final = "assets/weights.safetensors"
GRAPH_FILES: Final = frozenset({GRAPH_ENTRY, GRAPH_WEIGHTS})


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """The code that runs: every file by its digest.

    Attributes:
        digest: ``bundle_digest(files)``.
        entry: Path of the recipe inside the bundle; ``graph.json`` is a graph, whose
            bundle has no other file than that and its weights.
        files: Digest by path, ``/`` between the parts.
    """

    digest: Digest
    entry: str
    files: dict[str, Digest]

    def __post_init__(self) -> None:
        for name in self.files:
            # Else two different documents could look equal.
            if not name or not name.isascii() or not name.isprintable():
                raise inconsistent(
                    f"names {ascii(name)[:80]}, which is not printable ASCII", "files"
                )
        if self.entry not in self.files:
            raise inconsistent("is not a file of the code bundle", "entry")
        if self.digest != bundle_digest(self.files):
            raise inconsistent("is not the digest of the files", "digest")
        if self.kind == "graph" and self.files.keys() != GRAPH_FILES:
            other = sorted(self.files.keys() ^ GRAPH_FILES)[0]
            raise MalformedError(
                "the recipe is called a graph, and its files are not those of a graph",
                why=f"{other[:200]} is "
                + ("missing" if other in GRAPH_FILES else "no part of a graph"),
                code="graph-files",
            )

    @property
    def kind(self) -> RecipeKind:
        """``graph`` where no program is in the bundle; it follows from the signed entry."""
        return "graph" if self.entry == GRAPH_ENTRY else "code"


def bundle_digest(files: dict[str, Digest]) -> Digest:
    """One digest for a set of files: their paths and digests, in canonical form."""
    return Digest(labelled(BUNDLE_LABEL, encode(files)))


@dataclass(frozen=True, slots=True)
class References:
    """What evidence must show, beside the code bundle.

    Attributes:
        development_attesters: Keys whose development evidence is genuine.
        enrollers: Keys whose word ties an attestation key to its TPM.
        tpm: For TPM evidence.
        tdx: For TD quotes.
        snp: For SEV-SNP reports.
        nvidia: For GPUs and switches.
        collateral_max_age_s: How old collateral may be (rule H13).
        lowest_tier: The worst tier of evidence that is taken.
        sets: Signed files of more values; their signers decide what counts.
    """

    development_attesters: tuple[PublicKey, ...] = ()
    enrollers: tuple[PublicKey, ...] = ()
    tpm: TpmReferences | None = None
    tdx: TdxReferences | None = None
    snp: SnpReferences | None = None
    nvidia: NvidiaReferences | None = None
    collateral_max_age_s: int = COLLATERAL_MAX_AGE_S
    lowest_tier: LowestTier = "affirming"
    sets: tuple[SetName, ...] = ()

    def __post_init__(self) -> None:
        require_within(
            self.collateral_max_age_s, 1, MAX_INTEGER, "collateral_max_age_s"
        )
        require_distinct((each.name for each in self.sets), "sets")
        for each in self.sets:
            check_name(each.name, what="name of a reference set")
            require_within(each.number, 1, MAX_INTEGER, "sets.number")

    def values(self, code: CodeBundle) -> ReferenceValues:
        """What stands in the document itself, as appraisal wants it."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        del own["sets"]
        return ReferenceValues(code_bundle=code.digest, code_files=code.files, **own)
