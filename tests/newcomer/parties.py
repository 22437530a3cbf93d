"""Folders and terminals of a host and owners, as newcomers have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.sim.ownaddress import own_address
from tests.sim.typed import Typed

SIGN = (("Sign?", "y"), ("compare the words with", "y"))
YES = (("Compare?", "y"), *SIGN)


class Newcomers:
    """A folder each, and all that was typed there."""

    def __init__(self, folder: Path, owners: Sequence[str], recipe: str) -> None:
        self.folder = folder
        self.owners = owners
        self.home = folder / "host"
        self.recipe = self.home / recipe
        for name in owners:
            (folder / name).mkdir()
        self.recipe.mkdir(parents=True)
        self._address = own_address()
        self._typed: list[Typed] = []

    def type(
        self, name: str, *words: str, answers: Sequence[tuple[str, str]] = ()
    ) -> Typed:
        """A command in somebody's folder."""
        typed = Typed(self.folder / name, *words, answers=answers)
        self._typed.append(typed)
        return typed

    def run(self, name: str, *words: str, code: int = 0) -> str:
        """A command that ends with this exit code; what its screen showed."""
        typed = self.type(name, *words)
        assert typed.end() == code, typed.text[-5000:]
        return typed.text

    def host(self, *more: str) -> Typed:
        """The host's command, always the same."""
        words = ["host", self.recipe.name, "--listen", self._address, *more]
        return self.type("host", *words, "--invite", *self.owners)

    def invite(self) -> Typed:
        """The host's command for the first time; each owner has its invitation then."""
        host = self.host()
        host.wait_text("send each party its line")
        lines = re.findall(r"(\w+)  (sealift-invitation-[\w-]+)", host.text)
        assert {name for name, _line in lines} == {*self.owners}
        for name, line in lines:
            (self.folder / name / "invitation.txt").write_text(line)
        return host

    def join(
        self, data: str, *more: str, answers: Mapping[str, Sequence[tuple[str, str]]]
    ) -> dict[str, Typed]:
        """Owners' commands, side by side."""
        words = ["join", "invitation.txt", data, "--heldout", "20%", *more]
        return {
            name: self.type(name, *words, answers=said)
            for name, said in answers.items()
        }

    def close(self) -> None:
        """End what still runs."""
        for each in self._typed:
            if each.process.poll() is None:
                each.kill()
