"""``sealift predict``: judge a server, ask its model, write the answer."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sealift.attest.level import Level, protects_nobody
from sealift.cli.console import print_result, say, unlock
from sealift.cli.judging import add_judging_arguments, load_equipped
from sealift.codec import to_plain
from sealift.errors import UsageError, visible

MAX_SECONDS = 7 * 86_400.0
if TYPE_CHECKING:
    from sealift.serve.client import Client
    from sealift.serve.clientpolicy import ClientPolicy


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "predict",
        run=run,
        description="Appraises the server's evidence against the agreement before "
        "anything is sent, shows what it proved, and asks. Input: .npz, .json (arrays "
        "by name) or .csv (a header with names); output: .npz, .json, .csv, or JSON "
        "lines on stdout. What the server's operator sees: who asks, when, and how much.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="where the server listens")
    parser.add_path("input", nargs="?", help="rows: .npz, .json or .csv")
    parser.add_file("--agreement", required=True, help="the signed one")
    parser.add_argument(
        "--owner", metavar="CARD", help="the model owner's card: it must have signed"
    )
    parser.add_argument(
        "--digest", default="", metavar="sha256:...", help="of the agreement, instead"
    )
    parser.add_argument("--model", default="", help="of several, by name")
    parser.add_argument(
        "--level", type=Level, choices=list(Level), action="append", default=[],
        help="take this level only (again for more)",
    )  # fmt: skip
    parser.add_flag("--development", "take development evidence, which protects nobody")
    parser.add_file("--key", help="the client's identity")
    parser.add_file("-o", "--output")
    parser.add_flag("--stream", "generate; a line for each step")
    parser.add_argument(
        "--steps", type=_count, default=0, metavar="N", help="with --stream: most steps"
    )
    parser.add_argument(
        "--timeout", type=_some_seconds, default=60.0, metavar="S",
        help="for each part of an answer; default: 60",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=_seconds, default=10.0, metavar="S",
        help="without --stream: come again for so long while the server is busy; "
        "default: 10",
    )  # fmt: skip
    parser.add_flag("--pad", "hide lengths but for their power of two")
    parser.add_flag("--describe", "show server and form; ask nothing")
    add_judging_arguments(parser)
    parser.add_passphrase()


def run(args: argparse.Namespace) -> int:
    """Judge, ask, write; the exit code."""
    from sealift.cli.model.files import read_columns, require_writable
    from sealift.serve.client import connect
    from sealift.serve.pending import pack_question

    if args.steps and not args.stream:
        raise UsageError("--steps is for generations", fix="Say --stream as well")
    policy = _policy(args)
    form = _form(policy)
    rows = None if args.describe else read_columns(args.input, form.inputs)
    if rows is not None:
        pack_question(rows, form)  # what does not fit is not worth a connection
    require_writable(args.output)
    with connect(args.address, policy, timeout_s=min(args.timeout, 30.0)) as model:
        _show_server(model)
        if args.describe:
            print(json.dumps({**_seen(model), "form": form.to_plain()}))
        elif args.stream:
            _stream(args, model, rows)
        else:
            _predict(args, model, rows)
    return 0


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (found := float(text)) <= MAX_SECONDS:  # nor is it nan
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, up to a week")


def _some_seconds(text: str) -> float:
    if not (found := _seconds(text)):
        raise argparse.ArgumentTypeError("no time at all")
    return found


def _count(text: str) -> int:
    with suppress(ValueError):
        if (found := int(text)) >= 0:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")


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


def _predict(args: argparse.Namespace, model: Client, rows: Any) -> None:
    from sealift.cli.model.files import write_columns

    answer = model.predict(
        rows, timeout_s=args.timeout, patience_s=args.patience, pad=args.pad
    )
    write_columns(args.output, answer)


def _stream(args: argparse.Namespace, model: Client, rows: Any) -> None:
    from sealift.cli.model.files import gather, to_line, write_columns

    steps = model.generate(rows, steps=args.steps, timeout_s=args.timeout, pad=args.pad)
    if args.output is not None:
        write_columns(args.output, gather(steps))
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
        line = "development evidence: whoever runs the server can read what you send"
        say(line)
