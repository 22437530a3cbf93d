"""H8: what runs beside a recipe is in its bundle or installed, and measured before.

Each recipe here says by the type of its error what it saw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sealift.attest.runtimelog import (
    MeasuredModule,
    RuntimeEvent,
    measured_modules,
    module_event,
)
from sealift.errors import MalformedError, SealiftError, UnavailableError
from sealift.ids import Digest
from sealift.train.loop.trainer import Trainer
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.process import ModuleLog
from tests.sim.inside import demand
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS

pytestmark = pytest.mark.distributed
Tried = tuple[str, list[RuntimeEvent]]
WRITE = """
import os, sys
folder = "/scratch" if os.path.isdir("/scratch") else "/tmp"
with open(folder + "/written.py", "w") as file:
    file.write("found = 1\\n")
sys.path.insert(0, folder)
"""
# Private, and empty each time: a slice leaves one there, and never finds one.
CACHES = """
import os, sys
named = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
for place in [*map(os.environ.get, named), sys.pycache_prefix]:
    if not place.startswith("/scratch/") or os.path.exists(place):
        raise LookupError
    os.makedirs(place)
if not sys.dont_write_bytecode:
    raise LookupError
"""

DO_WITHOUT = """
with open(folder + "/foreign.py", "w") as file:
    file.write("raise LookupError")
try:
    import foreign
except ImportError:
    pass
"""


@pytest.fixture
def events() -> list[RuntimeEvent]:
    return []


def run(
    files: dict[str, str],
    measure: Callable[[RuntimeEvent], None],
    *,
    slices: int = 1,
) -> str:
    """The code that training ends with, or nothing."""
    raw = {name: text.encode() for name, text in files.items()}
    demand("namespaces")
    with RecipeExecutor(raw, "recipe.py", measure=measure) as executor:
        assert "namespaces" in executor.sandbox
        training = Trainer(executor, SETTINGS)
        try:
            for epoch in range(slices):
                training.work([cargo("ada", 8, epoch=epoch)])
        except SealiftError as error:
            return error.code
    return ""


def paths(events: list[RuntimeEvent]) -> list[str]:
    return [each.path for each in measured_modules(events)]


def test_bundle_and_installed_modules_run_measured_and_without_caches(
    events: list[RuntimeEvent],
) -> None:
    """The control too: a module that is refused below runs if the bundle has it."""
    part = "import nets.late\nimport json.tool\n"
    files = {
        "recipe.py": f"{CACHES}\n{WRITE}\n{DO_WITHOUT}\nimport part, written\n{PLAIN}",
        "part.py": part,
        "nets/late.py": "x = 1\n",
        "written.py": "found = 2\n",
        "unused.py": "raise LookupError",
    }
    assert run(files, events.append, slices=2) == ""
    assert paths(events) == ["recipe.py", "part.py", "nets/late.py", "written.py"]
    assert measured_modules(events)[1] == MeasuredModule(
        "part.py", Digest.of(part.encode())
    )


def test_file_that_a_recipe_wrote_is_not_imported(events: list[RuntimeEvent]) -> None:
    """Not even late, inside a step."""
    step = "def loss(model, batch):"
    late = PLAIN.replace(step, f"{step}\n    import written")
    assert late != PLAIN
    text = f"{WRITE}\n{late}"
    assert run({"recipe.py": text}, events.append) == "foreign-import"
    assert paths(events) == ["recipe.py"]


def test_module_that_cannot_be_measured_does_not_run() -> None:
    def fail(event: RuntimeEvent) -> None:
        raise UnavailableError("no register", code="no-tpm")

    files = {"recipe.py": "raise LookupError\n"}
    assert run(files, fail) == "no-tpm"


@pytest.mark.parametrize("path", ["other.py", "notes.txt", "", "../recipe.py"])
def test_worker_brings_nothing_into_the_log(
    path: str, events: list[RuntimeEvent]
) -> None:
    log = ModuleLog({"recipe.py": b"", "notes.txt": b""}, events.append)
    with pytest.raises(MalformedError):
        log.note(path)
    log.note("recipe.py")
    log.note("recipe.py")
    assert events == [module_event("recipe.py", Digest.of(b""))]


def test_module_event_that_does_not_parse_is_refused() -> None:
    event: Any = RuntimeEvent("module", b"{}")
    with pytest.raises(MalformedError):
        measured_modules([event])
