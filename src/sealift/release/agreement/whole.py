"""The agreement as a whole: one document that every party signs, and every key obeys.

People write TOML (``release/document.py``); what is signed is the canonical JSON of
``Agreement``. An ``Agreement`` that exists is consistent: every name leads somewhere,
the code's digest is that of its files, ``development`` stands alone (rule H7), and a
resource's sizes fit each other. Consistent is not signed: see ``release/signed.py``.
Source: spec/release.md section Agreement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from sealift.attest.level import Level, parse_accept
from sealift.attest.reference import ReferenceValues
from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError
from sealift.ids import Digest, check_name
from sealift.release.agreement.code import CodeBundle
from sealift.release.agreement.consistency import (
    inconsistent,
    require_distinct,
    require_window,
    require_within,
)
from sealift.release.agreement.parties import (
    Board,
    Party,
    PartyRole,
)
from sealift.release.agreement.references import References
from sealift.release.agreement.resources import Resource, too_early, too_late
from sealift.release.agreement.rules import NO_OUTPUT, OutputRule, TravelRule

MAX_PARTIES: Final = 64


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
        board: Who may bring a successor into force; None asks for everybody.
        not_before: Seconds since 1970 from which it holds, or None.
        not_after: Seconds since 1970 until which keys are released, or None.
        rehearse: Of ``development``: the level whose evidence is rehearsed (rule H11).
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
    board: Board | None = None
    not_before: int | None = None
    not_after: int | None = None
    rehearse: Level | None = None

    def __post_init__(self) -> None:
        check_name(self.name, what="agreement name")
        parse_accept(self.accept)
        require_window(self.not_before, self.not_after)
        self._check_line()
        self._check_parties()
        self._check_levels()
        self._check_resources()
        self._check_output()
        self._check_board()

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

    def require_own_key(self, name: str, key: PublicKey) -> Party:
        """The party of that name, if this is its key.

        Raises:
            PolicyError: ``not-a-party`` or ``other-key``.
        """
        party = self.party(name)
        if party.sign != key:
            raise PolicyError(
                f"the agreement names another key for {name}",
                fix="Put your current card into the agreement, or sign with the other "
                "key",
                code="other-key",
            )
        return party

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
    def serves(self) -> bool:
        """Whether it is about serving models; else it is about training one."""
        return any(entry.part == "model" for entry in self.resources)

    @property
    def holders(self) -> tuple[str, ...]:
        """Names of the parties that bring rows, or models to serve."""
        return tuple(dict.fromkeys(entry.owner for entry in self.resources))

    def reference_values(self) -> ReferenceValues:
        """What appraisal compares evidence with."""
        return self.references.values(self.code)

    @property
    def effective_board(self) -> Board:
        """Who decides about successors: without a board, everybody, each with a veto."""
        if self.board is not None:
            return self.board
        names = tuple(party.name for party in self.parties)
        return Board(members=names, threshold=len(names), veto=names)

    @property
    def model_to(self) -> tuple[str, ...]:
        """Parties that get the model."""
        return self.output.model_to or (self.model_owner,)

    def require_time(self, at_s: float) -> None:
        """Refuse to work before or after the time that was agreed on.

        Args:
            at_s: Seconds since 1970, by the clock of the side that decides.

        Raises:
            PolicyError: ``agreement-not-yet`` or ``agreement-expired``.
        """
        if self.not_before is not None and at_s < self.not_before:
            wait_s = self.not_before - at_s
            raise too_early("the agreement", wait_s, code="agreement-not-yet")
        if self.not_after is not None and at_s > self.not_after:
            late_s = at_s - self.not_after
            raise too_late("the agreement", late_s, code="agreement-expired")

    def _check_levels(self) -> None:
        rehearsal = self.accept == (Level.DEVELOPMENT,)
        if rehearsal and self.rehearse is None:
            self._require_attester()
        if self.rehearse is not None and not rehearsal:
            raise inconsistent('only accept = ["development"] rehearses', "rehearse")
        if self.rehearse is Level.DEVELOPMENT:
            raise inconsistent("development rehearses another level", "rehearse")

    def _require_attester(self) -> None:
        if not self.references.development_attesters:
            raise inconsistent(
                "development evidence needs an attester's key",
                "references.development_attesters",
            )

    def _check_line(self) -> None:
        require_within(self.number, 1, MAX_INTEGER, "number")
        if (self.number == 1) is not (self.predecessor is None):
            raise inconsistent(
                "the first agreement has none, every other one has", "predecessor"
            )

    def _check_parties(self) -> None:
        require_within(len(self.parties), 1, MAX_PARTIES, "parties")
        require_distinct((party.name for party in self.parties), "parties.name")
        require_distinct(
            (party.sign.to_text() for party in self.parties), "parties.sign"
        )
        self._require_role(self.model_owner, "model_owner", "model_owner")
        self._require_role(self.operator, "operator", "operator")

    def _check_resources(self) -> None:
        require_distinct((entry.name for entry in self.resources), "resources.name")
        for index, entry in enumerate(self.resources):
            role: PartyRole = "model_owner" if entry.part == "model" else "data_owner"
            self._require_role(entry.owner, role, f"resources[{index}].owner")
            self._check_rule(entry, f"resources[{index}].rule")
            if entry.cell_rows < self.output.metric_rows:
                raise inconsistent(
                    f"a cell of {entry.name} has {entry.cell_rows} rows, and "
                    f"output.metric_rows is {self.output.metric_rows}: seal it anew "
                    "with `data seal --cell-rows`, or lower metric_rows",
                    f"resources[{index}].cell_rows",
                )
            if (entry.part == "model") is not self.serves:
                raise inconsistent(
                    "an agreement is about tables or about models", "resources"
                )
        if not self.data_owners and not self.serves:
            raise inconsistent("there is nothing to train on", "resources")
        for index, party in enumerate(self.parties):
            if "data_owner" in party.roles and not self.resources_of(party.name):
                raise inconsistent(
                    "a data owner without resource", f"parties[{index}].roles"
                )

    def _check_rule(self, entry: Resource, field: str) -> None:
        for level in entry.rule.accept:
            if level not in self.accept:
                raise inconsistent(f"the agreement has no {level}", f"{field}.accept")

    def _check_board(self) -> None:
        if self.board is None:
            return
        self._require_parties(self.board.members, "board.members")
        if self.board.rollback is not None:
            self.board.rollback.check_for(len(self.holders), "board.rollback.quorum")

    def _check_output(self) -> None:
        self._require_parties(self.output.model_to, "output.model_to")
        self._require_parties(self.output.approved_by, "output.approved_by")
        if self.serves:
            if self.output != NO_OUTPUT:
                raise inconsistent("the form of a model says what leaves", "output")
            return
        owners = len(self.data_owners)
        if self.output.min_holders > owners:
            raise inconsistent(f"there are only {owners}", "output.min_holders")
        rows = sum(entry.rows for entry in self.resources if entry.part == "train")
        if self.output.min_rows > rows:
            raise inconsistent("can never be reached", "output.min_rows")
        fewest = min(self._train_rows(owner) for owner in self.data_owners)
        if self.output.min_owner_rows > fewest:
            raise inconsistent("can never be reached", "output.min_owner_rows")

    def _train_rows(self, owner: str) -> int:
        own = self.resources_of(owner)
        return sum(entry.rows for entry in own if entry.part == "train")

    def _require_role(self, name: str, role: PartyRole, field: str) -> None:
        party = next((party for party in self.parties if party.name == name), None)
        if party is None:
            raise inconsistent(f"{name[:80]!r} is not among the parties", field)
        if role not in party.roles:
            raise inconsistent(f"{name} has not the role {role}", field)

    def _require_parties(self, names: Iterable[str], field: str) -> None:
        known = {party.name for party in self.parties}
        for name in names:
            if name not in known:
                raise inconsistent(f"{name[:80]!r} is not among the parties", field)
