"""``sealift try``: run a recipe on synthetic rows, with full tracebacks.

For the person who writes the recipe, before any agreement exists and without anybody's
data. In a real run an error leaves as file, line and type alone.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from typing import TYPE_CHECKING, Any

from sealift.cli.agreement.documents import load_document
from sealift.cli.console import say
from sealift.data.schema.alike import demand_alike
from sealift.data.schema.card import schema_of
from sealift.data.schema.document import load_schema
from sealift.errors import JobError, MalformedError, SealiftError, UsageError
from sealift.release.agreement.code import differing_files, read_bundle

if TYPE_CHECKING:
    from collections.abc import Callable

    from sealift.data.schema.schema import Schema
    from sealift.release.agreement import Agreement
    from sealift.train.loop.rehearsal import Asked, Rehearsal


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "try",
        run=run,
        help="run a recipe on synthetic rows of a schema",
        description="Trains a few steps on random rows that fit a schema, the last batch "
        "with one row alone, then evaluates; on each schema of an agreement. Needs "
        "nobody's data and no key; works before there is an agreement.",
    )
    parser.add_path(
        "agreement",
        nargs="?",
        help="agreement.toml or agreement.json: take entry and schemas from it",
    )
    parser.add_path("--bundle", required=True, metavar="DIR")
    parser.add_argument("--entry", metavar="FILE", help="file that defines build()")
    parser.add_path("--schema", metavar="TOML")
    parser.add_path(
        "--form",
        metavar="TOML",
        help="of the model, if it is to be served: ask it, too",
    )
    parser.add_argument(
        "--drop-last", action="store_true", help="as training.drop_last in the job"
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
    """
    files = read_bundle(args.bundle)
    tried = rehearse_all(args, files, *_subject(args, files))
    _show(tried[0], as_json=args.json)
    return 0


def rehearse_all(
    args: argparse.Namespace, files: dict[str, bytes], entry: str, schemas: list[Schema]
) -> list[Rehearsal]:
    """Try the recipe on each schema.

    Raises:
        JobError: if it fails; its traceback stands on stderr.
    """
    doing = [""]
    try:
        return [_rehearse(args, files, entry, each, doing.append) for each in schemas]
    except SealiftError:
        raise
    # Whatever somebody else's code raises ends here, sys.exit() included.
    except (Exception, SystemExit) as error:
        traceback.print_exception(error)
        raise _failed(error, doing[-1]) from None


def _failed(error: BaseException, doing: str) -> JobError:
    from sealift.train.loop.rehearsal import ONE_ROW

    fix = ""
    if doing == ONE_ROW:
        fix = "A visit may end with one: say drop_last = true in the job's [training]"
    elif isinstance(error, IndexError):
        fix = (
            "Rows were made up by the schema: a column of labels or of places in a "
            "table needs `classes`, their number"
        )
    return JobError(
        f"the recipe failed with {type(error).__name__}{doing and f' at {doing}'}",
        why="see above",
        fix=fix,
        code="recipe-error",
    )


def _rehearse(
    args: argparse.Namespace,
    files: dict[str, bytes],
    entry: str,
    schema: Schema,
    begin: Callable[[str], None],
) -> Rehearsal:
    from sealift.train.loop.recipe import Recipe, let_through
    from sealift.train.loop.rehearsal import rehearse
    from sealift.travel.settings import TrainingSettings

    return rehearse(
        Recipe(files, entry, guard=let_through),
        schema,
        TrainingSettings(
            seed=args.seed,
            batch_rows=args.batch_rows,
            threads=args.threads,
            drop_last=args.drop_last,
        ),
        rows=args.rows,
        steps=args.steps,
        clock=time.perf_counter,
        asked=_asked(args),
        begin=begin,
    )


def _asked(args: argparse.Namespace) -> Asked | None:
    from sealift.train.loop.rehearsal import Asked
    from sealift.train.output.modelform import load_form

    form = None if args.form is None else load_form(args.form)
    if form is None or form.outputs is None:
        return None
    return Asked(form.inputs, form.outputs.schema)


def _subject(
    args: argparse.Namespace, files: dict[str, bytes]
) -> tuple[str, list[Schema]]:
    """Entry and schemas: from an agreement, or as the command line says."""
    if args.agreement is not None:
        agreement = load_document(args.agreement).agreement
        _say_differences(agreement, files)
        entry = args.entry or agreement.code.entry
        return entry, _schemas(args, agreement)
    if args.entry is None or args.schema is None:
        raise UsageError(
            "there is no recipe to try",
            fix="Name an agreement, or both --entry and --schema",
        )
    return args.entry, [load_schema(args.schema)]


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
            fix="Name a schema with --schema",
            code="bad-agreement",
        )
    return found


def _say_differences(agreement: Agreement, files: dict[str, bytes]) -> None:
    from sealift.ids import Digest

    digests = {name: Digest.of(content) for name, content in files.items()}
    for name in differing_files(agreement.code.files, digests):
        say(f"{name} is not the agreed one")


def _show(rehearsal: Rehearsal, *, as_json: bool) -> None:
    facts = _facts(rehearsal)
    if as_json:
        print(json.dumps(facts))
        return
    facts |= facts.pop("metrics", {})
    for name, form in facts.pop("sums", {}).items():
        print(f"{'sum':<12}{name}: {form}")
    for name, value in facts.items():
        shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        print(f"{name:<12}{shown}")
    say("synthetic rows: the numbers say nothing of the data")


def _facts(rehearsal: Rehearsal) -> dict[str, Any]:
    losses = rehearsal.losses
    facts: dict[str, Any] = {"sums": rehearsal.sums} if rehearsal.sums else {}
    if losses:
        facts |= {
            "parameters": rehearsal.parameters,
            "steps": len(losses),
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "step_ms": round(rehearsal.step_s * 1000, 3),
            "metrics": rehearsal.metrics,
        }
    return facts


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1 << 24:
        raise argparse.ArgumentTypeError("must be from 1 to 16777216")
    return number
