"""A recipe on synthetic rows runs in the sandbox, and what it says is fit for a screen."""

from __future__ import annotations

import io
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sealift.attest.level import Level
from sealift.data.schema.document import schema_to_plain
from sealift.errors import SealiftError
from sealift.train.loop.tasks import Rehearsal
from sealift.train.worker import trial
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import TrialOrder
from sealift.train.worker.process import NOT_CONFINED
from tests.unit.train.recipes import PLAIN, SETTINGS, schema

pytestmark = pytest.mark.distributed

ORDER = TrialOrder(
    entry="recipe.py",
    bundle=0,
    schema=schema_to_plain(schema()),
    settings=SETTINGS,
    rows=20,
    steps=3,
    inputs={},
    outputs={},
)


@dataclass
class Tried:
    """One trial.

    Attributes:
        found: What came of it.
        error: Or what was raised.
        text: What the recipe said.
        told: What we said.
    """

    found: list[Rehearsal] = field(default_factory=list)
    error: SealiftError | None = None
    text: str = ""
    told: list[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        return self.error.code if self.error else ""


def attempt(recipe: str, **more: Any) -> Tried:
    tried, text = Tried(), io.StringIO()
    try:
        tried.found = trial.try_recipe(
            {"recipe.py": recipe.encode()},
            "recipe.py",
            [ORDER],
            text=text,
            tell=tried.told.append,
            **more,
        )
    except SealiftError as error:
        tried.error = error
    tried.text = text.getvalue()
    return tried


REACHES = """
import os, socket, subprocess
reached = []
def reach(name, call, *parts):
    try:
        call(*parts)
        reached.append(name)
    except OSError:
        pass
reach("write", open, {place!r}, "w")
reach("read", open, {secret!r})
reach("dial", socket.create_connection, ("127.0.0.1", {port}), 5)
reach("run", subprocess.run, ["/bin/true"])
reach("look", os.listdir, {folder!r})
if "SECRET" in os.environ:
    reached.append("environment")
raise RuntimeError("reached: %s." % reached)
"""


def reaching(folder: Path, port: int) -> str:
    (folder / "secret").write_text("of the host")
    return REACHES.format(
        place=str(folder / "written"),
        secret=str(folder / "secret"),
        folder=str(folder),
        port=port,
    )


def test_it_reaches_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the host")
    with socket.create_server(("127.0.0.1", 0)) as server:
        tried = attempt(reaching(tmp_path, server.getsockname()[1]))
    assert tried.code == "recipe-error"
    assert "RuntimeError: reached: []." in tried.text
    assert not (tmp_path / "written").exists()


def test_it_trains_where_a_real_run_does() -> None:
    tried = attempt(f"print('a line \\x1b[2J of mine')\n{PLAIN}")
    assert tried.error is None
    (found,) = tried.found
    assert (found.steps, len(found.losses)) == (3, 2)
    assert set(found.metrics) == {"loss"}
    assert tried.text == "a line ?[2J of mine\n"
    assert tried.told == []


@pytest.mark.parametrize(
    "opens",
    [
        "open('/somewhere/words.txt')",
        "torch.load('/somewhere/words.txt')",
        "__import__('numpy').load('/somewhere/words.txt')",
        "wrapped()",
    ],
)
def test_a_file_that_it_does_not_have_is_named(opens: str) -> None:
    wrapped = (
        "def wrapped():\n    try:\n        open('/somewhere/words.txt')\n"
        "    except OSError:\n        raise ValueError('no words')\n"
    )
    tried = attempt(
        PLAIN.replace("def build():", f"{wrapped}\ndef build():\n    {opens}")
    )
    assert tried.error is not None
    assert (tried.code, tried.error.exit_code) == ("foreign-file", 7)
    assert "'/somewhere/words.txt'" in str(tried.error)
    assert "recipe.py" in tried.text  # where, in the traceback


def test_what_it_raises_is_fit_for_a_terminal() -> None:
    tried = attempt(
        "raise type('\\x1b[2Jverified', (Exception,), {})('\\x1b[31m\\nred')"
    )
    assert tried.code == "recipe-error"
    assert "\x1b" not in tried.text + str(tried.error)


def test_one_that_ends_its_process_is_an_error() -> None:
    assert attempt("import os\nos._exit(0)").code == "recipe-killed"
    unconfined = attempt(f"import os\nos._exit({NOT_CONFINED})")
    assert "its sandbox" in str(unconfined.error)


def test_no_file_of_that_name_is_an_entry() -> None:
    with pytest.raises(SealiftError) as caught:
        trial.try_recipe({}, "recipe.py", [], text=io.StringIO(), tell=print)
    assert caught.value.code == "bad-entry"


class Unconfined(RecipeExecutor):
    """As on a machine that gives no sandbox."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named, wanted="none")


def test_without_a_sandbox_it_says_development(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "RecipeExecutor", Unconfined)
    tried = attempt(PLAIN)
    assert tried.error is None
    (line,) = tried.told
    assert line.startswith("development: ")
    assert "without a sandbox" in line


def test_without_a_sandbox_nothing_runs_under_an_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "RecipeExecutor", Unconfined)
    tried = attempt(reaching(tmp_path, 1), accept=(Level.TEE, Level.DEVELOPMENT))
    assert tried.code == "no-sandbox"
    assert not (tmp_path / "written").exists()


def test_a_taken_over_process_is_not_believed() -> None:
    """It says that a trial of steps had no loss; the parent's reader is the real one."""
    lie = {"parameters": 1, "steps": 3, "losses": [], "step_s": 0, "metrics": {}}
    text = (
        "import gc, json\n"
        "from sealift.train.loop.tasks import Rehearsal\n"
        "from sealift.train.sandboxed.parentpipe import WorkerEnd\n"
        "end = next(each for each in gc.get_objects() if isinstance(each, WorkerEnd))\n"
        f"lie = json.loads({json.dumps(json.dumps(lie))})\n"
        "end.answer(Rehearsal(**{**lie, 'losses': tuple(lie['losses'])}))\n"
        "import time; time.sleep(600)\n"
    )
    assert attempt(text).code == "recipe-garbled"
