"""H8: a recipe that means harm reaches nothing but the model.

One bundle holds every attack; the rows say which. An attack that succeeds ends in a
``LookupError``, which is how a test sees it; whatever stops it has another type. The
control of each is the same recipe in the same process without the sandbox.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGSEGV
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sealift.attest.level import Level
from sealift.data.schedule import memory as sharedbuffer
from sealift.data.schedule.memory import SharedBuffer
from sealift.errors import JobError, SealiftError, UnavailableError
from sealift.release.agreement import Part, Resource
from sealift.train.loop.faults import Fault
from sealift.train.loop.held import PAGE_BYTES
from sealift.train.loop.statistics import Measured, let_out
from sealift.train.loop.trainer import Trainer
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker import requests
from sealift.train.worker.executor import (
    BEST,
    WITHOUT_NAMESPACES,
    RecipeExecutor,
)
from sealift.train.worker.requests import Area
from sealift.train.worker.taskprocess import TaskLimits
from sealift.travel.settings import TrainingSettings
from tests.sim.hostile_recipe import (
    ATTACKS_REFUSED,
    NAME_BYTES,
    SCHEMA,
    attack_rows,
    hostile_bundle,
)
from tests.sim.inplace import InPlace
from tests.sim.inside import demand
from tests.sim.memoryscan import family
from tests.unit.train.joints import cargo_of, resource
from tests.unit.train.test_output import RULE

pytestmark = pytest.mark.distributed
SUCCESS = "LookupError"
REFUSED = ("PermissionError", "FileNotFoundError", "OSError", "ConnectionRefusedError")
WANTED = {"full": BEST, "without namespaces": WITHOUT_NAMESPACES, "none": "none"}


@dataclass
class Stage:
    """A executor with the hostile bundle."""

    executor: Any
    text: io.StringIO

    def attack(self, name: str, **limits: float) -> str:
        """The code or type that the attack ended with; empty if nothing stopped it."""
        self.executor.limits = TaskLimits(**limits)  # type: ignore[arg-type]
        training = Trainer(self.executor, TrainingSettings(seed=1, batch_rows=2))
        try:
            training.work([cargo_of(table(), attack_rows(name))])
        except SealiftError as error:
            said = error.what
            return (
                said.split(" with ")[1].split(".")[0]
                if " with " in said
                else error.code
            )
        return ""

    def measure(self) -> Measured:
        training = Trainer(self.executor, TrainingSettings(seed=1, batch_rows=2))
        held = replace(table("heldout"), rows=8, total_bytes=8 * NAME_BYTES)
        rows = attack_rows("", 8)
        return training.work([cargo_of(held, rows)], "heldout")["ada-heldout"]


def table(part: Part = "train") -> Resource:
    plain = resource("ada", 2, part)
    return replace(
        plain, row_bytes=NAME_BYTES, total_bytes=2 * NAME_BYTES, schema=SCHEMA
    )


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Path]:
    """Open to everybody like /tmp, and of this run: others run this test, too."""
    with TemporaryDirectory(prefix="elsewhere-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.fixture(scope="module")
def bundle(
    tmp_path_factory: pytest.TempPathFactory, elsewhere: Path
) -> Iterator[dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("hostile")
    with hostile_bundle(folder, os.getpid(), elsewhere) as files:
        yield files


def open_stage(files: dict[str, bytes], wanted: str, *, text: bool = False) -> Stage:
    stream = io.StringIO()
    shop = RecipeExecutor(
        files, "recipe.py", wanted=wanted, text=stream if text else None
    )
    return Stage(shop, stream)


@pytest.fixture(scope="module", params=["full", "without namespaces"])
def stage(request: pytest.FixtureRequest, bundle: dict[str, bytes]) -> Iterator[Stage]:
    made = open_stage(bundle, demand(WANTED[request.param]))
    with made.executor:
        assert made.executor.sandbox == WANTED[request.param]
        yield made


@pytest.fixture(scope="module")
def full(bundle: dict[str, bytes]) -> Iterator[Stage]:
    made = open_stage(bundle, demand(BEST))
    with made.executor:
        assert made.executor.sandbox == BEST
        yield made


@pytest.fixture(scope="module")
def unconfined(bundle: dict[str, bytes]) -> Iterator[Stage]:
    made = open_stage(bundle, "none", text=True)
    with made.executor:
        assert made.executor.sandbox == "none"
        yield made


@pytest.fixture
def one_process(bundle: dict[str, bytes]) -> Stage:
    """Every slice in this very process, without limits."""
    return Stage(InPlace(bundle, "recipe.py"), io.StringIO())


@pytest.mark.parametrize("attack", ATTACKS_REFUSED)
def test_it_reaches_nothing(stage: Stage, attack: str) -> None:
    assert stage.attack(attack) in REFUSED


@pytest.mark.parametrize("attack", ATTACKS_REFUSED)
def test_without_a_sandbox_it_does(unconfined: Stage, attack: str) -> None:
    """The control of the test above: every attack is a real one."""
    if os.geteuid() != 0:
        pytest.skip("this machine lacks the right to trace a parent process")
    assert unconfined.attack(attack) == SUCCESS


def test_nothing_of_a_slice_is_there_in_the_next(stage: Stage) -> None:
    assert stage.attack("remember") == ""
    assert stage.attack("recall") == ""


def test_in_one_process_for_all_slices_it_is(one_process: Stage) -> None:
    """The control of the test above."""
    try:
        assert one_process.attack("remember") == ""
        assert one_process.attack("recall") == SUCCESS
    finally:
        del builtins.KEPT, sys.modules["kept"], os.environ["KEPT"]  # type: ignore[attr-defined]


def test_a_scratch_is_gone_with_its_slice(
    full: Stage, unconfined: Stage, elsewhere: Path
) -> None:
    assert full.attack("leave_in_scratch") == ""
    assert full.attack("find_in_scratch") == ""
    try:  # control
        unconfined.attack("leave_in_scratch")
        assert unconfined.attack("find_in_scratch") == SUCCESS
    finally:
        (elsewhere / "rows-of-somebody").unlink()


def test_without_namespaces_there_is_no_scratch(stage: Stage) -> None:
    expected = "" if "namespaces" in stage.executor.sandbox else "PermissionError"
    assert stage.attack("leave_in_scratch") == expected


@pytest.mark.parametrize("attack", ["fill_disk", "fill_disk_with_files"])
def test_it_cannot_fill_the_disk(stage: Stage, attack: str) -> None:
    assert stage.attack(attack) in ("OSError", "PermissionError", "recipe-killed")


@pytest.mark.parametrize("attack", ["fill_disk", "fill_disk_with_files"])
def test_without_limits_it_fills_the_disk(
    one_process: Stage, attack: str, elsewhere: Path
) -> None:
    """The control of the test above."""
    try:
        assert one_process.attack(attack) == SUCCESS
    finally:
        for left in elsewhere.glob("much*"):
            left.unlink()


def test_a_recipe_that_hangs_is_ended(stage: Stage) -> None:
    assert stage.attack("hang", work_s=1.0) == "recipe-timeout"
    assert stage.attack("hang", work_s=60.0) == SUCCESS  # control


def test_a_recipe_that_asks_slowly_is_ended(stage: Stage) -> None:
    assert stage.attack("ask_slowly", work_s=1.0) == "recipe-timeout"
    assert stage.attack("ask_slowly", work_s=60.0) == SUCCESS  # control


def test_a_recipe_that_speaks_and_never_listens_is_ended(stage: Stage) -> None:
    assert stage.attack("babble", work_s=6.0) == "recipe-timeout"
    assert stage.attack("babble_a_little", work_s=60.0) == SUCCESS  # control
    assert stage.attack("remember") == ""  # the next task is not harmed


def test_a_recipe_that_takes_all_memory(stage: Stage) -> None:
    assert stage.attack("allocate", memory_bytes=1 << 31) == "no-memory"
    assert UnavailableError.exit_code == 3
    assert stage.attack("remember", memory_bytes=1 << 31) == ""  # control


def test_a_state_larger_than_its_room(stage: Stage) -> None:
    """A state begins with a page of its own; what else is said lies before it."""
    assert stage.attack("remember", area_bytes=256) == "bad-recipe"
    assert stage.attack("remember", area_bytes=PAGE_BYTES) == "bad-recipe"
    assert stage.attack("remember", area_bytes=2 * PAGE_BYTES) == ""  # control


def test_what_it_prints_stays_inside(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    assert stage.attack("say") == ""
    assert "canary-5517" not in "".join(capfd.readouterr())


def test_what_it_prints_leaves_where_the_rule_says_so(unconfined: Stage) -> None:
    """The control of the test above; and no control codes leave with it."""
    assert unconfined.attack("say") == ""
    assert unconfined.text.getvalue().count("canary-5517") == 4
    assert "\x1b" not in unconfined.text.getvalue()


def test_only_named_rounded_numbers_leave(stage: Stage) -> None:
    found = stage.measure()
    assert found.metrics["rows"] == 3.5  # control: it does try
    with pytest.raises(JobError) as caught:  # and nothing of it leaves
        let_out(found, RULE)
    assert caught.value.code == "measure-not-agreed"
    listed = replace(found, metrics={"loss": found.metrics["loss"]})
    assert let_out(listed, RULE).metrics == {"loss": 0.12}


ODD_REQUESTS = (
    "ask_nonsense",
    "ask_what_is_no_question",
    "ask_at_length",
    "ask_outside",
    "ask_backwards",
    "ask_again",
    "ask_and_never_listen",
    "ring_without_end",
    "hand_over_for_nothing",
    "tell_too_much",
    "tell_something_else",
    "tell_of_another_model",
)


@pytest.mark.parametrize("attack", ODD_REQUESTS)
def test_what_no_task_asks_ends_it(stage: Stage, attack: str) -> None:
    assert stage.attack(attack) == "recipe-garbled"
    assert stage.attack("remember") == ""  # the next task is not harmed


def test_what_a_task_may_ask_is_answered(stage: Stage) -> None:
    """The control of the test above: the same hands ask for what there is."""
    assert stage.attack("ask_and_go_on") == SUCCESS


def test_a_parent_that_believes_nonsense(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above: what a recipe writes does reach the parent."""
    plain = requests.from_bytes

    def believe(raw: bytes, *kinds: type) -> object:
        return Fault(kind="memory") if raw == b"nonsense" else plain(raw, *kinds)

    monkeypatch.setattr(requests, "from_bytes", believe)
    assert stage.attack("ask_nonsense") == "no-memory"


def test_what_it_writes_into_a_partys_rows_stays_with_it(stage: Stage) -> None:
    cargo = cargo_of(table(), attack_rows("write_rows"))
    training = Trainer(stage.executor, TrainingSettings(seed=1, batch_rows=2))
    with pytest.raises(SealiftError, match=SUCCESS):  # control: it does write
        training.work([cargo])
    assert bytes(cargo.memory.view) == attack_rows("write_rows").numpy().tobytes()


def test_rows_cannot_be_mapped_to_be_written_for_all() -> None:
    with closing(SharedBuffer.of(b"rows")) as shared:
        with pytest.raises(PermissionError):
            mmap.mmap(shared.descriptor, shared.length)
        with mmap.mmap(shared.descriptor, shared.length, prot=mmap.PROT_READ) as seen:
            assert seen[:] == b"rows"  # control


def test_rows_without_a_seal_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above: nothing but the seal keeps anybody from them."""
    monkeypatch.setattr(sharedbuffer, "_SEALS", fcntl.F_SEAL_SHRINK)
    with closing(SharedBuffer.of(b"rows")) as shared:
        with mmap.mmap(shared.descriptor, shared.length) as theirs:
            theirs[0] = 1
        assert shared.view[0] == 1


def test_memory_does_not_shrink_under_its_parent() -> None:
    with closing(Area(1 << 16)) as area, pytest.raises(PermissionError):
        os.ftruncate(area.descriptor, 0)
    with open(os.memfd_create("control"), "w+b") as control:
        control.truncate(10)
        os.ftruncate(control.fileno(), 0)  # what has no seals, shrinks


def test_what_is_read_from_an_area_no_longer_changes() -> None:
    with closing(Area(1 << 16)) as area, mmap.mmap(area.descriptor, 1 << 16) as theirs:
        theirs[:4] = b"good"
        copied = area.copy(0, 4)
        theirs[:4] = b"evil"
        assert copied == b"good"
        assert area.copy(0, 4) == b"evil"  # control: it is shared


@pytest.mark.parametrize("attack", ["leave", "crash", "ask_and_die"])
def test_a_process_that_ends_early(stage: Stage, attack: str) -> None:
    assert stage.attack(attack) == "recipe-killed"


@pytest.mark.parametrize(("attack", "status"), [("leave", 0), ("crash", -SIGSEGV)])
def test_in_the_process_of_the_loop_it_ends_that(
    tmp_path: Path, bundle: dict[str, bytes], attack: str, status: int
) -> None:
    """The control of the test above; nothing is said, not even by an exit status."""
    for name, content in bundle.items():
        (tmp_path / name).write_bytes(content)
    script = "import sys, recipe; recipe.ATTACKS[sys.argv[1]](); print('went on')"
    done = subprocess.run(
        [sys.executable, "-c", script, attack],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, b"")


def test_an_agreement_on_hardware_demands_a_sandbox(unconfined: Stage) -> None:
    confinement = Confinement.parse(unconfined.executor.sandbox)
    confinement.require((Level.DEVELOPMENT,))
    assert "without a sandbox" in confinement.say()
    with pytest.raises(UnavailableError) as caught:
        confinement.require((Level.TEE,))
    assert caught.value.code == "no-sandbox"


def test_workers_are_gone_when_an_attack_ends(stage: Stage) -> None:
    before = family(os.getpid())
    for attack in ("leave", "hang", "ask_nonsense"):
        assert stage.attack(attack, work_s=1.0)
        assert family(os.getpid()) == before
