"""The parent's side of recipes: one sandboxed process for each task, and none believed.

What a worker says may be a recipe's words: lengths, counts, names and states are
checked, bytes are copied before they are read, and whoever overstays is killed. When
``do`` returns, with a result or an error, the worker is gone and its memory with it.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from io import FileIO
from typing import Final, TextIO

from sealift.attest.evidence import Measure, unmeasured
from sealift.channel.device.device import SummingEngine
from sealift.errors import (
    JobError,
    UnavailableError,
    require_kind,
    require_value,
    visible,
)
from sealift.ids import Digest
from sealift.release.agreement.code import Asset
from sealift.release.receipt import ScrubSummary
from sealift.train.loop.tasks import (
    SliceTask,
    StepForm,
    TaskDone,
    TaskInputs,
    TaskParent,
)
from sealift.train.sandbox.confine import Confinement
from sealift.train.sandbox.inventory import SCRATCH
from sealift.train.worker.devices import (
    CPU,
    MAX_WHY,
    Gpu,
    choose_device,
    other_processes,
    say_cpu,
)
from sealift.train.worker.messages import from_bytes
from sealift.train.worker.process import (
    FAREWELL_S,
    NO_NAMESPACES,
    START_S,
    BundleMemory,
    ModuleLog,
    TaskEquipment,
    Waiting,
    killed,
    read_packet,
)
from sealift.train.worker.standby import Share, Standby, StandbyLostError, Standbys
from sealift.train.worker.taskprocess import (
    ReadyWorker,
    TaskLimits,
    TaskProcess,
    gradient_room,
)
from sealift.travel.settings import TrainingSettings
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT, freed_is_overwritten

BEST: Final = "namespaces+landlock+seccomp"
WITHOUT_NAMESPACES: Final = "landlock+seccomp"
OPENED: Final = "rows opened in the host"  # commitments are checked there
# Nothing of the parent's environment reaches a recipe but where Python finds modules, and,
# for workers that stay, what makes their allocators overwrite what is freed.
_INHERITED: Final = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_TUNABLES: Final = "GLIBC_TUNABLES"
# What a step frees the next one takes. Else it goes back to the kernel and comes again page
# by page, cleared each time: a quarter of a step on a CPU (ADR 0013).
_KEEP_HEAP: Final = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776"
_OWN: Final = {
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LOGNAME": "recipe",  # libraries ask who it is; a sandbox shows no list of users
    "USER": "recipe",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without, products on a GPU vary
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts them
    "PYTHONHASHSEED": "0",  # the order of a set is part of bit-identity
    "PYTHONDONTWRITEBYTECODE": "1",
}
_NO_OTHERS: Final = TaskLimits()
_LAST_BYTES: Final = 4096  # of what a process said that did not start
_LAST_LINES: Final = 4
_TRIED_BYTES: Final = 1 << 20


class RecipeExecutor:
    """Runs recipes in a sandbox, a fresh process for each task.

    Args:
        files: The code bundle, measured against the agreement.
        entry: Path of the recipe inside it.
        text: Where a recipe's prints go, if the agreement lets them out.
        limits: Of each task.
        overwrite_freed: Whether workers overwrite what they free as this process does: for one
            that stays. The memory of one that does a single task ends with it.
        wanted: Parts of the sandbox; fewer are for tests.
        tell: Gets a line once it is known what keeps recipes in, and once they compute elsewhere
            than on the CPU, or do not although a GPU is there.
        measure: Gets the event of each of the bundle's modules before it first runs.
        clock: Monotonic seconds.
        assets: What the recipe may read, beside its code.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        entry: str,
        *,
        text: TextIO | None = None,
        limits: TaskLimits = _NO_OTHERS,
        overwrite_freed: bool = False,
        wanted: str = BEST,
        tell: Callable[[str], None] = lambda line: None,
        measure: Measure = unmeasured,
        clock: Callable[[], float] = time.monotonic,
        assets: Sequence[Asset] = (),
    ) -> None:
        bundle = BundleMemory(files, assets)
        self._measured = Digest.of(bytes(bundle.code))
        self._assets = assets
        self.limits = limits
        self._equipment = TaskEquipment(
            files, entry, bundle, ModuleLog(files, measure), text, clock
        )
        self._wanted = wanted
        self._overwrites = overwrite_freed
        self._environment = _environment(overwrite_freed=overwrite_freed)
        self._tell = tell
        self._lock = threading.Lock()
        self._sandbox = ""
        self._gpus: tuple[Gpu, ...] = ()
        self._no_gpu = ""
        self._cpu = CPU
        self._gpu: Gpu | None = None
        self._others: int | None = None  # the most that were seen beside ours, if known
        self._report: Callable[[ScrubSummary], ScrubSummary] = lambda scrub: scrub
        self._task: TaskProcess | None = None
        self._said = FileIO(os.memfd_create("said"), "r+")
        self._beside: RecipeExecutor | None = None
        self._standbys: Standbys | None = None
        self._lost: set[str] = set()
        try:
            self._begin(wanted)
        except BaseException:
            bundle.close()
            self._said.close()
            raise

    def _begin(self, wanted: str) -> None:
        """Start the process that forks workers."""
        self._process, self._control = _start(
            wanted, self._environment, self._said.fileno()
        )

    @property
    def sandbox(self) -> str:
        """What keeps recipes in; waits until that is known.

        Raises:
            JobError: code ``recipe-killed``, if the process does not start.
        """
        self._wait_for_sandbox()
        return self._sandbox

    def _wait_for_sandbox(self) -> None:
        if not self._sandbox:
            self._sandbox = self._await_zygote()
            self._tell(Confinement.parse(self._sandbox).say())

    def device(self) -> str:
        """Where tasks compute; of a GPU its name, who was seen there besides, and how rows come.

        Of a CPU that was chosen for want of a GPU that works: what it lacks.
        """
        if self._gpu is None:
            return self._cpu
        self._count_others()
        others = "other processes unknown"
        if self._others is not None:
            others = f"{self._others or 'no'} other process{'es' * (self._others != 1)}"
        name = visible(self._gpu.name)
        return f"{self._equipment.device} {name}, {others}, {OPENED}"

    def _count_others(self) -> None:
        """Once nobody says it, it stays unknown."""
        if self._gpu is None or self._others is None:
            return
        try:
            found = other_processes().get(self._gpu.uuid)
        except UnavailableError:
            found = None
        self._others = None if found is None else max(self._others, len(found))

    def report(self, scrub: ScrubSummary) -> ScrubSummary:
        """A visit's account, with what the last task's worker said of its GPU's memory."""
        return self._report(scrub)

    def compute_on(self, wanted: str, *, rank: int = 0) -> None:
        """Choose where all tasks that follow compute: ``[run] device``; see ``choose_device``.

        Raises:
            UnavailableError: ``no-device``.
        """
        self._wait_for_sandbox()  # by then it is known which devices it shows
        device = choose_device(wanted, self._gpus, self._no_gpu, rank=rank)
        if self._standbys is not None and device != self._equipment.device:
            self._standbys.close()
        self._equipment = replace(self._equipment, device=device)
        self._cpu = say_cpu(wanted, self._gpus, self._no_gpu)
        number = device.partition(":")[2]
        self._gpu = self._gpus[int(number)] if number else None
        self._others = 0
        if (chosen := self.device()) != CPU:
            self._tell(f"recipes compute on {chosen}")

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that tasks compute on; None on a CPU."""
        return self._gpu

    def try_sharing(self, engine: SummingEngine) -> None:
        """Have a worker map memory of a device, behind the sandbox, as for gradients.

        Raises:
            UnavailableError: code ``no-device``, if it cannot.
        """
        standby = Standby(self._ready, None, Share(engine, _TRIED_BYTES))
        try:
            standby.await_ready()
        except StandbyLostError:
            raise UnavailableError(
                "a recipe's process cannot map memory that Sealift allocates on "
                f"{self._equipment.device}",
                code="no-device",
            ) from None
        finally:
            standby.cut()
            standby.close()

    def dismiss(self) -> None:
        """End whatever process shares memory with this one, between two tasks."""
        if self._standbys is not None:
            self._standbys.close()

    def do(self, task: SliceTask, given: TaskInputs, parent: TaskParent) -> TaskDone:
        """Do one task; see ``Workplace``.

        Raises:
            JobError: ``recipe-timeout``, ``recipe-killed``, ``recipe-garbled``, and
                whatever is wrong with the recipe.
            UnavailableError: code ``no-memory``.
        """
        with self._lock:
            self._ready()
            lane, standby = self._standbys.take() if self._standbys else (0, None)
            try:
                return self._do(lane, standby, task, given, parent)
            except StandbyLostError as lost:
                self._say_lost(str(lost))
            return self._do(0, None, task, given, parent)

    def _do(
        self,
        lane: int,
        standby: Standby | None,
        task: SliceTask,
        given: TaskInputs,
        parent: TaskParent,
    ) -> TaskDone:
        share: Share | None = None
        if given.device is not None:
            share = Share(given.device, gradient_room(given))

        def begun(waited_s: float) -> None:
            if self._standbys is None:
                return
            self._standbys.note(standby, waited_s)
            if task.parts and self._beside is None:
                self._beside = self._another()
            if self._beside is not None and self._beside.has_loaded():
                self._standbys.prepare(1 - lane, task, share)

        with ExitStack() as stack:
            on = (
                self._control
                if standby is None
                else ReadyWorker(standby, self._measured)
            )
            process = TaskProcess(
                on, self._equipment, self.limits, stack, begun=begun, share=share
            )
            self._task, self._report = process, process.report
            try:
                done = process.do(task, given, parent)
            finally:
                self._task = None
        if self._standbys is not None:  # if none could be prepared beside the task
            self._standbys.prepare(lane, task, share)
        return done

    @property
    def on_gpu(self) -> bool:
        """Whether tasks compute on a GPU; see ``Workplace``."""
        return self._gpu is not None

    def stand_by(self, settings: TrainingSettings, forms: Sequence[StepForm]) -> None:
        """From now on, have each task's process made ready before; see ``Workplace``."""
        if self._standbys is not None:
            self._standbys.close()
        self._standbys = Standbys((self._ready, self._ready_beside), settings, forms)
        self._standbys.prepare(0)

    def _another(self) -> RecipeExecutor:
        """Its zygote forks those who stand by while ours has a worker, and the other way round."""
        mine = self._equipment
        return RecipeExecutor(
            mine.files,
            mine.entry,
            text=mine.text,
            overwrite_freed=self._overwrites,
            wanted=self._wanted,
            clock=mine.clock,
            assets=self._assets,
        )

    def has_loaded(self) -> bool:
        """Whether nothing has to be waited for before its zygote forks."""
        return bool(self._sandbox or select.select([self._control], [], [], 0)[0])

    def _ready(self) -> tuple[socket.socket, TaskEquipment]:
        """The zygote, and what its workers get."""
        self._wait_for_sandbox()
        self._verify_bundle()
        return self._control, self._equipment

    def _ready_beside(self) -> tuple[socket.socket, TaskEquipment]:
        """The other one; its workers have what ours have, and no more."""
        beside = require_value(self._beside)
        beside.compute_on(self._equipment.device)
        if beside.sandbox != self._sandbox:
            raise killed(f"its standby process has another sandbox: {beside.sandbox}")
        with beside.lend() as (control, equipment):
            return control, replace(equipment, modules=self._equipment.modules)

    def _say_lost(self, why: str) -> None:
        """Once for each reason: the work goes on as it would without."""
        if why not in self._lost:
            self._lost.add(why)
            self._tell(
                f"a standby process ended ({why}): the task begins in a new process"
            )

    @contextmanager
    def lend(self) -> Iterator[tuple[socket.socket, TaskEquipment]]:
        """The zygote and the equipment, for a worker that stays; no task meanwhile.

        Raises:
            JobError: ``recipe-killed``, ``state-changed``.
        """
        with self._lock:
            if self._standbys is not None:
                self._standbys.close()
            yield self._ready()

    def demand_time(self) -> None:
        """Demand that the task under way may go on; see ``Workplace``.

        Raises:
            PeerError: code ``worker-gone`` or ``worker-timeout``.
        """
        if self._task is not None:
            self._task.demand_time()

    def cut(self) -> None:
        """End the task under way, from another thread; the next one is done as ever."""
        task, standbys = self._task, self._standbys
        if task is not None:
            task.cut()
        if standbys is not None:
            standbys.cut()

    def interrupt(self) -> None:
        """End the work under way, from another thread; what does it raises."""
        self.cut()
        if self._beside is not None:
            self._beside.interrupt()
        self._process.kill()

    def close(self) -> None:
        """End the zygote and whatever it has forked."""
        if self._beside is not None:
            self._beside.interrupt()
        if self._standbys is not None:
            self._standbys.close()
            if said := self._standbys.say():
                self._tell(said)
        if self._beside is not None:
            self._beside.close()
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL_S)
        self._process.kill()
        self._process.wait()
        self._said.close()
        self._equipment.bundle.close()

    def __enter__(self) -> RecipeExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _verify_bundle(self) -> None:
        """Each worker loads the code that was measured (rule H1)."""
        if Digest.of(bytes(self._equipment.bundle.code)) != self._measured:
            raise JobError(
                "the recipe changed in the accelerator's memory",
                why="no code of Sealift changes it",
                code="state-changed",
            )

    def _await_zygote(self) -> str:
        word = self._read_waiting()
        status = self._exit_code() if word is None else None
        if status == NO_NAMESPACES:
            self._control.close()
            parts = Confinement.parse(WITHOUT_NAMESPACES).parts
            kept = [
                part for part in Confinement.parse(self._wanted).parts if part in parts
            ]
            self._begin(Confinement(kept).word)
            word = self._read_waiting()
            status = self._exit_code() if word is None else None
        if word is None:
            ended = f" (signal {-status})" if status is not None and status < 0 else ""
            if not select.select([self._control], [], [], 0)[0]:  # nor has it hung up
                ended = f" within {START_S:g} s; the machine may have too much to do"
            raise killed(f"its process could not be started{ended}{self._last_lines()}")
        return word

    def _last_lines(self) -> str:
        """What it said last; it has seen neither a recipe nor a row."""
        length = os.fstat(self._said.fileno()).st_size
        raw = os.pread(self._said.fileno(), _LAST_BYTES, max(0, length - _LAST_BYTES))
        lines = [each.strip() for each in raw.decode(errors="replace").splitlines()]
        kept = [visible(each)[:MAX_WHY] for each in lines if each][-_LAST_LINES:]
        return f": {' / '.join(kept)}" if kept else ""

    def _exit_code(self) -> int | None:
        """Of a process that has ended; one that only says nothing has none."""
        try:
            return self._process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            return None

    def _read_waiting(self) -> str | None:
        self._control.settimeout(START_S)
        raw = read_packet(self._control)
        if not raw:
            return None
        told = require_kind(from_bytes(raw, Waiting), Waiting)
        asked = self._overwrites and freed_is_overwritten()
        if asked and not told.overwrites:
            raise killed(
                "its process does not overwrite freed memory, and this process does"
            )
        self._gpus, self._no_gpu = told.gpus, told.no_gpu
        return Confinement.parse(told.sandbox).word


def _environment(*, overwrite_freed: bool) -> dict[str, str]:
    names = (*_INHERITED, *(ALLOCATOR_ENVIRONMENT if overwrite_freed else ()))
    found = {k: v for k, v in os.environ.items() if k in names} | _OWN
    tunables = filter(None, (found.get(_TUNABLES), _KEEP_HEAP))
    return found | {_TUNABLES: ":".join(tunables)}


def _start(
    wanted: str, environment: Mapping[str, str], said: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    module = "sealift.train.sandboxed.zygote"
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), wanted],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,  # until it waits: no worker inherits it
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the parent, which ends it in order
            )
        except OSError as error:
            ours.close()
            named = f"{error.filename}: {error.strerror}" if error.filename else error
            raise UnavailableError(
                "there is no process for the recipe", why=named, code="no-process"
            ) from None
    return process, ours
