"""`sealift`: find the noun, run it, and turn whatever happens into an exit code.

0 success; 2-7 by the error tree; 1 a bug of ours, whose traceback goes to a log file
and never to the screen; 130 and 143 for SIGINT and SIGTERM. stdout is the result,
stderr the talk. A noun's module is loaded only when it is used, so that `sealift key`
does not load torch.

The file of a bug may name paths and source lines, never values of variables: no exception's text,
which may quote a row. Only its owner can read it.

To add a noun: write ``cli/NOUN.py``, or a file in the folder of its group, with
``add_parser(nouns)``, and add its line here. A noun of two words is for a verb of a noun that takes a file as
well (`broker JOB`, `broker backup`).

The commands that can look ahead: their parsers with the flags for it, and who is run.

What looks is loaded when it is asked to.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import resource
import secrets
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import sealift
from sealift.cli.arguments import Parser
from sealift.cli.console import flush_results, forget_stdout, unwritten
from sealift.errors import (
    SealiftError,
    UnavailableError,
    UsageError,
    for_screen,
    visible,
)
from sealift.train.job.caller import Caller
from sealift.train.job.signals import StopRequested, follow_parent, install_stop_signals
from sealift.view.markup import say_bytes

DRY: Final = (
    "only show what would run where, who would see what, and what would be refused"
)
CHECK: Final = "only check data, keys, code, evidence, clock and the connection to the orchestrator"


@dataclass(frozen=True, slots=True)
class Look:
    """What is run in place of a command."""

    module: str
    name: str

    def __call__(self, args: argparse.Namespace) -> int:
        """Look; the exit code."""
        code: int = getattr(
            import_module(f"sealift.cli.ahead.{self.module}"), self.name
        )(args)
        return code


def add_host(nouns: Any) -> None:
    """Add `host`."""
    from sealift.cli.meeting.host import add_parser

    add_parser(nouns)
    _add_look(nouns.choices["host"], "dry_run", DRY, "hosting")


def add_join(nouns: Any) -> None:
    """Add `join` with a job."""
    from sealift.cli.roles.join import add_parser

    add_parser(nouns)
    _add_look(nouns.choices["join"], "dry_run", DRY, "joining")
    _add_look(nouns.choices["join"], "check", CHECK, "joining")


def add_invited(nouns: Any) -> None:
    """Add `join` with an invitation."""
    from sealift.cli.meeting.guest import add_parser

    add_parser(nouns)
    text = "only check data, key, torch, clock and the connection to the host"
    _add_look(nouns.choices["join INVITATION"], "check", text, "inviting")


def add_train(nouns: Any) -> None:
    """Add `train`."""
    from sealift.cli.train import add_parser

    add_parser(nouns)
    _add_look(nouns.choices["train"], "dry_run", DRY, "training")


def _add_look(parser: Any, name: str, text: str, module: str) -> None:
    """Add a flag that has the module's function of its name run."""
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        dest="run",
        action="store_const",
        const=Look(module, name),
        help=text,
    )


def _record_bug(error: Exception) -> str:
    """Write the traceback; the line for the screen."""
    kind = type(error).__name__
    text = "\n".join(_without_text(error))
    for folder in (_state_folder(), Path(tempfile.gettempdir())):
        try:
            place = _write(folder, text)
        except OSError:
            continue
        return f"a bug in sealift: {kind}. Please report it with {place} [bug]"
    return f"a bug in sealift: {kind}; its traceback could not be written [bug]"


def _without_text(error: BaseException) -> list[str]:
    """The errors that led here, the last one first: types and places."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    return [
        f"{type(each).__name__}\nTraceback (most recent call last):\n"
        + "".join(traceback.format_tb(each.__traceback__))
        for each in chain
    ]


def _state_folder() -> Path:
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root, "sealift")


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"bug-{secrets.token_hex(6)}.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path


NOUNS: Final[dict[str, str]] = {
    "accelerator": "run the process that trains on this host's device",
    "agreement": "draft, show, sign and verify an agreement; veto, cancel or leave it",
    "attest": "collect attestation evidence, and verify it step by step",
    "audit": "verify and show a broker's log of key releases and refusals",
    "broker": "release this owner's keys as the agreement allows",
    "broker backup": "copy a broker's vault and log, even while the broker runs",
    "broker restore": "restore a copy, unless others have seen a later state",
    "broker upgrade": "upgrade a vault to this version's format, after making a copy",
    "completion": "print a script with which a shell completes these commands",
    "data": "draft a schema, seal a table, inspect a sealed file",
    "demo": "train one model for three parties on this machine, with real data",
    "doctor": "show what limits this machine, and what to do about it",
    "explain": "explain the name in brackets at the end of an error, and what to do",
    "health": "serve a role's metrics and health over HTTP, from a process without keys",
    "host": "invite parties to a meeting, sign with them, train, and get the model",
    "join INVITATION": "join a meeting with your own table, sign, and take part in the training",
    "join": "take part in a job with your sealed data",
    "model": "show the card of a model's file; seal a model, so that it can be served",
    "key": "create, back up and restore an identity key",
    "orchestrator": "coordinate a job: connect its parties, renew leases, report progress",
    "output": "approve the release of a run's model, or open the model as its owner",
    "predict": "predict with a model's file here, or with a server that is verified first",
    "privacy": "plan the noise that a privacy budget needs; show what was spent",
    "receipt": "verify the receipt of a run, or of visits",
    "recipe": "show what a graph recipe computes; convert a recipe to a graph",
    "resume": "continue a job from its last checkpoint",
    "share-server": "compute on secret shares; a single share reveals nothing",
    "serve": "serve a sealed model from an attested accelerator",
    "train": "run a job: orchestrator and accelerator on this machine, or all of it",
    "try": "test a recipe on random rows that fit a schema",
    "view": "show a run on a live page, in a browser on this machine",
}
_ELSEWHERE: Final = {
    "accelerator": "sealift.cli.roles.accelerator",
    "broker": "sealift.cli.roles.broker",
    "broker backup": "sealift.cli.roles.broker:add_backup",
    "broker restore": "sealift.cli.roles.broker:add_restore",
    "broker upgrade": "sealift.cli.roles.broker:add_upgrade",
    "demo": "sealift.demo.command",
    "host": "sealift.cli.main:add_host",
    "join INVITATION": "sealift.cli.main:add_invited",
    "join": "sealift.cli.main:add_join",
    "orchestrator": "sealift.cli.roles.orchestrator",
    "output": "sealift.cli.model.output",
    "predict": "sealift.cli.model.predict",
    "resume": "sealift.cli.train:add_resume",
    "serve": "sealift.cli.roles.serve",
    "share-server": "sealift.cli.roles.shareserver",
    "train": "sealift.cli.main:add_train",
    "try": "sealift.cli.train.rehearse",
}

_NEEDS_TORCH: Final = (
    "accelerator", "demo", "host", "resume", "serve", "share-server", "train", "try",
)  # fmt: skip


def parser_adder(noun: str) -> Callable[[Any], None]:
    """Load the module that a noun lives in; what adds its parser."""
    home = _ELSEWHERE.get(noun, f"sealift.cli.{noun}")
    module, _, function = home.partition(":")
    adder: Callable[[Any], None] = getattr(
        importlib.import_module(module), function or "add_parser"
    )
    return adder


def _is_invitation(word: str) -> bool:
    """Whether it is an invitation, a file with one, or standard input."""
    beginning = "sealift-invitation-"
    if word.startswith(beginning) or word in {"-", "INVITATION"}:  # or before --help
        return True
    try:
        with open(word, encoding="ascii") as file:
            # Behind its party's name, as a host prints it; what comes later is not looked at.
            return beginning in file.read(256)
    except (OSError, ValueError):
        return False


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command line, with a noun of two words as one."""
    both = " ".join(words[:2])
    data = [each for each in words[1:3] if not each.startswith("-")]  # a job has none
    invited = any(map(_is_invitation, words[1:2])) or len(data) > 1
    if words[:1] == ["join"] and invited:
        return ["join INVITATION", *words[1:]]
    return [both, *words[2:]] if both in NOUNS and len(words) > 1 else list(words)


EXIT_BUG = 1
EXIT_PIPE = 128 + signal.SIGPIPE
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    words = joined(sys.argv[1:] if argv is None else argv)
    return run_guarded(lambda: _run(words), words[:1])


def run_guarded(run: Callable[[], int], noun: Sequence[str] = ()) -> int:
    """Run a command's body, and turn whatever happens into an exit code and one line.

    Args:
        run: The body; it returns the exit code of success.
        noun: The command's noun, for the line that says which extra is missing.
    """
    install_stop_signals()
    followed = follow_parent()
    Caller.attend()
    try:
        code = run()
        flush_results()
        return code
    except SystemExit as leaving:  # after --help; or of a command that this one ran
        ended = leaving.code or 0
        return ended if isinstance(ended, int) else EXIT_BUG
    except SealiftError as error:
        return _report(error)
    except StopRequested as stop:
        if not followed:  # whoever started us says it
            _say(f"stopped by {stop}")
        return stop.exit_code
    except BrokenPipeError:
        forget_stdout()
        return EXIT_PIPE
    except MemoryError as error:
        return _report(_out_of_memory("".join(noun), error))
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return _report(_without_torch("".join(noun)))
        if isinstance(error, OSError) and error.errno in FULL:
            return _report(unwritten(error))  # of a print: files are written elsewhere
        _say(_record_bug(error))
        return EXIT_BUG


def _out_of_memory(noun: str, error: MemoryError) -> UnavailableError:
    """Which process it was, what it had and asked for, and what there was for it."""
    from sealift.data.schedule.memory import free_memory_bytes

    had = say_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    with suppress(OSError, ValueError):  # of a machine that does not say
        had = f"{had}, and {say_bytes(free_memory_bytes())} are free on this machine"
    return UnavailableError(
        f"the process sealift {noun}".rstrip() + " ran out of memory",
        why=f"{error}; it had {had}" if str(error) else f"it had {had}",
        fix="Free memory, or use a smaller model, smaller batches or buffers; then start "
        "the same command again",
        code="no-memory",
    )


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser: all nouns by name, the one that ``words`` ask for in full."""
    parser = Parser(
        prog="sealift",
        description="Train one model on the sealed data of several parties.",
        epilog="Each error ends with a name in brackets; `sealift explain NAME` explains it.",
    )
    parser.add_argument(
        "--version", action="version", version=f"sealift {sealift.__version__}"
    )
    nouns = parser.add_subparsers(dest="noun", required=True, metavar="NOUN")
    for noun, summary in NOUNS.items():
        if words[:1] == [noun]:
            parser_adder(noun)(nouns)
        else:
            nouns.add_parser(noun, help=summary)
    return parser


def require_join_form(words: Sequence[str]) -> None:
    """Explain how an invited party joins, where neither form of `join` was typed.

    Raises:
        UsageError: ``usage``.
    """
    noun, *rest = words or [""]
    data = [each for each in rest if not each.startswith("-")]
    if noun == "join INVITATION" and len(data) > 1:
        if _is_invitation(data[0]) or not _is_invitation(data[1]):
            return
        why = "the table is named before the invitation"
    elif (
        noun == "join"
        and len(data) == len(rest)
        and not "".join(data).endswith(".toml")
    ):
        why = f"{data[0]} is not an invitation" if data else "no file is named"
    else:
        return
    raise UsageError(
        "`sealift join` needs the file with your invitation, then the file with your table",
        why=why,
        fix="Save the line that the host sent you in a file, then run: sealift join "
        "INVITATION DATA. With a signed agreement and a job of your own, see: sealift join "
        "--help",
    )


def _run(words: Sequence[str]) -> int:
    require_join_form(words)
    args = build_parser(words).parse_args(words)
    # Here, not in a process that it starts: there it would be that role's failure.
    needed = args.noun in _NEEDS_TORCH and not isinstance(args.run, Look)
    if needed and importlib.util.find_spec("torch") is None:
        raise _without_torch(args.noun)
    args.ended = _nobody_asks
    try:
        code: int | None = args.run(args)
    except SealiftError as error:
        args.ended(error.code, str(error))
        raise
    except StopRequested:
        args.ended("stopped", "")
        raise
    args.ended("finished", "")
    return code or 0


def _nobody_asks(outcome: str, line: str) -> None:
    """Of a command that keeps no journal."""


def _without_torch(noun: str) -> UnavailableError:
    extra = "demo" if noun == "demo" else "train"
    return UnavailableError(
        f"`sealift {noun}` needs torch, which is not installed",
        fix=f"In Sealift's folder, run: pip install '.[{extra}]'",
        code="extra-missing",
    )


def _report(error: SealiftError) -> int:
    Caller.tell("error", line=str(error), code=error.code)
    for problem in getattr(error, "problems", ()):
        _say(problem)
    _say(f"{error} [{error.code}]")
    return error.exit_code


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may be listening; the exit code still says it
        shown = for_screen(f"sealift: {visible(line)}", sys.stderr)
        print(shown, file=sys.stderr, flush=True)
