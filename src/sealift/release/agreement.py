"""The agreement: one document that every party signs, and that every key obeys.

People write TOML (``release/document.py``); what is signed is the canonical JSON of
``Agreement``. An ``Agreement`` that exists is consistent: every name leads somewhere,
the code's digest is that of its files, ``development`` stands alone (rule H7), and a
resource's sizes fit each other. Consistent is not signed: see ``release/signed.py``.
Source: spec/release.md section Agreement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from sealift.attest.level import Level, parse_accept
from sealift.attest.reference import ReferenceValues
from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.hash import labelled
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest, check_name

PartyRole = Literal["data_owner", "model_owner", "code_owner", "operator"]
Part = Literal["train", "heldout"]
Purpose = Literal["prepare", "train", "heldout"]  # what one visit is for
Mode = Literal["at-rest", "visit", "ratchet"]
Audience = Literal["everyone", "owner"]
BUNDLE_LABEL: Final = "sealift v1 code bundle"
MAX_PARTIES: Final = 64
MAX_DIGITS: Final = 6
MAX_LEASE_S: Final = 7 * 86_400.0


def part_for(purpose: Purpose) -> Part:
    """Which rows a visit reads: sums before training are of training rows."""
    return "heldout" if purpose == "heldout" else "train"


@dataclass(frozen=True, slots=True)
class Party:
    """An organisation: its name, what it brings, and its public keys."""

    name: str
    roles: tuple[PartyRole, ...]
    sign: PublicKey
    hpke: HpkePublicKey

    def __post_init__(self) -> None:
        check_name(self.name, what="party name")
        if len(set(self.roles)) != len(self.roles):
            raise _bad("a role is named twice", "roles")


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """The code that runs: every file by its digest.

    Attributes:
        digest: ``bundle_digest(files)``.
        entry: Path of the recipe inside the bundle.
        files: Digest by path, ``/`` between the parts.
    """

    digest: Digest
    entry: str
    files: dict[str, Digest]

    def __post_init__(self) -> None:
        if self.entry not in self.files:
            raise _bad("the bundle has no such file", "entry")
        if self.digest != bundle_digest(self.files):
            raise _bad("the digest is not that of the files", "digest")


@dataclass(frozen=True, slots=True)
class References:
    """What evidence must show, beside the code bundle.

    Attributes:
        development_attesters: Keys whose development evidence is genuine.
    """

    development_attesters: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A sealed table: who owns it, what it holds, and what binds bytes and key.

    Attributes:
        part: ``train``, or ``heldout`` for evaluation only.
        rows: Number of rows.
        row_bytes: Bytes of one row.
        total_bytes: Plaintext bytes, ``rows * row_bytes``.
        record_bytes: Plaintext bytes of one sealed record.
        schema: The table's schema in its plain form (spec/table.md).
        content: Commitment to the plaintext (rule C5).
        key: Commitment to the data key (rule C9).
    """

    name: str
    owner: str
    part: Part
    rows: int
    row_bytes: int
    total_bytes: int
    record_bytes: int
    schema: dict[str, Any]
    content: Digest
    key: Digest

    def __post_init__(self) -> None:
        check_name(self.name, what="resource name")
        for name in ("rows", "row_bytes", "total_bytes", "record_bytes"):
            _require_within(getattr(self, name), 1, MAX_INTEGER, name)
        if self.total_bytes != self.rows * self.row_bytes:
            raise _bad("is not rows times row_bytes", "total_bytes")

    @property
    def num_records(self) -> int:
        """Records of the sealed file."""
        return -(-self.total_bytes // self.record_bytes)


_COUNTS: Final = (
    "values_per_visit",
    "metric_rows",
    "min_visits",
    "min_holders",
    "min_rows",
    "min_owner_rows",
    "statistics_rows",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """What may leave the accelerator (rule H8); it enforces this itself.

    Attributes:
        metrics: Names of the numbers that may leave.
        digits: Decimal places that they are rounded to.
        values_per_visit: Most values of one metric from one visit: a slice's steps are
            cut into so many windows at most, each of ``metric_rows`` rows at least.
        metric_rows: Fewest rows that a number which leaves is measured on.
        audience: Who sees numbers measured on an owner's rows: ``everyone`` or only
            the ``owner`` of the rows.
        min_visits: Training visits to every holder before a model leaves.
        max_visits: Visits to one holder at most: to train, and as many to measure.
        min_holders: Distinct holders visited before a model leaves.
        min_rows: Distinct rows trained on before a model leaves.
        min_owner_rows: Distinct rows of each owner among them.
        baseline_alone: Whether a model of each owner's rows alone is trained, to
            compare; its numbers follow this rule, the model itself never leaves.
        recipe_text: Whether the recipe's output and exception text leave.
        statistics: Names of the sums of ``prepare`` that may leave, as totals.
        statistics_rows: Fewest rows that such a total is made of.
    """

    metrics: tuple[str, ...]
    digits: int
    values_per_visit: int
    metric_rows: int
    audience: Audience
    min_visits: int
    max_visits: int
    min_holders: int
    min_rows: int
    baseline_alone: bool
    recipe_text: bool
    min_owner_rows: int = 1
    statistics: tuple[str, ...] = ()
    statistics_rows: int = 1

    def __post_init__(self) -> None:
        for name in self.metrics:
            check_name(name.replace("_", "-"), what="metric name")
        _require_distinct(self.metrics, "metrics")
        for name in self.statistics:
            check_name(name.replace("_", "-"), what="statistic's name")
        _require_distinct(self.statistics, "statistics")
        _require_within(self.digits, 0, MAX_DIGITS, "digits")
        for name in _COUNTS:
            _require_within(getattr(self, name), 1, MAX_INTEGER, name)
        _require_within(self.max_visits, self.min_visits, MAX_INTEGER, "max_visits")


@dataclass(frozen=True, slots=True)
class TravelRule:
    """How the accelerator may visit; a job may ask for less, never for more.

    Attributes:
        buffers: 1: one owner's rows are gone before the next owner is met. 2: the next
            owner's rows load while these are trained on (rule H2).
        lease_s: Longest lease, in seconds.
        mixed: Whether batches may be drawn across several owners' rows.
        modes: How records may cross: ``at-rest`` as sealed at home, ``visit`` sealed
            again for the visit, ``ratchet`` under the vendor's forward ratchet, which
            past holders can follow: for rehearsal only (rule M8).
    """

    buffers: Literal[1, 2]
    lease_s: float
    mixed: bool = False
    modes: tuple[Mode, ...] = ("at-rest",)

    def __post_init__(self) -> None:
        if not 0 < self.lease_s <= MAX_LEASE_S:
            raise _bad(f"is not above 0 and up to {MAX_LEASE_S:.0f}", "lease_s")
        _require_distinct(self.modes, "travel.modes")
        if not self.modes:
            raise _bad("at least one is needed", "travel.modes")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The whole document.

    Attributes:
        name: Names the line of agreements; the same in every successor.
        number: 1 for the first of its line, one more for each successor.
        predecessor: Digest of the agreement before, or None for the first.
        accept: Accepted levels, in order of preference.
        model_owner: The party that gets the model.
        operator: The party whose key signs leases; trusted for progress only.
    """

    format: Literal["sealift-agreement"] = "sealift-agreement"
    version: Literal[1] = 1
    name: str
    number: int
    predecessor: Digest | None
    parties: tuple[Party, ...]
    code: CodeBundle
    accept: tuple[Level, ...]
    references: References
    resources: tuple[Resource, ...]
    model_owner: str
    operator: str
    output: OutputRule
    travel: TravelRule

    def __post_init__(self) -> None:
        check_name(self.name, what="agreement name")
        parse_accept(self.accept)
        if (
            Level.DEVELOPMENT in self.accept
            and not self.references.development_attesters
        ):
            raise _bad(
                "development evidence needs an attester's key",
                "references.development_attesters",
            )
        self._check_line()
        self._check_parties()
        self._check_resources()
        self._check_output()
        if "ratchet" in self.travel.modes and self.accept != (Level.DEVELOPMENT,):
            raise _bad("ratchet protects nobody: development only", "travel.modes")

    @cached_property
    def digest(self) -> Digest:
        """SHA-256 of the canonical JSON: what signatures and sessions name."""
        return Digest.of(encode(self))

    def party(self, name: str) -> Party:
        """The party of that name.

        Raises:
            PolicyError: if there is none.
        """
        found = next((party for party in self.parties if party.name == name), None)
        if found is None:
            raise PolicyError(
                f"{name} is no party of the agreement", code="not-a-party"
            )
        return found

    def resource(self, name: str) -> Resource:
        """The resource of that name.

        Raises:
            PolicyError: if there is none.
        """
        found = next((entry for entry in self.resources if entry.name == name), None)
        if found is None:
            raise PolicyError(
                "the agreement has no such resource", why=name[:80], code="no-resource"
            )
        return found

    def resources_of(self, owner: str) -> tuple[Resource, ...]:
        """What one party brings."""
        return tuple(entry for entry in self.resources if entry.owner == owner)

    @property
    def data_owners(self) -> tuple[str, ...]:
        """Names of the parties that bring training rows, in the order of parties."""
        owners = {entry.owner for entry in self.resources if entry.part == "train"}
        return tuple(party.name for party in self.parties if party.name in owners)

    @property
    def holders(self) -> tuple[str, ...]:
        """Names of the parties that bring rows, to train or to measure on."""
        return tuple(dict.fromkeys(entry.owner for entry in self.resources))

    def reference_values(self) -> ReferenceValues:
        """What appraisal compares evidence with."""
        return ReferenceValues(
            development_attesters=self.references.development_attesters,
            code_bundle=self.code.digest,
        )

    def _check_line(self) -> None:
        _require_within(self.number, 1, MAX_INTEGER, "number")
        if (self.number == 1) is not (self.predecessor is None):
            raise _bad(
                "the first agreement has none, every other one has", "predecessor"
            )

    def _check_parties(self) -> None:
        _require_within(len(self.parties), 1, MAX_PARTIES, "parties")
        _require_distinct((party.name for party in self.parties), "parties.name")
        _require_distinct(
            (party.sign.to_text() for party in self.parties), "parties.sign"
        )
        self._require_role(self.model_owner, "model_owner", "model_owner")
        self._require_role(self.operator, "operator", "operator")

    def _check_resources(self) -> None:
        _require_distinct((entry.name for entry in self.resources), "resources.name")
        for index, entry in enumerate(self.resources):
            self._require_role(entry.owner, "data_owner", f"resources[{index}].owner")
        if not self.data_owners:
            raise _bad("there is nothing to train on", "resources")
        for index, party in enumerate(self.parties):
            if "data_owner" in party.roles and not self.resources_of(party.name):
                raise _bad("a data owner without resource", f"parties[{index}].roles")

    def _check_output(self) -> None:
        owners = len(self.data_owners)
        if self.output.min_holders > owners:
            raise _bad(f"there are only {owners}", "output.min_holders")
        rows = sum(entry.rows for entry in self.resources if entry.part == "train")
        if self.output.min_rows > rows:
            raise _bad("can never be reached", "output.min_rows")
        fewest = min(self._train_rows(owner) for owner in self.data_owners)
        if self.output.min_owner_rows > fewest:
            raise _bad("can never be reached", "output.min_owner_rows")

    def _train_rows(self, owner: str) -> int:
        own = self.resources_of(owner)
        return sum(entry.rows for entry in own if entry.part == "train")

    def _require_role(self, name: str, role: PartyRole, field: str) -> None:
        party = next((party for party in self.parties if party.name == name), None)
        if party is None:
            raise _bad(f"{name[:80]!r} is not among the parties", field)
        if role not in party.roles:
            raise _bad(f"{name} has not the role {role}", field)


def bundle_digest(files: dict[str, Digest]) -> Digest:
    """One digest for a set of files: their paths and digests, in canonical form."""
    return Digest(labelled(BUNDLE_LABEL, encode(files)))


def _require_distinct(names: Iterable[str], field: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise _bad("named twice", field)


def _require_within(value: int, low: int, high: int, field: str) -> None:
    if not low <= value <= high:
        raise _bad(f"{value} is not within {low} .. {high}", field)


def _bad(why: str, field: str) -> MalformedError:
    return MalformedError(
        "the agreement is not consistent",
        why=why,
        fix="Correct the field and check again",
        field=field,
        code="bad-agreement",
    )
