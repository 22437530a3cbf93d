"""The commented TOML that `sealift agreement new` writes for people to edit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sealift.attest.collateral import DAY_S
from sealift.attest.level import Level
from sealift.attest.reference import (
    SetName,
)
from sealift.crypto.sign import PublicKey
from sealift.release.agreement import ROWS_LEASE, About
from sealift.release.agreement.phrases import say_time

LEASE_S: Final = 120.0
MAX_USES: Final = 40
LASTS_DAYS: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """What the starter document is made from.

    Attributes:
        name: Name of the line of agreements.
        about: What it allows.
        number: Number in the line.
        predecessor: Path of the signed agreement before, as written.
        party_cards: (path as written, party name).
        resource_cards: (path as written, owner).
        bundle: Path of the code folder as written.
        entry: The recipe inside it.
        model_owner: Party that gets the model.
        operator: Party whose key signs leases.
        attesters: Keys whose development evidence is genuine.
        enrollers: Keys whose word ties an attestation key to its TPM.
        reference_sets: Signed files of reference values that count.
        now_s: Seconds since 1970; what it writes ends 90 days later.
        train_rows: Rows to train on, by owner: the least that a model needs is half of
            the smallest owner's, of each.
        accept: Accepted levels, in order of preference.
        rehearse: With development: the level that is rehearsed.
        threshold: Members of the board that a successor needs; 0 for everybody.
        veto: Parties with a veto on the board; all are members.
        not_after_s: When it ends instead, seconds since 1970.
        max_uses: How often each key may be released.
    """

    name: str
    about: About = "train"
    number: int = 1
    predecessor: str = ""
    now_s: float
    train_rows: Mapping[str, int] = field(default_factory=dict)
    accept: Sequence[Level] = (Level.DEVELOPMENT,)
    rehearse: Level | None = None
    threshold: int = 0
    veto: Sequence[str] = ()
    not_after_s: int | None = None
    max_uses: int = MAX_USES
    party_cards: Sequence[tuple[str, str]]
    resource_cards: Sequence[tuple[str, str]]
    bundle: str
    entry: str
    model_owner: str
    operator: str
    attesters: Sequence[PublicKey]
    enrollers: Sequence[PublicKey] = ()
    reference_sets: Sequence[SetName] = ()

    def to_toml(self) -> str:
        """The document."""
        parts = (
            self._heading(),
            self._board(),
            *map(self._party, self.party_cards),
            *map(self._resource, self.resource_cards),
            self._code(),
            *((self._output(),) if self.about == "train" else ()),
        )
        return "\n".join(parts)

    def _heading(self) -> str:
        before = (
            f"predecessor = {_text(self.predecessor)}"
            if self.predecessor
            else '# predecessor = "agreement.json"   # the signed agreement that this one replaces'
        )
        model_owner = (
            f"model_owner = {_text(self.model_owner)}     # receives the model\n"
        )
        model_owner = model_owner if self.about == "train" else ""
        return f"""\
# A draft of an agreement. Edit it, then run:
#   sealift agreement check FILE    explains what each party gives and receives
#   sealift agreement sign FILE     writes the agreement as canonical JSON and signs that
# Paths are relative to this file. The first signature reads the cards and the code folder;
# later changes of them, or of this file, do not change the signed agreement.

name = {_text(self.name)}
number = {self.number}
{before}
about = {_text(self.about)}           # "train" a model, "serve" models, or compute in a "group"
# Accepted assurance levels, in order of preference: tee, gpu-tee, attested-host,
# untrusted-gpu. Or "development" alone, which protects data from nobody.
accept = {json.dumps(list(self.accept))}
{self._rehearse()}
not_after = {_text(self._not_after)}   # no key is released after this time (RFC 3339)
{model_owner}operator = {_text(self.operator)}        # runs the machines; its key signs leases
"""

    def _rehearse(self) -> str:
        if self.rehearse is None:
            return '# rehearse = "attested-host"   # with development: the steps of this level'
        return f"rehearse = {_text(self.rehearse)}   # runs the steps of this level, without its protection"

    @property
    def _not_after(self) -> str:
        ends_s = self.not_after_s or int(self.now_s) + LASTS_DAYS * DAY_S
        return say_time(ends_s)

    def _board(self) -> str:
        names = [name for _, name in self.party_cards]
        if not self.threshold:
            return """\
# Without a board, every party must sign a successor of this agreement. With a board:
# [board]
# members = ["...", "..."]
# threshold = 2           # how many members must sign; more than half
# veto = ["..."]          # members that must sign in any case
# rollback = { quorum = 2, faulty = 0 }   # owners that are asked for the latest agreement
"""
        return f"""\
[board]                   # signs successors; an owner's own part also needs that owner
members = {json.dumps(names)}
threshold = {self.threshold}
veto = {json.dumps(list(self.veto))}
# rollback = {{ quorum = 2, faulty = 0 }}   # owners that are asked for the latest agreement
"""

    def _party(self, card: tuple[str, str]) -> str:
        path, name = card
        return f"""\
[[parties]]  # {name}
card = {_text(path)}
roles = {json.dumps(self._roles(name))}
"""

    def _roles(self, name: str) -> list[str]:
        owners = {owner for _, owner in self.resource_cards}
        roles = ["data_owner"] if name in owners and self.about == "train" else []
        if name == self.model_owner:
            roles += (
                ["code_owner"]
                if self.about == "group"
                else ["model_owner", "code_owner"]
            )
        return roles + (["operator"] if name == self.operator else [])

    def _resource(self, card: tuple[str, str]) -> str:
        path, owner = card
        purposes = '# purposes = ["train"]    # what its rows may be used for: "prepare", "train", "heldout"\n'
        budget = "# privacy = { epsilon = 3.0, delta = 1e-6 }   # most that all jobs together may spend on its rows\n"
        purposes = f"{purposes}{budget}" if self.about == "train" else ""
        return f"""\
[[resources]]  # owned by {owner}
card = {_text(path)}
[resources.rule]          # only {owner} can change this rule
max_uses = {self.max_uses}             # how often its key may be released in total; 0: no limit
not_after = {_text(self._not_after)}
# accept = ["gpu-tee"]    # only some of the levels that the agreement accepts
# recipe = "graph"        # only with a recipe that is a graph, and no program
{purposes}{self._lease()}"""

    def _lease(self) -> str:
        if self.about == "serve":
            return """\
# lease_s = 60.0          # seconds that a key may be used without fresh evidence
# heartbeat_s = 10.0      # seconds between two renewals of the evidence; without both
#                         # settings the key may be used until the server ends
"""
        terms = ROWS_LEASE
        return f"""\
lease_s = {terms.lease_s}            # seconds that a key may be used without fresh evidence
heartbeat_s = {terms.heartbeat_s}        # seconds between two renewals; with lease_s = 0.0 alone keys
                          # are not renewed, and an owner that leaves is not noticed
"""

    def _code(self) -> str:
        return f"""\
[code]
bundle = {_text(self.bundle)}   # the agreement has the digest of each file in it
entry = {_text(self.entry)}

[references]
# Attester keys whose development evidence is accepted: the accelerator's.
development_attesters = [
{_keys(self.attesters)}]
{self._hosts()}"""

    def _hosts(self) -> str:
        enrollers = f"""\
# Keys of the parties that check which TPM holds a host's attestation key. Each owner
# names itself and relies on nobody else.
enrollers = [
{_keys(self.enrollers)}]
"""
        sets = "".join(f"    {_set(each)},\n" for each in self.reference_sets)
        named = f"""\
# Signed files of reference values for evidence; older files than `number` are refused.
sets = [
{sets}]
"""
        return (enrollers if self.enrollers else "") + (named if sets else "")

    def _output(self) -> str:
        owners = len({owner for _, owner in self.resource_cards})
        each = max(1, min(self.train_rows.values(), default=2) // 2)
        return f"""\
[output]                  # what may leave the accelerator; nothing else does
metrics = ["loss", "accuracy"]
digits = 3                # decimal places
values_per_visit = 16     # largest number of values of one metric per visit
metric_rows = 16          # a number must be computed from at least so many rows
audience = "everyone"     # who sees the numbers; "owner": only the owner of the rows
min_visits = 1            # the model leaves only after so many visits to each holder
max_visits = 1000         # most training visits to one holder, and most evaluations
min_holders = {owners}           # the model must be trained on rows of so many holders
min_rows = {each * max(1, len(self.train_rows))}   # and on so many distinct rows
min_owner_rows = {each}   # and on so many distinct rows of each owner
baseline_alone = false    # also train a model on each owner's rows alone, to compare
recipe_text = false       # whether the recipe's prints and error texts may leave
statistics = []           # names of the sums of `prepare` that may leave
statistics_rows = 16      # such a sum must include at least so many rows
# model_to = ["..."]      # who receives the model, if not only the model owner
# approved_by = ["..."]   # who must approve the model before it can be opened

[training]                # allowed settings of a job: a value, a list, or a range
plans = ["travel", "local"]   # with [group] also "ddp"; with [servers] also "outsource"
runs = {self.max_uses}                 # how many jobs may be started in total; 0: no limit
epochs = {{ max = 1000 }}   # passes over all rows
batch_rows = {{ min = 16, max = 4096 }}   # rows per step; with sync = "step" each rank
                          # shows the others a sum over this many rows of its owner
drop_last = [true, false] # skip a shorter last batch; sync = "step" needs true alone
prepare = [true, false]   # whether sums over the rows are computed before training
evaluate_every = {{ min = 0 }}   # epochs between evaluations; 0: at the end
digest_every = {{ min = 0 }}     # steps between two digests of the state; 0: at the end
seed = {{ min = 0 }}        # seed of all random numbers and orders
threads = {{ min = 1 }}     # CPU threads per operation
device = ["auto", "cpu", "cuda"]
slices = {{ min = 1 }}      # parts of the rows, trained on at the same time
rows = ["owner", "share"] # a part has one owner's rows, or a share of each owner's
sync = ["round"]          # parts are averaged after each round; "step": in every step
max_norm = 0.0            # limit of a part's change in a round; 0.0: no limit needed
sums = "open"             # each machine reads the parts that it adds up; "only": sums alone,
                          # for plans = ["ddp"], rows = "owner", sync = ["round"]
order = ["round-robin", "by-size"]
buffer_bytes = {{ min = 0 }}     # most bytes of rows per visit; 0: the accelerator chooses
on_missing = ["skip", "wait"]
attempts = {{ min = 1 }}    # attempts for one visit
redo = {{ min = 0 }}        # how often a step is repeated after a server's wrong answer
checkpoint_every = {{ min = 0 }}

[travel]
buffers = 1               # 1: one owner's rows are overwritten before the next owner's
                          # are loaded; 2: the next rows load during training
mixed = false             # true: a batch may contain rows of several owners
lease_s = {LEASE_S}           # longest lease of a holder for one visit, in seconds

# [group]                 # several accelerators train together with the plan "ddp"
# ranks = {max(2, owners)}
# rows = "owner"          # each accelerator reads its owner's rows on that owner's machine;
#                         # "share": each reads a share of all rows, and receives every key

# [servers]               # parties that run the three servers of the plan "outsource":
# P = "..."               # three organisations with the role "share_server" that own
# M = "..."               # no data, code or model. If two of them collude, they can
# Z = "..."               # read everything.
"""


def _keys(keys: Sequence[PublicKey]) -> str:
    return "".join(f"    {_text(key.to_text())},\n" for key in keys)


def _set(name: SetName) -> str:
    words = [f"name = {_text(name.name)}", f"signer = {_text(name.signer.to_text())}"]
    return f"{{ {', '.join(words)}, number = {name.number} }}"


def _text(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's."""
    return json.dumps(text)
