"""The parser of every command, with the arguments that several of them take said once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sealift.errors import UsageError
from sealift.release.files import PASSPHRASE_VARIABLE

Run = Callable[[argparse.Namespace], int | None]


class _Arguments(argparse._ActionsContainer):  # noqa: SLF001 - no public name
    """Of a parser, or under a heading of their own."""

    def add_path(self, *names: str, many: bool = False, **terms: Any) -> None:
        """A file or folder; ``many``: it may be said again."""
        if many:
            terms = {"action": "append", "default": [], **terms}
        self.add_argument(*names, type=Path, **terms)

    def add_file(self, *names: str, **terms: Any) -> None:
        """A file, shown as FILE."""
        self.add_path(*names, metavar="FILE", **terms)

    def add_flag(self, name: str, text: str) -> None:
        """Something that is said or not; ``text`` is its help."""
        self.add_argument(name, action="store_true", help=text)


class ArgumentGroup(_Arguments, argparse._ArgumentGroup):  # noqa: SLF001 - no public name
    """Arguments under a heading of their own."""


class Parser(_Arguments, argparse.ArgumentParser):
    """Reports mistakes as one line, like every other error.

    Optional positional arguments may stand anywhere: argparse alone takes them for missing
    as soon as an option stands before them.

    Args:
        run: The command; its exit code, None for success.
        terms: As argparse takes them.
    """

    _anywhere = False

    def __init__(self, *, run: Run | None = None, **terms: Any) -> None:
        super().__init__(**terms)
        if run is not None:
            self.set_defaults(run=run)

    def add_verbs(self) -> Any:
        """What the verbs of a noun are added to."""
        return self.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add_argument_group(self, *args: Any, **terms: Any) -> ArgumentGroup:
        """Arguments under a heading of their own."""
        group = ArgumentGroup(self, *args, **terms)
        self._action_groups.append(group)
        return group

    def add_json(self) -> None:
        """Add ``--json``."""
        self.add_flag("--json", "print one line of JSON")

    def add_allow(self) -> None:
        """Add ``--allow NAME``, for what is below the floor of an owner's program."""
        from sealift.release.agreement.holes import EXCEPTIONS

        reasons = "; ".join(f"{name}: {why}" for name, why in EXCEPTIONS.items())
        self.add_argument(
            "--allow",
            metavar="NAME",
            action="append",
            choices=list(EXCEPTIONS),
            default=[],
            help=f"allow this exception, which must be named because answering yes is not enough ({reasons}); may be repeated",
        )

    def add_status(self) -> None:
        """Add ``--status``."""
        self.add_path(
            "--status",
            metavar="FOLDER",
            help="write its state here about each second, for `sealift health FOLDER`",
        )

    def add_passphrase(self) -> None:
        """Add ``--passphrase-file``."""
        self.add_file(
            "--passphrase-file",
            help="read the key's passphrase from the first line of FILE; without it the "
            f"variable {PASSPHRASE_VARIABLE} is used, or the terminal asks",
        )

    def add_argument(self, *names: Any, **terms: Any) -> argparse.Action:
        """Note whether there are optional positional arguments."""
        action = super().add_argument(*names, **terms)
        if not action.option_strings and action.nargs in ("?", "*"):
            self._anywhere = True
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; also called by the parser above, for a noun or a verb."""
        if not self._anywhere:
            return super().parse_known_args(args, namespace)
        self._anywhere = False  # which calls this again, for options and for words
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._anywhere = True

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(message, fix=f"`{self.prog} --help` shows the usage")
