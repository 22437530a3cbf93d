"""The commented TOML that `sealift agreement new` writes for people to edit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sealift.attest.collateral import DAY_S
from sealift.attest.level import Level
from sealift.attest.referenceset import (
    SetName,
)
from sealift.crypto.sign import PublicKey
from sealift.release.agreement import ROWS_LEASE, About
from sealift.release.agreement.explain import say_time

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
            else '# predecessor = "agreement.json"   # the signed agreement before'
        )
        model_owner = f"model_owner = {_text(self.model_owner)}     # gets the model\n"
        model_owner = model_owner if self.about == "train" else ""
        return f"""\
# What you agree on. Edit it, then:
#   sealift agreement check FILE    says in plain words what each party gives and gets
#   sealift agreement sign FILE     writes the canonical JSON of this, which is signed
# Paths are relative to this file. What the cards and the code folder hold at the first
# signature is what counts; this file itself is not signed.

name = {_text(self.name)}
number = {self.number}
{before}
about = {_text(self.about)}           # "train" a model, "serve" models, or a "group" that computes
# "development" keeps nobody out and stands alone; real levels: tee, gpu-tee,
# attested-host, untrusted-gpu. In order of preference.
accept = {json.dumps(list(self.accept))}
{self._rehearse()}
not_after = {_text(self._not_after)}   # no key is released later; times are RFC 3339
{model_owner}operator = {_text(self.operator)}        # starts the machines; its key signs leases
"""

    def _rehearse(self) -> str:
        if self.rehearse is None:
            return '# rehearse = "attested-host"   # with development: its steps, unprotected'
        return (
            f"rehearse = {_text(self.rehearse)}   # its steps, without its protection"
        )

    @property
    def _not_after(self) -> str:
        ends_s = self.not_after_s or int(self.now_s) + LASTS_DAYS * DAY_S
        return say_time(ends_s)

    def _board(self) -> str:
        names = [name for _, name in self.party_cards]
        if not self.threshold:
            return """\
# Without a board, every party must sign a successor. With one:
# [board]
# members = ["...", "..."]
# threshold = 2           # so many of them; more than half
# veto = ["..."]          # these in any case
# rollback = { quorum = 2, faulty = 0 }   # owners asked which agreement is the last
"""
        return f"""\
[board]                   # brings a successor into force; no owner's part without it
members = {json.dumps(names)}
threshold = {self.threshold}
veto = {json.dumps(list(self.veto))}
# rollback = {{ quorum = 2, faulty = 0 }}   # owners asked which agreement is the last
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
        purposes = '# purposes = ["train"]    # of "prepare", "train", "heldout"\n'
        purposes = purposes if self.about == "train" else ""
        return f"""\
[[resources]]  # of {owner}
card = {_text(path)}
[resources.rule]          # {owner}'s alone: changes only with its signature
max_uses = {self.max_uses}             # times that its key may be released in all; 0: any number
not_after = {_text(self._not_after)}
# accept = ["gpu-tee"]    # fewer levels than the agreement's
{purposes}{self._lease()}"""

    def _lease(self) -> str:
        if self.about == "serve":
            return """\
# lease_s = 60.0          # a key lives so long without fresh evidence, which
# heartbeat_s = 10.0      # is due so often; without both, until the server ends
"""
        terms = ROWS_LEASE
        return f"""\
lease_s = {terms.lease_s}            # a key lives so long without fresh evidence; work pauses
heartbeat_s = {terms.heartbeat_s}        # after so long; lease_s = 0.0 alone: no departure is heard
"""

    def _code(self) -> str:
        return f"""\
[code]
bundle = {_text(self.bundle)}   # every file in it is named by its digest
entry = {_text(self.entry)}

[references]
# Keys whose development evidence counts: the accelerator's attester.
development_attesters = [
{_keys(self.attesters)}]
{self._hosts()}"""

    def _hosts(self) -> str:
        enrollers = f"""\
# Keys whose word says in which TPM a host's key lives: each owner finds out itself.
enrollers = [
{_keys(self.enrollers)}]
"""
        sets = "".join(f"    {_set(each)},\n" for each in self.reference_sets)
        named = f"""\
# Signed files of values that evidence must show; the number is the lowest that counts.
sets = [
{sets}]
"""
        return (enrollers if self.enrollers else "") + (named if sets else "")

    def _output(self) -> str:
        owners = len({owner for _, owner in self.resource_cards})
        each = max(1, min(self.train_rows.values(), default=2) // 2)
        return f"""\
[output]                  # nothing else leaves the accelerator
metrics = ["loss", "accuracy"]
digits = 3                # decimal places
values_per_visit = 16     # most values of one metric from one visit
metric_rows = 16          # fewest rows that a number which leaves is measured on
audience = "everyone"     # or "owner": only the owner of the rows sees its numbers
min_visits = 1            # to every holder, before a model leaves
max_visits = 1000         # to one holder, to train; and as many to measure
min_holders = {owners}           # distinct holders, before a model leaves
min_rows = {each * max(1, len(self.train_rows))}   # distinct rows trained on, before a model leaves
min_owner_rows = {each}   # distinct rows of each owner among them
baseline_alone = false    # also train on each owner's rows alone, to compare
recipe_text = false       # let the recipe's prints and exception text out
statistics = []           # sums of the recipe's `prepare` that may leave, by name
statistics_rows = 16      # fewest rows that such a sum is made of
# model_to = ["..."]      # who gets the model, if not the model owner alone
# approved_by = ["..."]   # who must approve of the model before it is opened

[training]                # what a job may set: a value, a list, or a range
plans = ["travel", "local"]   # with [group] also "ddp", with [servers] "outsource"
runs = {self.max_uses}                 # jobs that may be started in all; 0: any number
epochs = {{ max = 1000 }}   # rounds over all rows
batch_rows = {{ min = 16, max = 4096 }}   # rows of one step; with sync = "step" each rank
                          # shows the others a sum over so many rows of its owner
drop_last = [true, false] # leave out a last batch that is shorter: true alone for "step"
prepare = [true, false]   # a pass of sums before training
evaluate_every = {{ min = 0 }}   # epochs between evaluations; 0: at the end
digest_every = {{ min = 0 }}     # steps between hand-overs of the state; 0: at the end
seed = {{ min = 0 }}        # of every order and random stream
threads = {{ min = 1 }}     # CPU threads of one operation
device = ["auto", "cpu", "cuda"]
slices = {{ min = 1 }}      # parts of the rows that are trained on side by side
rows = ["owner", "share"] # of a part: one owner's rows, or a share of everybody's
sync = ["round"]          # parts come together after each round; "step": in every step
max_norm = 0.0            # largest change of a part in a round; 0.0: a job need not bound it
order = ["round-robin", "by-size"]
buffer_bytes = {{ min = 0 }}     # largest cargo of one visit; 0: the accelerator's choice
on_missing = ["skip", "wait"]
attempts = {{ min = 1 }}    # visits to one holder for one cargo
redo = {{ min = 0 }}        # wrong answers of servers after which a step is done again
checkpoint_every = {{ min = 0 }}

[travel]
buffers = 1               # rows of one owner are gone before the next is met; or 2:
                          # the next owner's rows load while these are trained on
mixed = false             # or true: batches are drawn across several owners' rows
lease_s = {LEASE_S}           # longest time that a holder has for its cargo

# [group]                 # several accelerators train together, with the plan "ddp"
# ranks = {max(2, owners)}
# rows = "owner"          # each on its owner's machine, for its rows alone; or "share": each
#                         # reads its share of everybody's rows, and gets every key

# [servers]               # parties whose servers compute with shares, with the plan
# P = "..."               # "outsource": three organisations that own none of the above,
# M = "..."               # each with the role "share_server"; any two that collude
# Z = "..."               # see everything
"""


def _keys(keys: Sequence[PublicKey]) -> str:
    return "".join(f"    {_text(key.to_text())},\n" for key in keys)


def _set(name: SetName) -> str:
    words = [f"name = {_text(name.name)}", f"signer = {_text(name.signer.to_text())}"]
    return f"{{ {', '.join(words)}, number = {name.number} }}"


def _text(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's."""
    return json.dumps(text)
