"""What a host declares, from a recipe's folder, and the invitations that it sends."""

from __future__ import annotations

import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import Level
from sealift.codec import parse_toml
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.schema.document import load_schema, schema_to_plain
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError, UsageError
from sealift.events import wall_clock
from sealift.ids import check_name
from sealift.meet.folder import BUNDLES
from sealift.meet.invitation import MEETING_BYTES, Invitation
from sealift.meet.messages import MAX_FILES_BYTES
from sealift.meet.packages import require_versions
from sealift.meet.terms import Declaration, proposed_agreement
from sealift.release.agreement.code import (
    load_assets,
    measure_assets,
    measure_bundle,
    read_bundle,
)
from sealift.release.agreement.resources import OutputRule, TravelRule
from sealift.release.agreement.sums import FEWEST_RANKS
from sealift.release.agreement.terms import GRAPH_ENTRY, RecipeKind
from sealift.release.agreement.training import TrainingRule
from sealift.release.agreement.written import widen
from sealift.train.job.settings import JobTable, parse_address, parse_job
from sealift.train.loop.measures import names_of
from sealift.train.loop.tasks import LOSS, Rehearsal
from sealift.train.plans import PLANS
from sealift.train.worker import trial
from sealift.train.worker.messages import TrialOrder
from sealift.travel.settings import JobSettings, TrainingSettings, training_rule_of

DAY_S: Final = 86_400
LEASE_S: Final = 120.0
AWAY_S: Final = 600  # time for a person to start a stopped machine again
_FEWEST_VISITS: Final = 100
_CUTS: Final = (
    100  # visits of one pass, if the job limits a buffer: no table is known yet
)
_ROWS: Final = 16  # at least so many of each owner, and behind each number that leaves
_OWN: Final = (
    "name", "agreement", "bundle", "output", "orchestrator", "plan",
)  # fmt: skip
_SUMS: Final = ("sums", "sum_bound", "sum_places", "sum_bits")  # of [slices]
# What a meeting's job has where its author says nothing.
_USUAL: Final[Mapping[str, Mapping[str, float]]] = {
    "training": {"epochs": 10},
    "run": {"gather_s": AWAY_S, "rejoin_s": AWAY_S},
}


def read_recipe(folder: Path) -> tuple[dict[str, bytes], Schema]:
    """What must be there before anybody is invited.

    Raises:
        UnavailableError, MalformedError: it is not, or is no recipe; a package that its
            ``requirements.txt`` names is missing here.
    """
    files = read_bundle(folder)
    if (size := sum(map(len, files.values()))) > MAX_FILES_BYTES:
        raise MalformedError(
            f"the files in {folder} have {size:,} bytes",
            why=f"a recipe may have at most {MAX_FILES_BYTES:,} bytes",
            code="bad-meeting",
        )
    require_versions(files)
    return files, load_schema(folder / "schema.toml")


def job_of(folder: Path, names: Sequence[str], address: str) -> JobTable:
    """The job, as the recipe's folder says it.

    Raises:
        MalformedError: if a field of its job.toml does not fit.
    """
    job = job_text(folder, folder.resolve().name, len(names), address)
    return parse_job(parse_toml(job.encode(), source="job.toml"))


def trial_order(schema: Schema, training: TrainingSettings, steps: int) -> TrialOrder:
    """So many steps with a host's recipe, on random rows."""
    return TrialOrder(
        entry="recipe.py",
        bundle=0,
        schema=schema_to_plain(schema),
        settings=training,
        rows=training.batch_rows * steps,
        steps=steps,
        inputs={},
        outputs={},
    )


def try_recipe(
    folder: Path,
    files: dict[str, bytes],
    schema: Schema,
    training: TrainingSettings,
    *,
    steps: int,
    tell: Callable[[str], None],
) -> Rehearsal:
    """Make steps with the recipe in a folder, in its sandbox, on random rows.

    Raises:
        JobError: as `sealift try`, which shows the traceback.
    """
    order = trial_order(schema, training, steps)
    (tried,) = trial.try_recipe(
        files,
        order.entry,
        [order],
        text=sys.stderr,
        tell=tell,
        assets=load_assets(folder, measure_assets(folder)),
    )
    return tried


def measures_of(tried: Rehearsal) -> tuple[str, ...]:
    """Names of what a meeting's agreement lets out: the loss, and what ``evaluate`` returned.

    Raises:
        JobError: code ``wrong-measure``.
    """
    return (LOSS, *(each for each in names_of(tried.metrics) if each != LOSS))


def demand_dialable(address: str) -> None:
    """Demand an address that leads each party to this machine.

    Raises:
        UsageError: ``no-address``, or it is no address.
    """
    host, port = parse_address(address)
    if host.strip("[]") in ("", "0.0.0.0", "::"):  # noqa: S104 - compared
        raise UsageError(
            f"no party can connect to {address}",
            why="it means every address of this machine, and the invitations name one",
            fix="Add --address with the name or address at which the parties reach this "
            f"machine, like --address host.example:{port}",
            code="no-address",
        )


def invitations_for(
    identity: Identity, names: Sequence[str], *, address: str, days: int
) -> list[Invitation]:
    """An invitation for each of these parties, to a meeting of its own.

    Args:
        identity: The host's.
        names: The parties'.
        address: Where they reach the host, ``HOST:PORT``.
        days: After so many from now no key is released.
    """
    meeting = secrets.token_bytes(MEETING_BYTES)
    return [
        Invitation(
            meeting=meeting,
            name=name,
            host=identity.public_key,
            secret=SecretKey.generate(),
            expires_s=int(wall_clock()) + days * DAY_S,
            addresses=(address,),
        )
        for name in names
    ]


def declaration_of(
    folder: Path,
    invited: Sequence[Invitation],
    identity: Identity,
    metrics: tuple[str, ...],
    *,
    job: str = "",
    graph: Path | None = None,
) -> tuple[Declaration, dict[str, bytes]]:
    """What the recipe's folder says, and the files that the parties get.

    Args:
        folder: The recipe's.
        invited: The parties' invitations.
        identity: The host's.
        metrics: What may leave of what is measured; see ``measures_of``.
        job: The job that all have signed, if they have; else the folder's is declared.
        graph: The folder with the recipe as a graph; None: its program is declared.

    Raises:
        SealiftError: the first thing in it that does not fit.
    """
    files, schema = read_recipe(folder)
    offered, entry = folder, "recipe.py"
    if graph is not None:
        files, offered, entry = read_bundle(graph), graph, GRAPH_ENTRY
    assets = load_assets(offered, measure_assets(offered))
    digests = {each.name: each.digest for each in assets}
    first = invited[0]
    guests = tuple(each.name for each in invited)
    name = folder.resolve().name
    code = measure_bundle(files, entry, digests)
    if not job:
        job = job_text(folder, name, len(guests), first.addresses[0], kind=code.kind)
    parsed = parse_job(parse_toml(job.encode(), source="job.toml"))
    parsed.require_recipe(code)
    rule = training_rule_of(parsed.settings, parsed.plan, runs=1)
    rule = widen(rule, parsed.agreed)
    declaration = Declaration(
        meeting=first.meeting,
        name=check_name(name, what="the recipe's folder's name"),
        host=identity.card,
        guests=guests,
        code=code,
        assets={each.name: each.size for each in assets},
        job=job,
        schema=schema_to_plain(schema),
        accept=(Level.DEVELOPMENT,),
        output=replace(
            _usual_output(len(guests)),
            metrics=() if rule.privacy else metrics,
            baseline_alone=rule.privacy is None,
            max_visits=_visits_for(parsed.settings, rule),
        ),
        travel=TravelRule(1, LEASE_S),
        training=rule,
        rows_at_home=True,
        not_after=first.expires_s,
    )
    # No owner is asked about a job that the agreement would not allow.
    PLANS[parsed.plan].check_terms(parsed.settings, proposed_agreement(declaration, ()))
    return declaration, files


def _visits_for(settings: JobSettings, rule: TrainingRule) -> int:
    """How often a meeting's runs may use an owner's rows: twice what all of them need.

    So a run that is cut off and resumed repeats its rounds and still ends with a model.
    """
    often = rule.evaluate_every.min or min(1, rule.evaluate_every.max)
    most = replace(
        settings.visits,
        epochs=int(rule.epochs.max),
        evaluate_every=int(often),
        prepare=True in rule.prepare,
    )
    passes = Counter(purpose for purpose, _ in most.passes())
    cuts = _CUTS if settings.travel.asked_bytes or rule.buffer_bytes.max else 1
    needed = rule.runs * cuts * max(passes.values(), default=0)
    return max(_FEWEST_VISITS, 2 * needed)


def job_text(
    folder: Path,
    name: str,
    guests: int,
    address: str,
    number: int = 1,
    *,
    kind: RecipeKind | None = None,
    continues: str = "",
    is_last: bool = False,
) -> str:
    """The job file that all have; RECIPE/job.toml may say a part of it.

    Args:
        folder: RECIPE.
        name: Of the meeting.
        guests: How many parties were invited.
        address: Of the orchestrator.
        number: Of the run; each has a name and a folder of its own.
        kind: What the recipe is, where the folder's job does not say it; None is not told.
        continues: The job whose last checkpoint it goes on from, if it does.
        is_last: No run can follow, so that it keeps no state.

    Raises:
        MalformedError: if a field does not fit.
    """
    given = folder / "job.toml"
    text = given.read_text("utf-8") if given.is_file() else ""
    plain = parse_toml(text.encode(), source="job.toml")
    own: list[str] = [each for each in _OWN if each in plain]
    if isinstance(slices := plain.get("slices", {}), dict):
        own += [f"slices.{each}" for each in slices if each not in _SUMS]
    if own:
        raise MalformedError(
            f"{given} sets {own[0]}",
            why="`sealift host` sets it itself",
            fix="Remove it from that file",
            code="bad-field",
        )
    for table, usual in _USUAL.items():
        if isinstance(own := plain.get(table, {}), dict):
            missing = {key: each for key, each in usual.items() if key not in own}
            text = _filled(text, table, missing, is_there=table in plain)
    training = plain.get("training")
    if isinstance(training, dict) and "continues" in training:
        raise MalformedError(
            f"{given} sets training.continues",
            fix="Remove that line: sealift host sets it if a run may continue another",
            code="bad-field",
        )
    suffix = f"-{number}" if number > 1 else ""
    bundle = BUNDLES["graph" if kind == "graph" else "code"]
    job = (
        f'name = "{name}{suffix}"\nagreement = "agreement.json"\nbundle = "{bundle}"\n'
        f'output = "run{suffix}"\norchestrator = "{address}"\nplan = "ddp"\n'
    )
    if kind is not None and "recipe" not in plain:
        job += f'recipe = "{kind}"\n'
    if is_last:
        text = re.sub(r"(?m)^([ \t]*keep_state[ \t]*=[ \t]*)true\b", r"\1false", text)
    if continues:
        text = _filled(text, "training", {"continues": f'"{continues}"'}, is_there=True)
    job += f"\n{text}\n"
    job = _filled(job, "slices", _ranks(plain, guests), is_there="slices" in plain)
    read = parse_job(parse_toml(job.encode(), source="job.toml"), name="job.toml")
    kept = read.training.keep_state and is_last
    _require_section(given, "slices", found=read.slices.count == guests)
    there = not kept and read.training.continues == continues
    _require_section(given, "training", found=there)
    return job


def _ranks(plain: Mapping[str, Any], guests: int) -> dict[str, float | str]:
    """What of ``[slices]`` follows from who is invited and from the rest of the job."""
    found: dict[str, float | str] = {"count": guests, "rows": '"owner"'}
    slices, privacy = plain.get("slices", {}), plain.get("privacy")
    if guests >= FEWEST_RANKS and isinstance(slices, dict) and "sums" not in slices:
        found["sums"] = '"only"'
    if isinstance(privacy, dict) and privacy.get("honest_ranks"):
        found["sync"] = '"step"'  # of a round no part of the noise can be shared
    return found


def _require_section(given: Path, table: str, *, found: bool) -> None:
    """Nothing can be written into a table in braces."""
    if not found:
        raise MalformedError(
            f"{given} has {table} in one line",
            fix=f"Write it as a section, with [{table}] in a line of its own",
            code="bad-field",
        )


def _filled(
    text: str, table: str, values: Mapping[str, float | str], *, is_there: bool
) -> str:
    """A job's text with these keys in a table; the rest stays as its author wrote it."""
    lines = "".join(f"{key} = {value}\n" for key, value in values.items())
    if not lines:
        return text
    if not is_there:
        return f"{text}\n[{table}]\n{lines}"
    header = re.search(rf"(?m)^[ \t]*\[[ \t]*{table}[ \t]*\][^\n]*$", text)
    if header is None:  # written in braces, in one line
        return text
    return (
        f"{text[: header.end()]}\n{lines}{text[header.end() :].removeprefix(chr(10))}"
    )


def _usual_output(guests: int) -> OutputRule:
    """What leaves, of every meeting."""
    return OutputRule(
        metrics=(),
        digits=3,
        values_per_visit=16,
        metric_rows=_ROWS,
        audience="everyone",
        min_visits=1,
        max_visits=_FEWEST_VISITS,
        min_holders=guests,
        min_rows=_ROWS * guests,
        min_owner_rows=_ROWS,
        baseline_alone=True,
        recipe_text=False,
    )
