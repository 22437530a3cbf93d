"""The agreement as a whole: one document that every party signs.

People write TOML (``release/agreement/document.py``); what is signed is the canonical JSON of
``Agreement``. Every ``Agreement`` object is consistent: it has exactly the fields that its
kind needs, every name refers to something in it, the code's digest is that of its files,
``development`` is its only level (rule H7), and a resource's sizes fit each other. It may
still lack signatures: see ``release/agreement/signed.py``.
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
from sealift.errors import MalformedError, PolicyError, require_value
from sealift.ids import Digest, check_name
from sealift.release.agreement.privacy import PrivacyBudget
from sealift.release.agreement.resources import (
    GroupRule,
    OutputRule,
    Part,
    Resource,
    TravelRule,
)
from sealift.release.agreement.sums import FEWEST_RANKS
from sealift.release.agreement.terms import (
    Board,
    CodeBundle,
    Party,
    PartyRole,
    References,
    ServersRule,
    code_refused,
    inconsistent,
    require_distinct,
    require_now,
    require_window,
    require_within,
    servers_not_apart,
)
from sealift.release.agreement.training import TrainingPlan, TrainingRule

MAX_PARTIES: Final = 64
VERSION: Final = 3
About = Literal["train", "serve", "group"]
# What each is called, and the parts that its resources may be of.
_SUBJECTS: Final[dict[About, tuple[str, tuple[Part, ...]]]] = {
    "train": ("training", ("train", "heldout")),
    "serve": ("serving", ("model",)),
    "group": ("a group", ()),
}


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The whole document.

    Attributes:
        name: Names the line of agreements; the same in every successor.
        number: 1 for the first of its line, one more for each successor.
        predecessor: Digest of the agreement before, or None for the first.
        about: What it allows: to train a model, to serve models, or a group of
            processes to compute together on what no party names here.
        accept: Accepted levels, in order of preference.
        resources: Tables to train on, or models to serve; none of a group.
        model_owner: Of training: the party that gets the model; else None.
        operator: The party whose key signs leases; trusted for progress only.
        output: Of training: what may leave the accelerator; else None.
        travel: Of training: how the accelerator may visit; else None.
        training: Of training: what a job may set; else None.
        group: Of training by several accelerators; None for one.
        servers: Whose servers compute with shares, or None: the plan ``outsource``.
        board: Who may bring a successor into force; None asks for everybody.
        not_before: Seconds since 1970 from which it holds, or None.
        not_after: Seconds since 1970 until which keys are released, or None.
        rehearse: Of ``development``: the level whose evidence is rehearsed (rule H11).
        compared: Of a meeting: the parties that compared its words with another one, as
            they say; None where parties brought this document together otherwise.
    """

    format: Literal["sealift-agreement"] = "sealift-agreement"
    version: Literal[3] = VERSION
    about: About
    name: str
    number: int
    predecessor: Digest | None
    parties: tuple[Party, ...]
    code: CodeBundle
    accept: tuple[Level, ...]
    references: References
    operator: str
    resources: tuple[Resource, ...] = ()
    model_owner: str | None = None
    output: OutputRule | None = None
    travel: TravelRule | None = None
    training: TrainingRule | None = None
    group: GroupRule | None = None
    servers: ServersRule | None = None
    board: Board | None = None
    not_before: int | None = None
    not_after: int | None = None
    rehearse: Level | None = None
    compared: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, what="agreement name")
        parse_accept(self.accept)
        require_window(self.not_before, self.not_after)
        self._check_line()
        self._check_parties()
        self._check_levels()
        self._check_subject()
        self._check_resources()
        self._check_servers()
        if self.output is not None and self.training is not None:
            self._check_output(self.output)
            self._check_training(self.training, self.output.metric_rows)
        self._check_board()
        self._check_budgets()

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
                f"{name} is not a party of the agreement", code="not-a-party"
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
                fix="Put your present card into the agreement, or sign with the key that it names",
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
                "the agreement has no resource of that name",
                why=name[:80],
                code="no-resource",
            )
        return found

    def resources_of(self, owner: str) -> tuple[Resource, ...]:
        """What one party brings."""
        return tuple(entry for entry in self.resources if entry.owner == owner)

    def budgets_of(self, owner: str) -> tuple[tuple[Resource, PrivacyBudget], ...]:
        """One party's tables to train on that have a privacy budget, each with it."""
        own = self.resources_of(owner)
        return tuple(
            (each, each.rule.privacy)
            for each in own
            if each.rule.privacy is not None and each.part == "train"
        )

    @property
    def data_owners(self) -> tuple[str, ...]:
        """Names of the parties that bring training rows, in the order of parties."""
        owners = {entry.owner for entry in self.resources if entry.part == "train"}
        return tuple(party.name for party in self.parties if party.name in owners)

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
        """Parties that get the model that is trained; else nobody."""
        if self.output is None or self.model_owner is None:
            return ()
        return self.output.model_to or (self.model_owner,)

    @property
    def output_rule(self) -> OutputRule:
        """What may leave; raises PolicyError ``other-purpose`` unless it trains."""
        self.require_about("train")
        return require_value(self.output)

    @property
    def travel_rule(self) -> TravelRule:
        """How to visit; raises PolicyError ``other-purpose`` unless it trains."""
        self.require_about("train")
        return require_value(self.travel)

    @property
    def training_rule(self) -> TrainingRule:
        """What a job may set; raises PolicyError ``other-purpose`` unless it trains."""
        self.require_about("train")
        if self.training is None:
            raise inconsistent('needs about = "train"', "training")
        return self.training

    @property
    def ranks(self) -> int:
        """How many accelerators hold keys at one time."""
        return self.group.ranks if self.group else 1

    @property
    def rows_at_home(self) -> bool:
        """Whether an owner's rows are for the accelerator of that owner alone."""
        return self.group is not None and self.group.rows == "owner"

    def require_about(self, about: About, why: str = "") -> None:
        """Refuse work of another kind than what was agreed on.

        Raises:
            PolicyError: ``other-purpose``.
        """
        if self.about != about:
            raise PolicyError(
                f"the agreement is for {_SUBJECTS[self.about][0]}",
                why=why or f"the job is for {_SUBJECTS[about][0]}",
                code="other-purpose",
            )

    def require_time(self, at_s: float) -> None:
        """Refuse to work before or after the time that was agreed on.

        Args:
            at_s: Seconds since 1970, by the clock of the side that decides.

        Raises:
            PolicyError: ``agreement-not-yet`` or ``agreement-expired``.
        """
        require_now(
            "the agreement", at_s, self.not_before, self.not_after,
            code=("agreement-not-yet", "agreement-expired"),
        )  # fmt: skip

    def _check_levels(self) -> None:
        rehearsal = self.accept == (Level.DEVELOPMENT,)
        attesters = self.references.development_attesters
        if rehearsal and self.rehearse is None and not attesters:
            raise inconsistent(
                "is empty, and development evidence needs a key",
                "references.development_attesters",
            )
        if self.rehearse is not None and not rehearsal:
            raise inconsistent('needs accept = ["development"]', "rehearse")
        if self.rehearse is Level.DEVELOPMENT:
            raise inconsistent("must be another level than development", "rehearse")

    def _check_line(self) -> None:
        require_within(self.number, 1, MAX_INTEGER, "number")
        if (self.number == 1) is not (self.predecessor is None):
            raise inconsistent(
                "must be in every agreement but the first", "predecessor"
            )

    def _check_parties(self) -> None:
        require_within(len(self.parties), 1, MAX_PARTIES, "parties")
        require_distinct((party.name for party in self.parties), "parties.name")
        require_distinct(
            (party.sign.to_text() for party in self.parties), "parties.sign"
        )
        require_distinct(self.compared or (), "compared")
        if not {*(self.compared or ())} <= {party.name for party in self.parties}:
            raise inconsistent("does not name a party of the agreement", "compared")
        if self.model_owner is not None:
            self._require_role(self.model_owner, "model_owner", "model_owner")
        self._require_role(self.operator, "operator", "operator")

    def _check_subject(self) -> None:
        for name in ("model_owner", "output", "travel", "training"):
            if (getattr(self, name) is None) is (self.about == "train"):
                raise inconsistent(
                    'is for about = "train", and is required there', name
                )
        for index, entry in enumerate(self.resources):
            if entry.part not in _SUBJECTS[self.about][1]:
                raise inconsistent(
                    f'is {entry.part}, which about = "{self.about}" does not allow',
                    f"resources[{index}].part",
                )
        if self.group is not None and self.about != "train":
            raise inconsistent('is allowed only with about = "train"', "group")
        if self.rows_at_home and self.ranks != len(self.data_owners):
            raise inconsistent("must be the number of data owners", "group.ranks")
        if self.about == "train" and not self.data_owners:
            raise inconsistent("has no rows to train on", "resources")
        if self.about == "serve" and not self.resources:
            raise inconsistent("has no model to serve", "resources")

    def _check_resources(self) -> None:
        require_distinct((entry.name for entry in self.resources), "resources.name")
        for index, entry in enumerate(self.resources):
            role: PartyRole = "model_owner" if entry.part == "model" else "data_owner"
            self._require_role(entry.owner, role, f"resources[{index}].owner")
            for level in entry.rule.accept:
                if level not in self.accept:
                    field = f"resources[{index}].rule.accept"
                    raise inconsistent(
                        f"names {level}, which the agreement does not accept", field
                    )
            if entry.rule.recipe == "graph" and self.code.kind == "code":
                raise code_refused(entry.owner)
        for index, party in enumerate(self.parties):
            if "data_owner" in party.roles and not self.resources_of(party.name):
                raise inconsistent(
                    "name a data owner without a resource", f"parties[{index}].roles"
                )

    def _check_servers(self) -> None:
        parties = self.servers.parties if self.servers else {}
        if parties and self.about == "serve":
            raise inconsistent('is not allowed with about = "serve"', "servers")
        self._check_servers_level()
        for share, name in parties.items():
            self._require_role(name, "share_server", f"servers.{share}")
            if name in (*self.holders, self.model_owner, self.operator):
                raise servers_not_apart(
                    f"{name} has a share, and also owns data or the model, or operates the job"
                )
        for index, party in enumerate(self.parties):
            if "share_server" in party.roles and party.name not in parties.values():
                raise inconsistent(
                    "name a share server without a share", f"parties[{index}].roles"
                )

    def _check_servers_level(self) -> None:
        """Require untrusted-gpu with servers, because a TEE alone does not protect there (rule H10)."""
        outsourced = Level.UNTRUSTED_GPU in self.accept
        if outsourced and (self.servers is None or len(self.accept) > 1):
            raise inconsistent(
                "may name untrusted-gpu only alone, with [servers]", "accept"
            )
        if self.servers and not outsourced and Level.DEVELOPMENT not in self.accept:
            raise inconsistent(
                'must be ["untrusted-gpu"] or ["development"] with [servers]', "accept"
            )

    def _check_board(self) -> None:
        if self.board is None:
            return
        self._require_parties(self.board.members, "board.members")
        if self.board.rollback is not None:
            self.board.rollback.check_for(len(self.holders), "board.rollback.quorum")

    def _check_output(self, output: OutputRule) -> None:
        self._require_parties(output.model_to, "output.model_to")
        self._require_parties(output.approved_by, "output.approved_by")
        for index, entry in enumerate(self.resources):
            if entry.cell_rows < output.metric_rows:
                raise inconsistent(
                    f"is {entry.cell_rows} for {entry.name}, and output.metric_rows is {output.metric_rows}: "
                    "seal it again with `data seal --cell-rows`, or lower metric_rows",
                    f"resources[{index}].cell_rows",
                )
        rows = dict.fromkeys(self.data_owners, 0)
        for entry in self.resources:
            if entry.part == "train":
                rows[entry.owner] += entry.rows
        if output.min_holders > len(rows):
            raise inconsistent(
                f"is too large: there are only {len(rows)}", "output.min_holders"
            )
        if output.min_rows > sum(rows.values()):
            raise inconsistent("can never be reached", "output.min_rows")
        if output.min_owner_rows > min(rows.values()):
            raise inconsistent("can never be reached", "output.min_owner_rows")

    def _check_training(self, training: TrainingRule, metric_rows: int) -> None:
        """Require the parts of each plan, and that no rank shares results over too few rows."""
        if "outsource" in training.plans and self.code.kind == "graph":
            raise inconsistent(
                "names outsource, which replaces modules of a program, and the recipe is "
                "a graph, which has none",
                "training.plans",
            )
        for plan, part in (("ddp", "group"), ("outsource", "servers")):
            if plan in training.plans and getattr(self, part) is None:
                raise inconsistent(
                    f"names {plan}, which needs [{part}]", "training.plans"
                )
        if "only" in training.sums and self.ranks < FEWEST_RANKS:
            raise inconsistent(
                f'has "only", and the group has {self.ranks} ranks: with two, each has the '
                "other's part by subtraction; three or more are needed",
                "training.sums",
            )
        training.require_shown_rows(metric_rows)
        fewest = training.fewest_table_rows(metric_rows)
        for index, entry in enumerate(self.resources):
            few = entry.part == "train" and entry.rows < fewest
            if few and "ddp" in training.plans:
                raise inconsistent(
                    f"is {entry.rows}, fewer than {fewest}: a rank would send the others results "
                    f"over fewer rows than output.metric_rows ({metric_rows})",
                    f"resources[{index}].rows",
                )

    def _check_budgets(self) -> None:
        """Refuse what could spend of a privacy budget, and is not counted."""
        tables = [each for each in self.resources if each.rule.privacy is not None]
        if tables:
            self.require_counted(tables[0].name)

    def require_counted(self, table: str) -> None:
        """Refuse this agreement for a table with a privacy budget, unless all that it spends counts.

        Raises:
            MalformedError: ``privacy-refused``.
        """
        if why := self._uncounted():
            raise MalformedError(
                f"the owner's privacy budget for {table} does not allow this agreement",
                why=why,
                code="privacy-refused",
            )

    def _uncounted(self) -> str:
        """What leaves without noise, or is not counted; empty text for nothing."""
        training, output = self.training, self.output
        if training is None or output is None:
            return "only training keeps to a budget"
        if training.privacy is None:
            return "its training settings have no [privacy], so nothing gets noise"
        if why := self._unplanned(training.plans):
            return why
        if not (self.code.kind == "graph" or training.privacy_trusts_code):
            return (
                "its recipe is code, which could let out more than the noisy sums; a graph "
                "recipe cannot, and privacy_trusts_code = true says that the code is trusted"
            )
        if output.baseline_alone:
            return "baseline_alone measures a model of each owner's rows alone, without noise"
        if output.recipe_text:
            return "recipe_text lets out text of the recipe, without noise"
        return ""

    def _unplanned(self, plans: tuple[TrainingPlan, ...]) -> str:
        """Why owners' brokers do not count these plans; empty text if they do."""
        if plans == ("ddp",) and self.rows_at_home:
            return ""
        if plans != ("travel",) or self.group is not None:
            return (
                'only plans = ["ddp"] with rows = "owner", or plans = ["travel"] without a group, is '
                "counted at owners' brokers"
            )
        if self.travel_rule.mixed:
            return "mixed = true trains on several tables at one time, of which rows are not drawn one by one"
        budgets = (self.budgets_of(owner) for owner in self.data_owners)
        for owner in (tables[0][0].owner for tables in budgets if tables):
            if sum(e.part == "train" for e in self.resources_of(owner)) > 1:
                return f"{owner} has several tables to train on; the plan travel counts visits to one"
        return ""

    def _require_role(self, name: str, role: PartyRole, field: str) -> None:
        self._require_parties((name,), field)
        if role not in self.party(name).roles:
            raise inconsistent(f"names {name}, which lacks the role {role}", field)

    def _require_parties(self, names: Iterable[str], field: str) -> None:
        known = {party.name for party in self.parties}
        for name in names:
            if name not in known:
                raise inconsistent(f"names {name[:80]!r}, which is not a party", field)
