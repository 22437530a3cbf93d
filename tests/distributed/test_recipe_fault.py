"""Where a recipe fails can depend on rows: only its owner learns where, whoever listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.jobrun import Running, job_run
from tests.sim.jobworld import RECIPE, Wishes, fresh_world

pytestmark = pytest.mark.distributed

FAILS = RECIPE.replace(
    "        time.sleep(STEP_S)\n",
    "        if batch['label'][0] >= 0:\n            raise ZeroDivisionError\n",
)
PLACE, KIND = "recipe.py:", "ZeroDivisionError"


def said(role: Running) -> str:
    lines = [f"{event.kind} {dict(event.fields)}" for event in role.events]
    return "\n".join([*lines, *role.errors])


@pytest.mark.parametrize("text", ["false", "true"])
def test_others_hear_that_it_failed(tmp_path: Path, text: str) -> None:
    """With ``recipe_text`` its parties agreed that everybody may know: the control."""
    wishes = Wishes(recipe=FAILS, rule={"recipe_text": text})
    world = fresh_world(tmp_path / "world", wishes)
    note = world.run.with_name("run.fault.lab.json")
    with job_run(world) as run:
        run.everybody("north", "east")
        codes = {run[name].end() for name in ("orchestrator", "accelerator")}
        assert codes == {7}
        everything = "\n".join(map(said, run.roles.values()))
        assert run["orchestrator"].error().endswith("[recipe-error]")
        told = text == "true"
        assert (PLACE in everything, KIND in everything) == (told, told)
        assert note.exists() is not told
        if told:
            return
        assert PLACE.encode() not in note.read_bytes()
        for party in ("lab", "cloud"):
            home = world.home(party)
            words = ("--key", home.key, "--passphrase-file", home.passphrase)
            name = f"open-{party}"
            run.start(
                name, "output", "open", note, *words, "--agreement", world.agreement,
                "--json",
            )  # fmt: skip
            code = run[name].end()
            if party == "lab":
                assert code == 0
                (found,) = run[name].results
                assert found["error"] == "recipe-error"
                assert PLACE in found["line"]
                assert KIND in found["line"]
            else:
                assert run[name].error().endswith("[other-key]")
