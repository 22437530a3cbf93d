"""No command runs a recipe in its own process: `try`, `host --dry-run`, `host`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.cli.main import main
from tests.cli.test_ahead_host import RECIPE, SCHEMA
from tests.sim.ownaddress import own_address

pytestmark = pytest.mark.distributed

Command = Callable[[], list[str]]
COMMANDS: dict[str, Command] = {
    "try": lambda: [
        *("try", "--bundle", "recipe", "--entry", "recipe.py"),
        *("--schema", "recipe/schema.toml"),
    ],
    "dry-run": lambda: ["host", "recipe", "--dry-run", "--listen", own_address()],
    "host": lambda: ["host", "recipe", "--listen", own_address()],
}
WRITES = """
try:
    open({place!r}, "w")
except OSError:
    raise RuntimeError("kept out") from None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "schema.toml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", ["writes", "reads"])
def test_a_recipe_runs_in_the_sandbox(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, fault: str
) -> None:
    """At its import, or when a model is built, before an invitation is printed."""
    place = folder / "words.txt"
    if fault == "writes":
        text = RECIPE + WRITES.format(place=str(place))
    else:
        place.write_text("the host's own")
        text = RECIPE.replace(
            "    return Line()", f"    open({str(place)!r}); return Line()"
        )
    (folder / "recipe" / "recipe.py").write_text(text)
    words = COMMANDS[command]()
    invite = [] if command == "try" else ["--invite", "north", "east"]
    assert main([*words, *invite]) == 7
    said = capsys.readouterr()
    everything = said.out + said.err
    if fault == "writes":
        assert "RuntimeError: kept out" in said.err
        assert "[recipe-error]" in everything
        assert not place.exists()
    else:
        assert "[foreign-file]" in everything
        assert repr(str(place)) in everything
    assert "sealift-invitation-" not in everything
    assert not (folder / "meeting.db").exists()


def test_a_metric_may_have_the_name_of_a_fact_and_draws_no_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"sums": 1.0, "parameters": 7.0, "a" + " " * 200 + "verified": 1.0}
    text = RECIPE + f"\n\ndef evaluate(model, batch):\n    return {names!r}\n"
    (folder / "recipe" / "recipe.py").write_text(text)
    assert main(COMMANDS["try"]()) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[0] for line in lines]
    assert shown.count("sums") == 1
    assert lines[0].split() == ["parameters", "8"]
    assert shown.count("parameters") == 2
    assert max(map(len, lines)) < 80
