"""``sealift try``: test a recipe on random rows, with full tracebacks.

For the author of a recipe, before there is an agreement or data. The recipe runs in the same
sandbox as in a real run, where only the file, line and type of an error leave the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from sealift.attest.level import Level
from sealift.cli.agreement import load_document
from sealift.cli.console import say
from sealift.codec import parse_toml
from sealift.data.schema.alike import demand_alike
from sealift.data.schema.card import schema_of
from sealift.data.schema.document import load_schema, schema_to_plain
from sealift.errors import MalformedError, UsageError, quote_foreign
from sealift.release.agreement.code import (
    JOB_NAME,
    differing_files,
    load_assets,
    measure_assets,
    read_bundle,
)
from sealift.release.agreement.tallies import tally_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sealift.data.schema.schema import Schema
    from sealift.release.agreement import Agreement
    from sealift.train.loop.tasks import Rehearsal


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "try",
        run=run,
        description="Trains a few steps on random rows that fit a schema (for an agreement, "
        "each of its schemas), the last batch with one row only, and then evaluates. It "
        "needs no data and no key, and works before there is an agreement.",
    )
    parser.add_path(
        "agreement",
        nargs="?",
        help="agreement.toml or agreement.json, for its entry and schemas",
    )
    parser.add_path("--bundle", required=True, metavar="DIR", help="the code")
    parser.add_argument("--entry", metavar="FILE", help="the file that defines build()")
    parser.add_path("--schema", metavar="TOML")
    parser.add_path(
        "--form",
        metavar="TOML",
        help="a served model's form: also send the recipe a request",
    )
    parser.add_argument(
        "--drop-last", action="store_true", help="like training.drop_last in the job"
    )
    for name, default in (("rows", 256), ("steps", 20), ("batch-rows", 16)):
        parser.add_argument(f"--{name}", type=_count, default=default, metavar="N")
    parser.add_argument("--threads", type=_count, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_json()


def run(args: argparse.Namespace) -> int:
    """Try the recipe; the exit code.

    Raises:
        JobError: if it fails; its traceback stands on stderr.
        UnavailableError: ``no-sandbox``.
    """
    from sealift.train.output.modelform import load_form
    from sealift.train.worker.messages import TrialOrder
    from sealift.train.worker.trial import try_recipe
    from sealift.travel.settings import TrainingSettings

    files = read_bundle(args.bundle)
    entry, schemas, accept = _subject(args, files)
    form = None if args.form is None else load_form(args.form)
    inputs, outputs = {}, {}
    if form is not None and form.outputs is not None:
        inputs = schema_to_plain(form.inputs)
        outputs = schema_to_plain(form.outputs.schema)
    names = ("seed", "batch_rows", "threads", "drop_last")
    settings = TrainingSettings(
        **{each: getattr(args, each) for each in names},
        parameters=_parameters(args.bundle / JOB_NAME),
    )
    orders = [
        TrialOrder(
            entry=entry,
            bundle=0,
            schema=schema_to_plain(each),
            settings=settings,
            rows=args.rows,
            steps=args.steps,
            inputs=inputs,
            outputs=outputs,
        )
        for each in schemas
    ]
    tried = try_recipe(
        files,
        entry,
        orders,
        text=sys.stderr,
        tell=say,
        accept=accept,
        assets=load_assets(args.bundle, measure_assets(args.bundle)),
    )
    _show(tried[0], as_json=args.json)
    return 0


def _parameters(job: Path) -> dict[str, Any]:
    """What a job beside the recipe gives ``build``.

    Raises:
        MalformedError: ``bad-field``, ``bad-parameter``.
    """
    from sealift.train.job.settings import training_of

    if not job.is_file():
        return {}
    return training_of(parse_toml(job.read_bytes(), source=job.name)).parameters


def _subject(
    args: argparse.Namespace, files: dict[str, bytes]
) -> tuple[str, list[Schema], Sequence[Level]]:
    """Entry, schemas and levels: from an agreement, or as the command line says."""
    if args.agreement is not None:
        agreement = load_document(args.agreement).agreement
        _say_differences(agreement, files)
        entry = args.entry or agreement.code.entry
        return entry, _schemas(args, agreement), agreement.accept
    if args.entry is None or args.schema is None:
        raise UsageError(
            "the recipe's file and schema are missing",
            fix="Name an agreement, or give both --entry and --schema",
        )
    return args.entry, [load_schema(args.schema)], (Level.DEVELOPMENT,)


def _schemas(args: argparse.Namespace, agreement: Agreement) -> list[Schema]:
    """Of every table; tables of several owners may have other bounds."""
    if args.schema is not None:
        return [load_schema(args.schema)]
    demand_alike(agreement.resources)
    found: list[Schema] = []
    for each in agreement.resources:
        if each.part != "model" and (schema := schema_of(each)) not in found:
            found.append(schema)
    if not any(each.part == "train" for each in agreement.resources):
        raise MalformedError(
            "the agreement has no training rows",
            fix="Give one with --schema",
            code="bad-agreement",
        )
    return found


def _say_differences(agreement: Agreement, files: dict[str, bytes]) -> None:
    from sealift.ids import Digest

    digests = {name: Digest.of(content) for name, content in files.items()}
    for name in differing_files(agreement.code.files, digests):
        say(f"{name} differs from the agreed file")


def _show(rehearsal: Rehearsal, *, as_json: bool) -> None:
    facts = _facts(rehearsal)
    if as_json:
        print(json.dumps(facts))
        return
    metrics, sums = facts.pop("metrics", {}), facts.pop("sums", {})
    if counted := facts.pop("counted", []):  # as an agreement lists it
        print(f"{'counted':<11} {', '.join(counted)}")
    for name, form in sums.items():
        words = " ".join(map(quote_foreign, form.split()[:2]))
        print(f"{'sum':<12}{quote_foreign(name)}: {words}")
    # A recipe names its metrics, perhaps as a fact is named: both are shown.
    of_recipe = ((quote_foreign(name), value) for name, value in metrics.items())
    for name, value in (*facts.items(), *of_recipe):
        shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        print(f"{name:<11} {shown}")
    say("the rows were random, so these numbers say nothing about your data")


def _facts(rehearsal: Rehearsal) -> dict[str, Any]:
    from sealift.train.loop.measures import names_of, shown_numbers

    facts: dict[str, Any] = {"sums": rehearsal.sums} if rehearsal.sums else {}
    if counted := [each for each in names_of(rehearsal.metrics) if tally_of(each)]:
        facts["counted"] = counted
    if rehearsal.steps:
        first, last = rehearsal.losses
        facts |= {
            "parameters": rehearsal.parameters,
            "steps": rehearsal.steps,
            "first_loss": first,
            "last_loss": last,
            "step_ms": round(rehearsal.step_s * 1000, 3),
            "metrics": shown_numbers(rehearsal.metrics),
        }
    return facts


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1 << 24:
        raise argparse.ArgumentTypeError("must be from 1 to 16,777,216")
    return number
