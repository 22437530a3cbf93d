"""``job.toml``: what a person writes to run a job, validated strictly.

An unknown field, a wrong type or a value out of range is one clear error with its path.
Nothing here is signed: what counts for the parties stands in the agreement, and the
accelerator holds the job to that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from sealift.attest.level import Level
from sealift.codec import decode, parse_toml
from sealift.errors import MalformedError, PolicyError, UsageError, nearest
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.terms import (
    CodeBundle,
    RecipeKind,
    servers_not_apart,
)
from sealift.release.agreement.training import PrivateSteps, check_parameters
from sealift.release.files import read_whole
from sealift.train.plans import PLANS, PlanName, require_measured_by_all
from sealift.travel.settings import (
    JobSettings,
    RunSettings,
    Seconds,
    ServersSettings,
    SlicesSettings,
    TrainingSettings,
    TravelSettings,
)

Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
]
MAX_JOB_BYTES: Final = 1 << 20
_NOISE: Final = "Write a number, like noise = 1.1; with honest_ranks = 2 beside it the ranks share this noise"
_FIELDS_PAGE: Final = "`sealift train --help` names the page that describes each field"
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ServingTable(_Strict):
    """``[serving]``: how a sealed model is served, with ``plan = "serve"``."""

    model: str = ""
    sealed: str = "."
    listen: str = "127.0.0.1:7420"
    max_batch_rows: int = Field(default=64, ge=1, le=1 << 16)
    max_delay_ms: float = Field(default=2.0, ge=0, le=10_000)
    max_waiting_rows: int = Field(default=1024, ge=1, le=1 << 24)
    max_waiting: int = Field(default=8, ge=1, le=1024)
    max_sessions: int = Field(default=64, ge=1, le=4096)
    max_sessions_each: int = Field(default=32, ge=1, le=4096)
    max_request_bytes: int = Field(default=16 << 20, ge=1, le=1 << 30)
    streams: int = Field(default=4, ge=1, le=1024)
    streams_each: int = Field(default=0, ge=0, le=1024)
    request_s: Seconds = 30.0
    stall_s: Seconds = 10.0
    work_s: Seconds = 60.0
    idle_s: Seconds = 600.0
    brokers_s: Seconds = 60.0
    health_s: Seconds = 60.0
    threads: int = Field(default=1, ge=1, le=1024)


class JobTable(_Strict):
    """The whole file.

    Attributes:
        name: Of the job.
        agreement: Path of the signed agreement, relative to the file.
        plan: ``local``, ``travel``, ``ddp``, ``group``, or ``serve`` a model.
        bundle: Path of the code bundle's folder, relative to the file.
        output: Path of the folder that gets the results, relative to the file.
        orchestrator: ``host:port`` that every role dials.
        recipe: What the agreed recipe must be: a ``graph``, or ``code``; None: either.
        agreed: Ranges that later runs may set; ``sealift host`` alone reads them, and
            what is signed stands in the agreement.
    """

    name: Name
    agreement: str
    plan: PlanName = "travel"
    bundle: str
    output: str = "run"
    orchestrator: str = "127.0.0.1:7410"
    recipe: RecipeKind | None = None
    training: TrainingSettings = TrainingSettings()
    travel: TravelSettings = TravelSettings()
    run: RunSettings = RunSettings()
    slices: SlicesSettings = SlicesSettings()
    servers: ServersSettings = ServersSettings()
    privacy: PrivateSteps | None = None
    serving: ServingTable = ServingTable()
    agreed: dict[str, Any] = {}

    @property
    def settings(self) -> JobSettings:
        """What every part of the job takes."""
        return JobSettings(
            training=self.training,
            travel=self.travel,
            run=self.run,
            slices=self.slices,
            servers=self.servers,
            privacy=self.privacy,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the other roles dial: the orchestrator's, or the server's."""
        serves = PLANS[self.plan].about == "serve"
        return parse_address(self.serving.listen if serves else self.orchestrator)

    def require_recipe(self, agreed: CodeBundle) -> None:
        """Refuse a recipe of another kind than this file names.

        Raises:
            PolicyError: ``recipe-kind``.
        """
        if self.recipe not in (None, agreed.kind):
            raise PolicyError(
                f'the job says recipe = "{self.recipe}", and the recipe is '
                + ("a graph" if agreed.kind == "graph" else "a program"),
                why=f"the agreement names {agreed.entry[:200]!r}",
                code="recipe-kind",
            )


def read_job(path: Path) -> JobTable:
    """Read ``job.toml``; its paths become absolute.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not TOML, or a field does not fit; with its path.
    """
    plain = parse_toml(read_whole(path, MAX_JOB_BYTES), source=path.name)
    job = parse_job(plain, name=path.name)
    folder = path.resolve().parent
    places: dict[str, Any] = {key: str(folder / getattr(job, key)) for key in _PATHS}
    sealed = {"sealed": str(folder / job.serving.sealed)}
    places["serving"] = job.serving.model_copy(update=sealed)
    return job.model_copy(update=places)


_PATHS = ("agreement", "bundle", "output")


def parse_job(plain: dict[str, Any], *, name: str = "job") -> JobTable:
    """Validate a job that was written elsewhere.

    Raises:
        MalformedError: with the path of the first field that does not fit.
    """
    plain = _with_parameters(plain, name)
    try:
        # As JSON: from Python's own values strict tables would take no plain ones.
        return JobTable.model_validate_json(json.dumps(plain, default=_no_field))
    except ValidationError as error:
        found = error.errors()
        first = next((each for each in found if each["type"] in _UNKNOWN), found[0])
        field = ".".join(str(part) for part in first["loc"])
        unknown = first["type"] in _UNKNOWN
        raise MalformedError(
            f"{name} has an unknown field" if unknown else f"{name} is not valid",
            field=field,
            why="" if unknown else first["msg"],
            fix=(unknown and _nearest_field(first["loc"]))
            or (_NOISE if field == "privacy.noise" else _FIELDS_PAGE),
            code="unknown-field" if unknown else "bad-field",
        ) from None
    except (ValueError, RecursionError) as error:  # too many digits, or too deep
        raise MalformedError(
            f"{name} is not valid", why=error, code="bad-field"
        ) from None


def training_of(plain: dict[str, Any]) -> TrainingSettings:
    """``[training]`` and ``[parameters]`` of a job that may lack everything else.

    Raises:
        MalformedError: ``bad-field``, ``bad-parameter``.
    """
    job = {"name": "job", "agreement": "-", "bundle": "-"}
    given = {name: plain[name] for name in ("training", "parameters") if name in plain}
    return parse_job(job | given).training


def _with_parameters(plain: dict[str, Any], name: str) -> dict[str, Any]:
    """``[parameters]`` where every process of training has it.

    Raises:
        MalformedError: ``bad-field``, ``unknown-field``.
    """
    training = plain.get("training", {})
    if "parameters" not in plain and "parameters" not in training:
        return plain
    if not isinstance(training, dict) or "parameters" in training:
        raise MalformedError(
            f"{name} has an unknown field",
            field="training.parameters",
            fix="Write a section [parameters] of its own",
            code="unknown-field",
        )
    given = plain["parameters"]
    if isinstance(given, dict):
        check_parameters(given)
    rest = {key: each for key, each in plain.items() if key != "parameters"}
    return rest | {"training": training | {"parameters": given}}


def _nearest_field(place: tuple[str | int, ...]) -> str:
    """In the table where a field is that is not known."""
    table: Any = JobTable
    for part in place[:-1]:
        table = get_type_hints(table).get(str(part))
        if table is None:
            return ""
    return nearest(str(place[-1]), get_type_hints(table))


def told_settings(raw: bytes) -> JobSettings:
    """What an orchestrator says that a job sets, within the limits of a file.

    Raises:
        MalformedError: for anything else.
    """
    settings = decode(JobSettings, raw)
    try:
        TypeAdapter(JobSettings).validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise MalformedError(
            "the orchestrator's settings are not valid",
            field=".".join(map(str, first["loc"])),
            why=first["msg"],
            code="bad-field",
        ) from None
    return settings


def _no_field(moment: object) -> list[str]:
    """TOML's dates and times; there is no field that a list fits."""
    return [str(moment)]


def parse_address(text: str) -> tuple[str, int]:
    """``host:port``; a host that is an IPv6 address may stand in brackets.

    Raises:
        MalformedError: for anything else.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise MalformedError(
            f"{text[:80]!r} is not an address of the form host:port", code="bad-address"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def check_job(job: JobTable, agreement: VerifiedAgreement) -> None:
    """What a job asks for must be possible under the agreement, before any key is used.

    Raises:
        PolicyError: ``other-purpose``: training under an agreement about serving, or
            the other way round.
        UsageError: code ``buffer-too-small``, if a row does not fit the buffer.
        PolicyError: if it asks for longer leases, more buffers or mixed cargo than
            agreed, or reads what an owner has not signed for; ``recipe-kind``.
    """
    agreement.require_owners_signed()
    plan = PLANS[job.plan]
    agreement.agreement.require_about(plan.about, f"the job's plan is {plan.name}")
    plan.check_terms(job.settings, agreement.agreement)
    require_measured_by_all(job.settings, agreement.agreement)
    job.require_recipe(agreement.agreement.code)
    if any(job.servers.addresses.values()):
        check_servers(job.servers, agreement.agreement)


def check_servers(servers: ServersSettings, agreement: Agreement) -> None:
    """Servers must be those of the agreement, each on a host of its own (rule H10).

    Raises:
        UsageError: code ``servers-missing``.
        PolicyError: code ``servers-not-apart``.
        MalformedError: code ``bad-address``.
    """
    if agreement.servers is None:
        what = "the agreement names no parties that compute with shares"
        raise UsageError(what, code="servers-missing")
    hosts: dict[str, str] = {}
    for share, address in servers.addresses.items():
        if not address:
            what = f"the job has no address for the server of share {share}"
            raise UsageError(what, code="servers-missing")
        host, _port = parse_address(address)
        other = hosts.setdefault(host.strip("[]").lower(), share)
        if other != share and agreement.accept != (Level.DEVELOPMENT,):
            raise servers_not_apart(
                f"the servers of shares {other} and {share} both run on {host}"
            )
