"""What a job sets, once for every part of it; the agreement limits all of it.

The tables of ``job.toml`` are these very objects (``train.job.settings`` reads them), and the
orchestrator tells the accelerator the same ones. Times are limits, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from annotated_types import Interval, Predicate

from sealift.codec import MAX_INTEGER, encode, to_plain
from sealift.data.schedule.visits import Order, VisitTerms
from sealift.errors import JobError
from sealift.ids import MAX_RANKS, Digest, check_name
from sealift.release.agreement import Between, RunTerms, TrainingPlan, TrainingRule
from sealift.release.agreement.sums import SumBits, SumEncoding
from sealift.release.agreement.training import (
    SETTINGS,
    Parameter,
    ParameterRule,
    PrivateSteps,
    check_parameters,
)

Patience = Literal["lan", "wan"]
Count = Annotated[int, Interval(ge=0, le=100_000)]
Seconds = Annotated[float, Interval(gt=0, le=7 * 86_400)]
Auto = Annotated[str, Predicate("auto".__eq__)]
Device = Literal[
    "auto", "cpu", "cuda",
    "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7",
]  # fmt: skip
BufferBytes = Annotated[int, Interval(ge=1, le=1 << 40)] | Auto

# What pydantic goes by where it reads these from a file; it is not needed for anything else.
_STRICT: Final[dict[str, Any]] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """``[training]``: what every plan needs.

    Attributes:
        epochs: Rounds over all training rows.
        prepare: Make one pass of sums before training.
        batch_rows: Rows of one optimizer step.
        drop_last: Leave out a last batch that is shorter, unless it is the only one.
        seed: Of every order and random stream.
        threads: CPU threads of one operation; part of bit-identity.
        evaluate_every: Evaluate after every so many epochs; 0 means at the end.
        digest_every: Steps after which the state is handed over within a slice; 0 for
            at its end alone.
        clip_norm: Largest norm of a step's gradient; 0 bounds nothing.
        measure: Name of a held-out measure that chooses; ``-NAME`` is best where lowest.
        stop_after: End after so many evaluations in turn that are no better; 0 never.
        keep: Hand out the last state, or the best of those that were evaluated.
        keep_state: Keep the last checkpoint, so that a run with more epochs can go on from it.
        continues: Name of the first job of those whose checkpoints this one goes on from;
            `sealift host` sets it.
        parameters: Of the recipe's ``build``, by name; ``[parameters]`` in a file.
    """

    __pydantic_config__: ClassVar = _STRICT

    epochs: Count = 1
    prepare: bool = False
    batch_rows: Annotated[int, Interval(ge=1, le=1 << 20)] = 32
    drop_last: bool = False
    seed: Annotated[int, Interval(ge=0, lt=1 << 53)] = 0
    threads: Annotated[int, Interval(ge=1, le=1024)] = 1
    evaluate_every: Annotated[int, Interval(ge=0, le=MAX_INTEGER)] = 0
    digest_every: Annotated[int, Interval(ge=0, le=MAX_INTEGER)] = 0
    clip_norm: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.0
    measure: str = ""
    stop_after: Count = 0
    keep: Literal["last", "best"] = "last"
    keep_state: bool = False
    continues: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_parameters(self.parameters)
        if self.continues:
            check_name(self.continues, what="training.continues")

    def checkpoints_of(self, job: str) -> str:
        """Name of the job whose checkpoints a job of that name has: its own, usually."""
        return self.continues or job

    def trained_rows(self, rows: int) -> int:
        """How many of a group's rows are trained on."""
        left_out = rows % self.batch_rows if self.drop_last else 0
        return rows - left_out or rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TravelSettings:
    """``[travel]``: how the accelerator travels.

    Attributes:
        order: In which order holders are visited.
        buffers: Most groups of visits that are in the accelerator at one time.
        mixed: Draw batches across several holders' rows.
        buffer_bytes: Largest cargo of one visit; ``auto`` lets the accelerator choose.
        on_missing: Skip a holder that is missing or fails, or wait for it.
        attempts: Most visits to one holder for one cargo, with ``wait``; the pauses
            between them take up to ``wait_s`` together.
    """

    __pydantic_config__: ClassVar = _STRICT

    order: Order = "round-robin"
    buffers: Literal[1, 2] = 1
    mixed: bool = False
    buffer_bytes: BufferBytes = "auto"
    on_missing: Literal["skip", "wait"] = "skip"
    attempts: Annotated[int, Interval(ge=1, le=1000)] = 5

    @property
    def asked_bytes(self) -> int:
        """``buffer_bytes``, 0 for the accelerator's choice."""
        return 0 if isinstance(self.buffer_bytes, str) else self.buffer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesSettings:
    """``[slices]``: rows that are trained on side by side, and how that comes together.

    With the plan ``ddp`` a rank works on each; ``local`` works on one after the other,
    and computes the same bits.

    Attributes:
        count: How many; 1 is one loop over all rows.
        rows: ``owner``: one for each data owner. ``share``: whole cells of every table.
        sync: After each epoch (states are averaged by rows), or in every step
            (gradients are added up).
        max_norm: Largest norm of what a slice changes in a round; 0 bounds nothing.
        sums: ``only``: each rank learns the sum of all and no part (plan ``ddp``).
            ``open``: each rank reads the parts of what it adds up.
        sum_bound: Of ``only``: the largest number; one beyond it is cut, and counted.
        sum_places: Of ``only``: numbers are whole multiples of ``2 ** -sum_places``.
        sum_bits: Of ``only``: how long these whole numbers are.

    Raises:
        MalformedError: ``sums-overflow``.
    """

    __pydantic_config__: ClassVar = _STRICT

    count: Annotated[int, Interval(ge=1, le=MAX_RANKS)] = 1
    rows: Literal["owner", "share"] = "owner"
    sync: Literal["round", "step"] = "round"
    max_norm: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.0
    sums: Literal["open", "only"] = "open"
    sum_bound: Annotated[float, Interval(ge=2.0**-30, le=2.0**30)] = 1.0
    sum_places: Annotated[int, Interval(ge=0, le=60)] = 26
    sum_bits: SumBits = 32

    def __post_init__(self) -> None:
        if self.sums == "only":
            self.encoding.require_fit(self.count)

    @property
    def encoding(self) -> SumEncoding:
        """Of weights and gradients that are added up, with ``sums = "only"``."""
        return SumEncoding(self.sum_bound, self.sum_places, self.sum_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersSettings:
    """``[servers]``: where the agreement's servers of shares are, for the plan ``outsource``.

    Attributes:
        P: ``host:port`` of the server of share P.
        M: Of M's.
        Z: Of Z's.
        redo: Wrong answers in a job after which a step is done again; one more ends it.
        answer_s: How long a server may be silent, or take nothing.
    """

    __pydantic_config__: ClassVar = _STRICT

    P: str = ""
    M: str = ""
    Z: str = ""
    redo: Annotated[int, Interval(ge=0, le=1024)] = 0
    answer_s: Seconds = 60.0

    @property
    def addresses(self) -> dict[Literal["P", "M", "Z"], str]:
        """Of each share's server; empty text where none is named."""
        return {"P": self.P, "M": self.M, "Z": self.Z}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """``[run.advanced]``: what stands here counts and not the job's patience."""

    __pydantic_config__: ClassVar = _STRICT

    lease_s: Seconds | None = None
    brokers_s: Seconds = 20.0
    meet_s: Seconds = 10.0
    wait_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """``[run]``: how a run goes that is no plan's own.

    Attributes:
        patience: How far apart the roles are: it gives the timeouts that are not set.
        work_s: Longest time that one group's training may take.
        gather_s: How long to wait at the start while no further role arrives.
        rejoin_s: How long whoever was lost is waited for; 0 ends the job.
        checkpoint_every: Groups between two checkpoints; 0 is never.
        device: Where recipes compute: ``auto``, ``cpu``, ``cuda``, ``cuda:1``.
    """

    __pydantic_config__: ClassVar = _STRICT

    patience: Patience = "wan"
    work_s: Seconds = 3600.0
    gather_s: Seconds = 120.0
    rejoin_s: Annotated[float, Interval(ge=0, le=7 * 86_400)] = 60.0
    checkpoint_every: Annotated[int, Interval(ge=0, le=MAX_INTEGER)] = 8
    device: Device = "auto"
    advanced: Timeouts = Timeouts()

    @property
    def lease_s(self) -> float:
        """How long a holder has for its cargo."""
        return self.advanced.lease_s or (20.0 if self.patience == "lan" else 60.0)

    @property
    def brokers_s(self) -> float:
        """How long the accelerator waits for all brokers together."""
        return self.advanced.brokers_s

    @property
    def meet_s(self) -> float:
        """How long a holder may take to come after its lease was granted."""
        return self.advanced.meet_s

    @property
    def wait_s(self) -> float:
        """How long a holder is waited for that is missing or fails."""
        return self.advanced.wait_s or (20.0 if self.patience == "lan" else 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Everything that a job sets."""

    training: TrainingSettings = TrainingSettings()
    travel: TravelSettings = TravelSettings()
    run: RunSettings = RunSettings()
    slices: SlicesSettings = SlicesSettings()
    servers: ServersSettings = ServersSettings()
    privacy: PrivateSteps | None = None

    @property
    def visits(self) -> VisitTerms:
        """What of all this decides the visits."""
        return VisitTerms(
            epochs=self.training.epochs,
            evaluate_every=self.training.evaluate_every,
            prepare=self.training.prepare,
            order=self.travel.order,
            mixed=self.travel.mixed,
            buffers=self.travel.buffers,
            buffer_bytes=self.travel.asked_bytes,
        )

    @property
    def shape(self) -> Digest:
        """Digest of what decides which rows are visited when, and the result's bits.

        Made by the accelerator itself: who resumes a job resumes it in its shape.
        """
        return Digest.of(encode(self._shape()))

    @property
    def checkpoint_shape(self) -> Digest:
        """The shape that a checkpoint is bound to.

        Without the number of epochs, where a run with more of them may go on from it.
        """
        plain = self._shape()
        if self.training.keep_state or self.training.continues:
            del plain["epochs"]
        return Digest.of(encode(plain))

    def _shape(self) -> dict[str, object]:
        training, travel, slices = self.training, self.travel, self.slices
        return {
            "batch_rows": training.batch_rows,
            "clip_norm": training.clip_norm,
            "buffer_bytes": travel.asked_bytes,
            "drop_last": training.drop_last,
            "epochs": training.epochs,
            "evaluate_every": training.evaluate_every,
            "parameters": training.parameters,
            "privacy": to_plain(self.privacy),
            "keep": training.keep,
            "measure": training.measure,
            "mixed": travel.mixed,
            "order": travel.order,
            "prepare": training.prepare,
            "seed": training.seed,
            "slices": to_plain(slices),
            "stop_after": training.stop_after,
            "threads": training.threads,
        }


_LIMIT: Final = "a limit of time: it ends or delays work, and changes none of it"
_SERVER: Final = "an address: the session proves whose server is there"
# What is not among the agreed settings, each with why nobody has to agree on it.
NOT_AGREED: Final = {
    "privacy": "the agreement has the same section, which is compared as a whole",
    "training.keep_state": "the agreement has the same name, which is compared",
    "training.continues": "it needs keep_state of the agreement, which is compared",
    "training.parameters": "the agreement has a range of each by its own name, which is compared",
    "travel.buffers": "stands in [travel] of the agreement: `check_cargo` compares it",
    "travel.mixed": "stands in [travel] of the agreement: `check_cargo` compares it",
    "run.patience": _LIMIT,
    "run.work_s": _LIMIT,
    "run.gather_s": _LIMIT,
    "run.rejoin_s": _LIMIT,
    "run.advanced.lease_s": "stands in [travel] of the agreement, as the longest",
    "run.advanced.brokers_s": _LIMIT,
    "run.advanced.meet_s": _LIMIT,
    "run.advanced.wait_s": _LIMIT,
    "servers.P": _SERVER,
    "servers.M": _SERVER,
    "servers.Z": _SERVER,
    "servers.answer_s": _LIMIT,
}


def run_terms(job: str, plan: str, settings: JobSettings) -> RunTerms:
    """What a job sets of what the parties agreed on.

    Args:
        job: Its name.
        plan: Its plan, one that trains.
        settings: All of them.
    """
    values = {name: _setting(settings, dotted) for name, dotted in SETTINGS.items()}
    return RunTerms(
        job=job,
        plan=cast(TrainingPlan, plan),
        parameters=settings.training.parameters,
        privacy=settings.privacy,
        keep_state=settings.training.keep_state,
        continues=settings.training.continues,
        **cast(dict[str, Any], values),
    )


def require_own_run(told: RunTerms, own: RunTerms) -> None:
    """Refuse a run that a party's own job file is not of, whatever ranges were signed.

    Raises:
        JobError: ``another-run``, with the first setting that differs.
    """
    before = encode(own)  # for ``==`` the truth value true is the number 1
    for each in fields(own):
        here, there = getattr(own, each.name), getattr(told, each.name)
        if encode(replace(own, **{each.name: there})) != before:
            setting = SETTINGS.get(each.name, each.name)
            raise JobError(
                "the host's machine starts a run that is not the one in the job file here",
                why=f"{setting} is {here} here, and {there} there",
                code="another-run",
            )


def require_agreed(settings: JobSettings, plan: str, rule: TrainingRule) -> None:
    """Refuse a job that sets what the parties did not agree on (rule O1).

    Raises:
        PolicyError: ``settings-differ``, with the first setting that is not allowed.
    """
    rule.require(run_terms("", plan, settings))


def training_rule_of(settings: JobSettings, plan: str, runs: int) -> TrainingRule:
    """The rule that allows these settings and no others.

    Args:
        settings: Of a job.
        plan: Of the job.
        runs: How often it may be started.
    """
    allowed: dict[str, Any] = {}
    for name, dotted in SETTINGS.items():
        value = _setting(settings, dotted)
        one = isinstance(value, bool | str)
        allowed[name] = (
            (value,) if one else Between(cast(float, value), cast(float, value))
        )
    parameters = {
        name: ParameterRule(values=(value,))
        if isinstance(value, bool | str)
        else ParameterRule(between=Between(value, value))
        for name, value in settings.training.parameters.items()
    }
    return TrainingRule(
        plans=(cast(TrainingPlan, plan),),
        runs=runs,
        parameters=parameters,
        privacy=settings.privacy,
        keep_state=settings.training.keep_state,
        **allowed,
    )


def _setting(settings: JobSettings, name: str) -> bool | int | float | str:
    """A setting by its dotted name, as the agreement has it."""
    if name == "travel.buffer_bytes":
        return settings.travel.asked_bytes
    table, _, field = name.partition(".")
    value: bool | int | float | str = getattr(getattr(settings, table), field)
    # Which one of its devices a machine uses is its own matter.
    return str(value).partition(":")[0] if name == "run.device" else value
