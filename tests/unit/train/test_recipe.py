"""Recipes: two shapes, imports within the bundle, errors without values."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch

from sealift.errors import JobError, MalformedError, Stopping
from sealift.release.agreement.code import load_bundle, measure_bundle, read_bundle
from sealift.train.loop.faults import REASONS
from sealift.train.loop.tasks import SliceId
from sealift.train.sandboxed.recipe import Containment, Recipe, let_through
from sealift.train.sandboxed.training import Training
from tests.unit.train.recipes import (
    LIGHTNING,
    PLAIN,
    SETTINGS,
    load,
    rows,
    schema,
    table,
)

SECRET = "canary-7391"
FIRST = SliceId(0, "north", 0)


def failing(statement: str) -> str:
    return PLAIN.replace(
        "def loss(model, batch):\n", f"def loss(model, batch):\n    {statement}\n"
    )


def train_failing(text: str) -> JobError:
    training = Training(load(text), SETTINGS)
    with pytest.raises(JobError) as caught:
        training.train_slice(table(8), [FIRST])
    return caught.value


@pytest.mark.parametrize("text", [PLAIN, LIGHTNING])
def test_both_shapes_train_and_evaluate(text: str) -> None:
    training = Training(load(text), SETTINGS)
    before = training.state()
    assert training.train_slice(table(20), [FIRST]) > (0.0,)
    assert training.step == 3  # 8 + 8 + 4 rows
    assert training.state() != before
    measured = training.evaluate(rows(20, seed=2), schema())
    assert set(measured) == ({"accuracy"} if text == LIGHTNING else {"loss"})


def test_an_error_leaves_as_file_line_and_type() -> None:
    error = train_failing(failing(f"raise ValueError('{SECRET}', batch['x'])"))
    assert str(error).startswith("the recipe failed at recipe.py:16 with ValueError")
    assert error.code == "recipe-error"
    assert SECRET not in str(error)


def test_a_loss_brings_no_methods_of_its_own() -> None:
    """They would run where nothing contains what they raise."""
    odd = f"Odd = type('Odd', (torch.Tensor,), {{'detach': lambda self: {{}}['{SECRET}']}})"
    error = train_failing(failing(f"{odd}; return torch.ones(()).as_subclass(Odd)"))
    assert error.code == "bad-recipe"


def test_a_signal_passes() -> None:
    def stop() -> None:
        raise Stopping

    with pytest.raises(Stopping):
        Containment(["recipe.py"])(stop)


def test_let_through_shows_it_all() -> None:
    """Control: without the containment the message is there to leak."""
    text = failing(f"raise ValueError('{SECRET}')")
    recipe = Recipe({"recipe.py": text.encode()}, "recipe.py", guard=let_through)
    training = Training(recipe, SETTINGS)
    with pytest.raises(ValueError, match=SECRET):
        training.train_slice(table(8), [FIRST])


@pytest.mark.parametrize(
    "statement",
    [
        f"from sealift.errors import JobError; raise JobError('{SECRET}')",
        f"raise type('{SECRET}', (ValueError,), {{}})()",
        f"exec(compile('1/0', 'bundle:{SECRET}', 'exec'))",
        f"exec(compile('1/0', '{SECRET}', 'exec'))",
        f"raise ExceptionGroup('{SECRET}', [ValueError(1)])",
        f"raise SystemExit('{SECRET}')",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        f"raise type('Mine', (BaseException,), {{}})('{SECRET}')",
    ],
)
def test_no_part_of_an_error_carries_a_value(statement: str) -> None:
    error = train_failing(failing(statement))
    assert SECRET not in f"{error} {error.what} {error.why} {error.fix}"
    assert "recipe.py:16" in str(error)


def test_an_error_keeps_no_rows_alive() -> None:
    """Neither by its frames, nor as the context of what is raised instead."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def fail(batch: torch.Tensor) -> None:
        seen.append(weakref.ref(batch))
        try:
            raise KeyError(batch)
        except KeyError:
            raise ValueError(batch) from None

    guard = Containment(["recipe.py"])
    gc.disable()
    try:
        with pytest.raises(JobError) as caught:
            guard(lambda: fail(torch.ones(4)))
        assert caught.value.__context__ is None
        assert seen[0]() is None
    finally:
        gc.enable()


def test_prints_stay_inside(capfd: pytest.CaptureFixture[str]) -> None:
    text = failing(f"print('{SECRET}')") + f"\nprint('{SECRET}')\n"
    Training(load(text), SETTINGS).train_slice(table(8), [FIRST])
    assert SECRET not in "".join(capfd.readouterr())


def test_prints_leave_where_the_rule_lets_them(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Control: the same recipe does print."""
    text = failing(f"print('{SECRET}')")
    guard = Containment(["recipe.py"], text=True)
    recipe = Recipe({"recipe.py": text.encode()}, "recipe.py", guard=guard)
    Training(recipe, SETTINGS).train_slice(table(8), [FIRST])
    assert SECRET in capfd.readouterr().out


def test_a_loss_that_is_not_finite_ends_the_job() -> None:
    error = train_failing(PLAIN.replace("return F.cross", "return 1e38**9 * F.cross"))
    assert error.code == "recipe-error"  # OverflowError of Python's own floats
    error = train_failing(PLAIN.replace("return F.", "return float('nan') * F."))
    assert error.code == "not-finite"
    assert "step 0" in str(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "no-build"),
        ("def build(): return 3", "no-module"),
        (PLAIN.replace("return torch", "return lambda: torch"), "no-optimizer"),
        (PLAIN.replace("return F.cross_entropy", ""), "loss"),
        (PLAIN.replace("def loss(", "def lost("), "no-loss"),
    ],
)
def test_a_recipe_that_does_not_fit(text: str, reason: str) -> None:
    with pytest.raises(JobError) as caught:
        Training(load(text), SETTINGS).train_slice(table(8), [FIRST])
    assert caught.value.code == "bad-recipe"
    assert REASONS[reason][0] in str(caught.value)


def test_a_syntax_error_has_its_line() -> None:
    with pytest.raises(JobError, match=r"recipe\.py:2 with SyntaxError"):
        load("x = 1\nx = = 2\n")


@pytest.mark.parametrize("entry", ["other.py", "recipe", "weights.bin"])
def test_a_bad_entry(entry: str) -> None:
    files = {"recipe.py": PLAIN.encode(), "weights.bin": b""}
    with pytest.raises(MalformedError, match=r"not in the code bundle") as caught:
        Recipe(files, entry)
    assert caught.value.code == "bad-entry"


def test_modules_packages_and_late_imports() -> None:
    text = "from parts import optimizer\nimport nets.small\n" + PLAIN.replace(
        "return torch.optim.AdamW(", "return optimizer.make("
    ).replace(
        "return nn.Sequential", "from late import LAYERS\n    return nets.small.make"
    )
    others = {
        "parts____init__": "from . import optimizer as optimizer\n",
        "parts__optimizer": "import torch\nmake = torch.optim.SGD\n",
        "nets__small": "from torch import nn\nmake = nn.Sequential\n",
        "late": "LAYERS = 2\n",
    }
    training = Training(load(text, **others), SETTINGS)
    training.train_slice(table(8), [FIRST])
    assert type(training.optimizer) is torch.optim.SGD


def test_another_bundle_replaces_the_first() -> None:
    load("import part\nbuild = part.build", part="def build(): return 1")
    second = load("import part\nbuild = part.build", part=PLAIN)
    assert isinstance(second.build(), torch.nn.Module)


@pytest.mark.parametrize("name", ["json", "torch", "sealift__errors"])
def test_a_bundle_hides_no_module(name: str) -> None:
    with pytest.raises(MalformedError) as caught:
        load(PLAIN, **{name: ""})
    assert caught.value.code == "bundle-hides-module"
    assert "torch" in sys.modules


def test_what_runs_is_what_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that change on the disk after measuring do not run, nor do new ones."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "recipe.py").write_text(PLAIN)
    agreed = measure_bundle(read_bundle(bundle), "recipe.py")
    files = load_bundle(bundle, agreed)
    (bundle / "recipe.py").write_text("raise RuntimeError('changed')")
    Training(Recipe(files, agreed.entry), SETTINGS)
    (bundle / "stranger.py").write_text("")
    monkeypatch.chdir(bundle)
    monkeypatch.syspath_prepend(str(bundle))
    with pytest.raises(JobError, match="ModuleNotFoundError"):
        load("import stranger\n" + PLAIN)
