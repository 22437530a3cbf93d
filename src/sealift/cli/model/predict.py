"""``sealift predict``: ask a model's file here, or a server that was judged first."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift.attest.level import Level, protects_nobody
from sealift.cli.console import print_result, say, unlock
from sealift.cli.data import add_source_options, source_options
from sealift.cli.judging import add_judging_arguments, load_equipped
from sealift.codec import to_plain
from sealift.errors import JobError, UsageError, visible
from sealift.meet.folder import BUNDLES
from sealift.release.files import read_whole

MAX_SECONDS = 7 * 86_400.0
MAX_MODEL_BYTES = 1 << 40
if TYPE_CHECKING:
    from sealift.serve.client import Client
    from sealift.serve.clientpolicy import ClientPolicy
    from sealift.serve.rowfiles import Columns


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "predict",
        run=run,
        description="With a model.safetensors of a run it predicts on this machine, in the sandbox, "
        "from any table that `sealift data seal` reads; nothing has to be sealed, and labels may be "
        "missing. It needs the recipe that trained the model (--bundle). With HOST:PORT it "
        "verifies the server's evidence against the agreement, shows the result, and "
        "only then sends the input: .npz, .json (an array for each name), or .csv or .tsv, which "
        "are read as `sealift data seal` reads them. Output: .npz, .json, .csv, or JSON lines on standard output. The "
        "server's operator sees which client sends how much, and when.",
    )
    parser.add_argument(
        "address",
        metavar="MODEL|HOST:PORT",
        help="a model's file, or where a server listens",
    )
    parser.add_path(
        "input", nargs="?", help="rows; for a server: .npz, .json, .csv or .tsv"
    )
    add_source_options(parser)
    parser.add_path(
        "--bundle",
        metavar="DIR",
        help="the recipe that trained the model; default: recipe, or graph, beside the model",
    )
    parser.add_file("--agreement", help="the signed agreement; needed for a server")
    parser.add_argument(
        "--owner",
        metavar="CARD",
        help="the model owner's card, whose key must have signed",
    )
    parser.add_argument(
        "--digest",
        default="",
        metavar="sha256:...",
        help="instead: the agreement's digest",
    )
    parser.add_argument(
        "--model", default="", help="the model's name, if there are several"
    )
    parser.add_argument(
        "--level", type=Level, choices=list(Level), action="append", default=[],
        help="accept this level only; may be repeated",
    )  # fmt: skip
    parser.add_flag(
        "--development", "accept development evidence, which protects nobody"
    )
    parser.add_file("--key", help="your identity key")
    parser.add_file("-o", "--output", help="default: standard output")
    parser.add_argument(
        "--keep", metavar="COLUMN", action="append", default=[],
        help="copy this column of the table, such as an identifier, to the beginning of the "
        "output; may be repeated. It is not sent to a server",
    )  # fmt: skip
    parser.add_flag("--stream", "generate, and print a line for each step")
    parser.add_argument(
        "--steps",
        type=_count,
        default=0,
        metavar="N",
        help="with --stream: at most N steps",
    )
    parser.add_argument(
        "--timeout", type=_some_seconds, default=60.0, metavar="S",
        help="seconds to wait for each part of an answer; default: 60",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=_seconds, default=10.0, metavar="S",
        help="without --stream: retry for so many seconds if the server is busy; default: 10",
    )  # fmt: skip
    parser.add_flag(
        "--pad", "pad input, so that only the power of two of its length is visible"
    )
    parser.add_flag(
        "--describe", "show the server and the model's form, and send nothing"
    )
    add_judging_arguments(parser)
    parser.add_passphrase()


def run(args: argparse.Namespace) -> int:
    """Judge, ask, write; the exit code."""
    if Path(args.address).is_file() or args.address.endswith(".safetensors"):
        return _predict_here(args, Path(args.address))
    if args.agreement is None:
        raise UsageError(
            f"there is no model's file {args.address}, and for a server the agreement is missing",
            fix="Name a model.safetensors, or add --agreement FILE to verify the server",
        )
    from sealift.data.schema.owntable import AS_IT_LOOKS, own_table_of
    from sealift.serve.client import connect
    from sealift.serve.pending import pack_question
    from sealift.serve.rowfiles import (
        read_columns,
        read_kept,
        require_writable,
        with_known_cells,
    )

    if args.steps and not args.stream:
        raise UsageError("--steps needs --stream", fix="Add --stream")
    if args.keep and args.stream:
        raise UsageError("--keep cannot be used with --stream")
    policy = _policy(args)
    form = _form(policy)
    rows, kept = None, {}
    if not args.describe:
        own = (
            AS_IT_LOOKS if args.input is None else own_table_of(args.input, args.table)
        )
        inputs = with_known_cells(form.inputs, policy.agreement.agreement.resources)
        rows = read_columns(args.input, inputs, own)
        kept = read_kept(args.input, args.keep, own)
    if rows is not None:
        pack_question(rows, form)  # refuse wrong input before connecting
    require_writable(args.output)
    with connect(
        args.address,
        policy,
        timeout_s=min(args.timeout, 30.0),
        patience_s=0.0 if args.stream else args.patience,
    ) as model:
        _show_server(model)
        if args.describe:
            print(json.dumps({**_seen(model), "form": form.to_plain()}))
        elif args.stream:
            _stream(args, model, rows)
        else:
            _predict(args, model, rows, kept)
    return 0


def _predict_here(args: argparse.Namespace, path: Path) -> int:
    """Predict from a model's file; the exit code."""
    from sealift.data.schema.document import schema_from_plain
    from sealift.serve.modelworker import predict_table
    from sealift.serve.rowfiles import beside, read_inputs, read_kept, require_writable
    from sealift.train.output.modelfacts import read_facts

    facts = read_facts(path)
    schema = schema_from_plain(facts.schema, source=str(path))
    if facts.parameters is None:
        raise UsageError(
            f"{path} does not say which parameters its recipe was built with",
            fix="Put receipt.json into the run's folder, then open it again with `sealift output open`",
        )
    if args.input is None:
        raise UsageError("the input rows are missing", fix="Name a file with rows")
    require_writable(args.output)
    options = source_options(args, str(args.input))
    columns, inputs = read_inputs(args.input, schema, options)
    kept = read_kept(args.input, args.keep, options.own)
    there = {each.name for each in inputs.fields}
    if absent := [each.name for each in schema.fields if each.name not in there]:
        say(f"{args.input.name} has no {', '.join(absent)}: predicting without them")
    try:
        found = predict_table(
            facts,
            read_whole(path, MAX_MODEL_BYTES),
            args.bundle or path.parent / BUNDLES[facts.code.kind],
            columns,
            inputs,
            text=sys.stderr,
            tell=say,
        )
    except JobError as error:
        if absent:
            error.fix = f"The recipe may need {', '.join(absent)}, which {args.input.name} does not have"
        raise
    _give(args.output, beside(kept, found))
    return 0


def _give(path: Path | None, answer: Columns) -> None:
    """Write an answer to a file, or print it as one line of JSON."""
    from sealift.serve.rowfiles import to_line, write_columns

    if path is None:
        print_result(to_line(answer))
    else:
        write_columns(path, answer)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) <= MAX_SECONDS:  # false for nan, too
            return seconds
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of seconds up to a week"
    )


def _some_seconds(text: str) -> float:
    if not (seconds := _seconds(text)):
        raise argparse.ArgumentTypeError("the time must be above 0 s")
    return seconds


def _count(text: str) -> int:
    with suppress(ValueError):
        if (count := int(text)) >= 0:
            return count
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")


def _policy(args: argparse.Namespace) -> ClientPolicy:
    from sealift.serve.clientpolicy import ClientPolicy, require_known
    from sealift.train.output.modelform import choose_model

    verified = load_equipped(args)
    require_known(verified, choose_model(verified, args.model), args.owner, args.digest)
    identity = None
    if args.key is not None:
        identity = unlock(args, args.key)
    return ClientPolicy(
        agreement=verified,
        model=args.model,
        development=args.development,
        levels=tuple(args.level),
        identity=identity,
    )


def _form(policy: ClientPolicy) -> Any:
    from sealift.train.output.modelform import form_of

    return form_of(policy.resource)


def _predict(args: argparse.Namespace, model: Client, rows: Any, kept: Columns) -> None:
    from sealift.serve.rowfiles import beside

    answer = model.predict(
        rows, timeout_s=args.timeout, patience_s=args.patience, pad=args.pad
    )
    _give(args.output, beside(kept, answer))


def _stream(args: argparse.Namespace, model: Client, rows: Any) -> None:
    from sealift.serve.rowfiles import gather, to_line

    steps = model.generate(rows, steps=args.steps, timeout_s=args.timeout, pad=args.pad)
    if args.output is not None:
        _give(args.output, gather(steps))
        return
    for step in steps:
        print_result(to_line(step))


def _seen(model: Client) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(model.seen)
    return plain


def _show_server(model: Client) -> None:
    """Before anything is asked."""
    seen = model.seen
    facts = {
        "level": seen.level,
        "code": seen.code,
        "agreement": seen.agreement,
        "model": f"{seen.model}, {seen.content}",
        "sandbox": seen.sandbox,
    }
    for name, value in facts.items():
        say(f"{name:<10} {visible(str(value))}")
    if protects_nobody(seen.level):
        say("level development: whoever runs the server can read what you send")
