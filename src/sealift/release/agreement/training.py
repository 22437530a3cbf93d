"""The training settings that all parties sign: each a range, or a list of what is allowed.

A job's settings decide what every rank and server sees of the others' rows, as much as
the code does. So they are part of the agreement, and every role compares the job that it
starts with this rule (``travel/settings.py`` says what a job sets). A job may be run again
with other allowed settings without another signature.
Source: spec/release.md section Training settings (rule O1).
"""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Final, Literal

from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.hash import labelled
from sealift.errors import MalformedError, PolicyError
from sealift.ids import MAX_RANKS, Digest
from sealift.release.accountant import LEAST_NOISE
from sealift.release.agreement.privacy import bad_privacy
from sealift.release.agreement.sums import SumEncoding
from sealift.release.agreement.terms import (
    inconsistent,
    require_distinct,
    require_within,
)

TrainingPlan = Literal["local", "travel", "ddp", "outsource"]
DeviceKind = Literal["auto", "cpu", "cuda"]
Parameter = bool | int | float | str
MAX_PARAMETERS: Final = 64
MAX_PARAMETER: Final = 64  # characters of a name, and of a text
# Any number, not a whole one alone.
_REAL: Final = ("clip_norm", "max_norm", "sum_bound")
_RUN_LABEL: Final = "sealift v1 run"
MAX_NOISE: Final = 1e6
# Of noise that ranks share: the clip is so many of the whole numbers that are added up.
ROW_UNITS: Final = 1 << 24

# What a job may write at all; a side of a range that is left out is the one that stands here.
LIMITS: Final[dict[str, tuple[int | float, int | float]]] = {
    "epochs": (0, 100_000),
    "batch_rows": (1, 1 << 20),
    "evaluate_every": (0, MAX_INTEGER),
    "digest_every": (0, MAX_INTEGER),
    "seed": (0, MAX_INTEGER),
    "threads": (1, 1024),
    "slices": (1, MAX_RANKS),
    "max_norm": (0, 1e300),
    "clip_norm": (0, 1e300),
    "sum_bound": (2.0**-30, 2.0**30),
    "sum_places": (0, 60),
    "sum_bits": (32, 64),
    "stop_after": (0, 100_000),
    "buffer_bytes": (0, 1 << 40),
    "attempts": (1, 1000),
    "redo": (0, 1024),
    "checkpoint_every": (0, MAX_INTEGER),
}


# Each setting that is agreed on, and its name in a job.
SETTINGS: Final = {
    "epochs": "training.epochs",
    "batch_rows": "training.batch_rows",
    "drop_last": "training.drop_last",
    "prepare": "training.prepare",
    "evaluate_every": "training.evaluate_every",
    "digest_every": "training.digest_every",
    "clip_norm": "training.clip_norm",
    "measure": "training.measure",
    "stop_after": "training.stop_after",
    "keep": "training.keep",
    "seed": "training.seed",
    "threads": "training.threads",
    "device": "run.device",
    "slices": "slices.count",
    "rows": "slices.rows",
    "sync": "slices.sync",
    "max_norm": "slices.max_norm",
    "sums": "slices.sums",
    "sum_bound": "slices.sum_bound",
    "sum_places": "slices.sum_places",
    "sum_bits": "slices.sum_bits",
    "order": "travel.order",
    "buffer_bytes": "travel.buffer_bytes",
    "on_missing": "travel.on_missing",
    "attempts": "travel.attempts",
    "redo": "servers.redo",
    "checkpoint_every": "run.checkpoint_every",
}


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """Steps that bound what one row can do to the model, and hide it in noise.

    Each owner's rows are drawn for a step independently of each other, each with the same
    chance (Poisson sampling). The gradient of each drawn row is clipped, these are added
    up, and noise from the operating system is added to the sum.

    Attributes:
        clip: L2 norm to which the gradient of each row is clipped.
        noise: Sigma: the noise of each number has the standard deviation ``noise * clip``.
        batch: Rows of one owner in a step, as expected.
        honest_ranks: 0: the rank on each owner's machine adds all of the noise. Else each
            rank adds a part, and the parts of so many of them come to all of it.

    Raises:
        MalformedError: ``bad-privacy``.
    """

    clip: float
    noise: float
    batch: int
    honest_ranks: int = 0

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            value = getattr(self, name)
            # Less is lost in rounding: a row is then not clipped, or noise not counted.
            if not LEAST_NOISE <= value <= MAX_NOISE:
                raise bad_privacy(
                    f"{name} is {value:g}; it must be at least {LEAST_NOISE:g} and at most "
                    f"{MAX_NOISE:g}",
                    name,
                )
        if not 1 <= self.batch <= LIMITS["batch_rows"][1]:
            raise bad_privacy(
                f"batch is {self.batch}; it must be 1 or more, and at most "
                f"{LIMITS['batch_rows'][1]:,}",
                "batch",
            )
        if self.honest_ranks and not 2 <= self.honest_ranks < MAX_RANKS:
            raise bad_privacy(
                f"honest_ranks is {self.honest_ranks}; it must be at least 2 and below "
                f"{MAX_RANKS}, or 0 where each owner's rank adds all of the noise",
                "honest_ranks",
            )

    def __str__(self) -> str:
        shared = f", honest_ranks {self.honest_ranks}" if self.honest_ranks else ""
        return f"clip {self.clip:g}, noise {self.noise:g}, batch {self.batch}{shared}"

    @property
    def part(self) -> int:
        """Variance of one rank's part of shared noise, of units of ``clip / ROW_UNITS``."""
        whole = Fraction(self.noise) ** 2 * ROW_UNITS**2
        return math.ceil(whole / self.honest_ranks)

    def rate(self, rows: int) -> float:
        """Chance of a row to be drawn for a step, of an owner with so many rows (q)."""
        return min(1.0, self.batch / rows)

    def steps(self, rows: int) -> int:
        """Steps of one round over so many rows."""
        return -(-rows // self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The settings of one job, as each process sends them to the others.

    Attributes:
        job: Its name.
        plan: How its work is laid out.
        keep_state: Whether its last checkpoint stays, for a run with more epochs.
        continues: The job whose checkpoint it goes on from; empty for none.
    """

    job: str
    plan: TrainingPlan
    epochs: int = 1
    batch_rows: int = 32
    drop_last: bool = False
    prepare: bool = False
    evaluate_every: int = 0
    digest_every: int = 0
    seed: int = 0
    threads: int = 1
    device: DeviceKind = "auto"
    slices: int = 1
    rows: Literal["owner", "share"] = "owner"
    sync: Literal["round", "step"] = "round"
    max_norm: float = 0.0
    sums: Literal["open", "only"] = "open"
    sum_bound: float = 1.0
    sum_places: int = 26
    sum_bits: int = 32
    clip_norm: float = 0.0
    measure: str = ""
    stop_after: int = 0
    keep: Literal["last", "best"] = "last"
    keep_state: bool = False
    continues: str = ""
    order: Literal["round-robin", "by-size"] = "round-robin"
    buffer_bytes: int = 0
    on_missing: Literal["skip", "wait"] = "skip"
    attempts: int = 5
    redo: int = 0
    checkpoint_every: int = 8
    privacy: PrivateSteps | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def digest(self, agreement: Digest) -> Digest:
        """Names the run: no other settings, job or agreement have this one."""
        return Digest(labelled(_RUN_LABEL, agreement.raw, encode(self)))


@dataclass(frozen=True, slots=True)
class Between:
    """A closed range of numbers; one value where both ends are equal."""

    min: int | float
    max: int | float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min) and math.isfinite(self.max)):
            raise inconsistent("is not a finite number", "max")
        if self.min > self.max:
            raise inconsistent(f"is {self.max}, below min = {self.min}", "max")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.min <= value <= self.max

    def __str__(self) -> str:
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRule:
    """What a parameter of the recipe's ``build`` may be: a number of a range, or one of a list.

    Attributes:
        between: Of a number; None for what is listed.
        values: Texts, true and false that are allowed.
    """

    between: Between | None = None
    values: tuple[bool | str, ...] = ()

    def __post_init__(self) -> None:
        if (self.between is None) is not bool(self.values):
            raise inconsistent("must have a range, or a list of values", "values")
        require_distinct(map(repr, self.values), "values")
        if any(len(each) > MAX_PARAMETER for each in self.values if each is str(each)):
            raise inconsistent("has too long a text", "values")

    def __contains__(self, value: object) -> bool:
        if self.between is None or isinstance(value, bool | str):
            return any(type(x) is type(value) and x == value for x in self.values)
        return value in self.between

    def __str__(self) -> str:
        if self.between is not None:
            return str(self.between)
        return " or ".join(map(json.dumps, self.values))


def check_parameters(found: Mapping[str, object]) -> None:
    """Refuse names that are no argument of a function, and too many of them.

    Raises:
        MalformedError: ``bad-parameter``.
    """
    if len(found) > MAX_PARAMETERS:
        raise MalformedError(
            f"there are {len(found)} parameters",
            why=f"a recipe may have at most {MAX_PARAMETERS}",
            code="bad-parameter",
        )
    for name in found:
        known = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        if not known or len(name) > MAX_PARAMETER or name.startswith("_"):
            raise MalformedError(
                f"{name[:MAX_PARAMETER]!r} cannot be the name of a parameter",
                code="bad-parameter",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRule:
    """What a job may set, with everybody's signature; what is not named here has its default.

    Attributes:
        plans: How the work may be laid out.
        runs: Jobs that may be started under this line of agreements, at most; one that
            was cut off and goes on is the same one. 0 for any number.
        epochs: Rounds over all training rows.
        batch_rows: Rows of one optimizer step.
        drop_last: Whether a last batch that is shorter may be left out.
        prepare: Whether there may be a pass of sums before training.
        evaluate_every: Epochs between two evaluations; 0 is at the end alone.
        digest_every: Steps between two hand-overs of the state; 0 is at the end alone.
        seed: Of every order and random stream.
        threads: CPU threads of one operation.
        device: Where recipes may compute: ``cpu``, ``cuda``, or ``auto``: what the machine
            has.
        slices: Parts of the rows that are trained on side by side; 1 is one loop.
        rows: What a part is made of: one owner's rows, or a share of everybody's.
        sync: Whether parts come together after each round, or in every step.
        clip_norm: Largest norm of a step's gradient; 0 bounds nothing.
        measure: Held-out measures that may choose a state, or end training.
        stop_after: Evaluations in turn without a better one after which training ends.
        keep: Which state may be handed out: the last one, or the best that was evaluated.
        keep_state: Whether a run may leave its last checkpoint sealed, for a later run with
            more epochs to go on from. Its key stays with the brokers that had it during
            the run: with rows of one owner on each rank, the first owner's alone.
        max_norm: Largest norm of what a part changes in a round. Where ``max`` is 0 a job
            need not bound it.
        sums: ``only``: a machine learns the sum of what all send, and no part of it.
            ``open``: each reads the part that it adds up.
        sum_bound: Of ``only``: the largest number; one beyond it is cut.
        sum_places: Of ``only``: binary places of the whole numbers that are added.
        sum_bits: Of ``only``: how long these are, 32 or 64.
        order: Orders in which holders may be visited.
        buffer_bytes: Largest cargo of one visit; 0 is the accelerator's choice.
        on_missing: What may become of a holder that is missing.
        attempts: Visits to one holder for one cargo, at most.
        redo: Wrong answers of servers after which a step is done again.
        checkpoint_every: Groups of visits between two checkpoints; 0 is never.
        privacy: How steps are made private, the same for every run; None: they are not.
        privacy_trusts_code: Whether an owner's budget may rely on code of the host, which
            could let out more than the sums that noise is added to.
        parameters: Of the recipe's ``build``, by name: a job sets these and no others.
    """

    plans: tuple[TrainingPlan, ...]
    runs: int
    epochs: Between
    batch_rows: Between
    drop_last: tuple[bool, ...] = (False,)
    prepare: tuple[bool, ...] = (False,)
    evaluate_every: Between = Between(0, 0)
    digest_every: Between = Between(0, 0)
    seed: Between = Between(0, 0)
    threads: Between = Between(1, 1)
    device: tuple[DeviceKind, ...] = ("auto",)
    slices: Between = Between(1, 1)
    rows: tuple[Literal["owner", "share"], ...] = ("owner",)
    sync: tuple[Literal["round", "step"], ...] = ("round",)
    max_norm: Between = Between(0, 0)
    sums: tuple[Literal["open", "only"], ...] = ("open",)
    sum_bound: Between = Between(1, 1)
    sum_places: Between = Between(26, 26)
    sum_bits: Between = Between(32, 32)
    clip_norm: Between = Between(0, 0)
    measure: tuple[str, ...] = ("",)
    stop_after: Between = Between(0, 0)
    keep: tuple[Literal["last", "best"], ...] = ("last",)
    keep_state: bool = False
    order: tuple[Literal["round-robin", "by-size"], ...] = ("round-robin",)
    buffer_bytes: Between = Between(0, 0)
    on_missing: tuple[Literal["skip", "wait"], ...] = ("skip",)
    attempts: Between = Between(5, 5)
    redo: Between = Between(0, 0)
    checkpoint_every: Between = Between(8, 8)
    privacy: PrivateSteps | None = None
    privacy_trusts_code: bool = False
    parameters: dict[str, ParameterRule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_within(self.runs, 0, MAX_INTEGER, "runs")
        check_parameters(self.parameters)
        for each in fields(self):
            allowed = getattr(self, each.name)
            if isinstance(allowed, tuple):
                if not allowed:
                    raise inconsistent("allows nothing", each.name)
                require_distinct(map(str, allowed), each.name)
            if isinstance(allowed, Between):
                low, high = LIMITS[each.name]
                require_within(allowed.min, low, high, f"{each.name}.min")
                require_within(allowed.max, low, high, f"{each.name}.max")
                ends = (float(allowed.min), float(allowed.max))
                if each.name not in _REAL and not all(e.is_integer() for e in ends):
                    raise inconsistent("is not a whole number", each.name)

        if self.keep_state and self.plans != ("ddp",):
            raise inconsistent('needs plans = ["ddp"] alone', "keep_state")
        self._check_sums()
        self._check_privacy()

    @property
    def honest_ranks(self) -> int:
        """Of private steps whose noise ranks share, how many have to be honest; else 0."""
        return 0 if self.privacy is None else self.privacy.honest_ranks

    def _check_privacy(self) -> None:
        """What would let out more than the private steps is not agreed on with them."""
        if self.privacy is None:
            return
        if {*self.plans} - {"ddp", "travel"}:
            raise inconsistent(
                f"names {' and '.join(self.plans)}: with privacy only ddp and travel "
                "are supported",
                "plans",
            )
        honest = self.honest_ranks
        demanded = [("rows", "owner"), ("prepare", False)]
        demanded += (
            [("sync", "step"), ("sums", "only")] if honest else [("sync", "round")]
        )
        for name, alone in demanded:
            if getattr(self, name) != (alone,):
                shared = " that ranks share" if honest else ""
                raise inconsistent(
                    f"must be {json.dumps(alone)} alone with privacy: nothing else gets noise{shared}",
                    name,
                )
        if honest >= self.slices.min and honest:
            raise inconsistent(
                f"is {honest}, and there may be {self.slices.min:g} ranks: each knows its own "
                "part of the noise, so one rank less than there are must do",
                "privacy.honest_ranks",
            )

    def _check_sums(self) -> None:
        """What no job may do with ``sums = "only"`` is not agreed on (rule H12)."""
        if {self.sum_bits.min, self.sum_bits.max} - {32, 64}:
            raise inconsistent("must be 32 or 64", "sum_bits")
        if "only" not in self.sums:
            return
        # With "step" a machine whose rows are used up brings zeros: the sum is of few then,
        # which noise that ranks share hides as well.
        sync = "step" if self.honest_ranks else "round"
        if (self.plans, self.rows, self.sync) != (("ddp",), ("owner",), (sync,)):
            why = (
                "noise that ranks share is added in each step"
                if self.honest_ranks
                else 'with sync = "step" the sums of machines that have rows left would be '
                "shown, so it needs privacy with honest_ranks"
            )
            raise inconsistent(
                f'has "only", which needs plans = ["ddp"], rows = "owner" and '
                f'sync = "{sync}" alone; {why}',
                "sums",
            )
        if self.max_norm.max:
            raise inconsistent(
                'must be 0 with sums = "only": no other machine could check the norm',
                "max_norm",
            )
        SumEncoding(
            self.sum_bound.max,
            int(self.sum_places.max),
            32 if self.sum_bits.min == 32 else 64,
        ).require_fit(int(self.slices.max))

    def require(self, run: RunTerms) -> None:
        """Refuse a job that sets what the parties did not agree on (rule O1).

        Raises:
            PolicyError: ``settings-differ``, with the first setting that is not allowed.
        """
        if run.plan not in self.plans:
            raise _settings_differ("plan", run.plan, self.plans)
        for name, setting in SETTINGS.items():
            value, allowed = getattr(run, name), getattr(self, name)
            fits = value in allowed
            if name == "max_norm":  # of 0 is no bound: it fits where none is asked for
                fits = not allowed.max or (fits and value > 0)
            if not fits:
                raise _settings_differ(setting, value, allowed)
        if run.keep_state and not self.keep_state:
            raise _settings_differ("training.keep_state", True, (False,))
        if run.continues and not self.keep_state:
            raise _settings_differ("training.continues", run.continues, ("no run",))
        if run.privacy != self.privacy:
            allowed = self.privacy or "no section [privacy]"
            raise _settings_differ("privacy", run.privacy or "nothing", allowed)
        for name in sorted(run.parameters.keys() | self.parameters.keys()):
            value = run.parameters.get(name, "nothing")
            rule = self.parameters.get(name)
            if name not in run.parameters or rule is None or value not in rule:
                allowed = rule or "no such parameter"
                raise _settings_differ(f"parameters.{name}", value, allowed)

    def require_shown_rows(self, metric_rows: int) -> None:
        """Refuse steps in which a rank shows the others a sum over too few rows.

        A rank makes batches of ``batch_rows`` of its own rows. The last one of a group
        has what is left, which may be a single row, unless it is left out; where it is
        the only one, it has a cell's rows at least.

        Args:
            metric_rows: Fewest rows behind a number that is shown.

        Raises:
            MalformedError: ``bad-agreement``.
        """
        if "ddp" not in self.plans or "step" not in self.sync or self.privacy:
            return
        if self.batch_rows.min < metric_rows:
            raise inconsistent(
                'is too small: with sync = "step" each rank sends the others a '
                f"sum over {self.batch_rows.min} rows, and output.metric_rows "
                f"is {metric_rows}",
                "training.batch_rows.min",
            )
        if self.drop_last != (True,):
            raise inconsistent(
                'must be true alone: with sync = "step" a shorter last batch '
                "could be a single row, which the other ranks could read",
                "training.drop_last",
            )

    def fewest_table_rows(self, metric_rows: int) -> int:
        """Rows that a table needs, so that a round's update is made of ``metric_rows``.

        A last batch that is left out has fewer rows than a batch.
        """
        if True not in self.drop_last or self.batch_rows.min >= metric_rows:
            return metric_rows
        return metric_rows + min(metric_rows - 1, int(self.batch_rows.max)) - 1


def _settings_differ(name: str, value: object, allowed: Any) -> PolicyError:
    listed = isinstance(allowed, tuple)
    text = " or ".join(map(str, allowed)) if listed else str(allowed)
    return PolicyError(
        f"the job sets {name} = {value}, which the agreement does not allow",
        why=f"allowed: {text}",
        code="settings-differ",
    )
