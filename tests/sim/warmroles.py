"""Roles that have their modules already: forked from a process that imported them once.

Importing what a role needs costs half a second of a processor, and the tests start more
than a thousand roles without being about their start. Here ``subprocess.Popen`` starts
``python -m sealift ...`` in another way: a template process forks twice, so that the role
becomes a child of whoever asked (who adopts orphans for that moment), with its own
arguments, environment, folder, descriptors, session and network namespace. From there on
everything is the product's. The recipe's process of a role is forked, too (``warm.py``).

A role whose interpreter would begin otherwise (other ``PYTHON...`` variables, another
allocator) gets an interpreter of its own, and so does what a forked role starts, or
becomes; but that one's recipe's process is forked from the same templates, which are
handed on to it. A test that is about the start is marked ``cold``.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from sealift.train.worker import executor
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT, asks_to_overwrite
from tests.sim import warm

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = ("join", "accelerator", "orchestrator", "broker", "serve")
_EXECUTE: Final = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SET_CHILD_SUBREAPER: Final = 36
_NEW_NETWORK: Final = 0x40000000
_HIGH: Final = 500  # roles get lower descriptors
_REQUEST_BYTES: Final = 1 << 18
_MOST_DESCRIPTORS: Final = 64
# What an interpreter or a library reads when it begins.
_READ_EARLY: Final = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_", "LC_", "LANG"),
    "COVERAGE",
)
_OWN_PLACES: Final = {str(ROOT), str(ROOT / "src")}
# Commands with a recipe's process, or that start or become one that has.
_WITH_RECIPES: Final = {"accelerator", "demo", "host", "join", "serve", "train"}
_GO_ON: Final = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.sim.warmroles import go_on
go_on({str(ROOT)!r})
"""
_ASKING: Final = threading.Lock()
# By whether freed memory is overwritten in it, as in roles that have rows.
_TEMPLATES: dict[bool, tuple[socket.socket, subprocess.Popen[bytes]]] = {}


def install(*, cold: bool) -> None:
    """Have the next test's roles forked; those of a ``cold`` one start as ever."""
    how = _EXECUTE if cold else _execute_child
    subprocess.Popen._execute_child = how  # type: ignore[attr-defined]


def end() -> None:
    """End the templates of this process; a test run calls it last."""
    for asking, process in _TEMPLATES.values():
        asking.close()
        process.wait()
    _TEMPLATES.clear()


def _execute_child(
    self: Any,
    args: Any,
    executable: Any,
    preexec_fn: Any,
    close_fds: bool,
    pass_fds: Sequence[int],
    cwd: Any,
    env: Mapping[str, str] | None,
    *more: Any,
) -> None:
    """In place of ``subprocess.Popen._execute_child``."""
    startupinfo, flags, shell, *pipes = more[:9]
    _restored, gid, gids, uid, umask, session, group = more[9:]
    environment = {**(os.environ if env is None else env)}
    odd = executable or preexec_fn or shell or startupinfo or flags or not close_fds
    other = gid is not None or gids is not None or uid is not None or umask != -1
    request = None
    if not odd and not other and group in (-1, 0) and os.path.isdir(cwd or "."):
        request = _request(args, environment)
    if request is None:
        how = executable, preexec_fn, close_fds, pass_fds, cwd, env, *more
        _EXECUTE(self, args, *how)
        return
    read_in, _, _, write_out, _, write_error = pipes
    standard = [
        own if given == -1 else given
        for own, given in enumerate((read_in, write_out, write_error))
    ]
    request |= {
        "folder": os.path.abspath(cwd or "."),
        "numbers": [0, 1, 2, *pass_fds],
        "session": session,
        "own_group": group == 0,
        "parent": os.getpid(),
    }
    self.pid = _ask(request, [*standard, *pass_fds])
    self._child_created = True
    self._close_pipe_fds(*pipes)


def _request(args: Any, environment: dict[str, str]) -> dict[str, Any] | None:
    """What to ask of the template; None if only an interpreter of its own will do."""
    words = [os.fspath(each) for each in args] if isinstance(args, list | tuple) else []
    space = ""
    if words[:3] == ["ip", "netns", "exec"]:
        space, words = words[3], words[4:]
    if words[:1] != [sys.executable]:
        return None
    safe = words[1:2] == ["-P"]
    words = words[2 if safe else 1 :]
    if words[:2] != ["-m", "sealift"] or not _begins_alike(environment):
        return None
    asked = asks_to_overwrite(environment)
    overwriting = asked or _restarts_overwriting(words[2:])
    if overwriting:
        environment = environment | ALLOCATOR_ENVIRONMENT
    return {
        "words": words[2:],
        "safe": safe or (overwriting and not asked),  # one that restarts is
        "space": space,
        "environment": environment,
        "overwriting": overwriting,
    }


def _begins_alike(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter with it begins as a template did."""
    places = environment.get("PYTHONPATH", str(ROOT)).split(os.pathsep)
    early = read_early(environment)
    if asks_to_overwrite(early):  # there is a template that does
        early = {k: v for k, v in early.items() if k not in ALLOCATOR_ENVIRONMENT}
    return _OWN_PLACES.issuperset(places) and early == _EARLY


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """What of it an interpreter reads when it begins: a role with other is not forked."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and name != "PYTHONPATH"
    }


def _not_early(environment: Mapping[str, str]) -> dict[str, str]:
    early = read_early(environment)
    return {name: each for name, each in environment.items() if name not in early}


def _restarts_overwriting(words: Sequence[str]) -> bool:
    """Whether a role with these words calls ``memory.restart_overwriting``."""
    if words[:1] in (["accelerator"], ["serve"]):
        return "--keep-freed-memory" not in words
    if words[:1] != ["join"] or "--holder-only" in words:
        return False
    with suppress(OSError):
        jobs = [Path(each).read_bytes() for each in words if each.endswith(".toml")]
        return any(b'plan = "ddp"' in job for job in jobs)
    return False


def _ask(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Have a child forked; its number."""
    with _ASKING:
        template = _template(bool(request["overwriting"]))
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                raw = json.dumps(request).encode()
                socket.send_fds(template, [raw], [theirs.fileno(), *descriptors])
            pid = int(ours.recv(32))
            _adopt_orphans(True)
            try:
                ours.sendall(b"e")  # the one between ends, and its child is ours
                if ours.recv(1) != b"a":
                    raise ChildProcessError("a forked role did not begin")
            finally:
                _adopt_orphans(False)
    return pid


def _adopt_orphans(yes: bool) -> None:
    if _LIBC.prctl(_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _template(overwriting: bool) -> socket.socket:
    if overwriting not in _TEMPLATES:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        more = ALLOCATOR_ENVIRONMENT if overwriting else {}
        path = {"PYTHONPATH": os.pathsep.join(sorted(_OWN_PLACES))}
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "tests.sim.warmroles",
                    str(theirs.fileno()),
                ],
                env={**_not_early(os.environ), **_EARLY, **more, **path},
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        _TEMPLATES[overwriting] = ours, process
    return _TEMPLATES[overwriting][0]


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each request; only in a child does this return, with what was asked."""
    for each in ("main", "train", *(f"roles.{role}" for role in MODULES)):
        import_module(f"sealift.cli.{each}")
    while True:
        raw, received, *_ = socket.recv_fds(control, _REQUEST_BYTES, _MOST_DESCRIPTORS)
        if not raw:
            os._exit(0)
        request = json.loads(raw)
        os.environ.clear()
        os.environ.update(request["environment"])
        word = (request["words"] or [""])[0]
        with_recipes = word in _WITH_RECIPES
        if with_recipes:  # that of a served model overwrites what it frees
            wanted = executor._environment(overwrite_freed=word == "serve")
            warm.prepare(wanted, _HIGH)
        warm.install(cold=not with_recipes)
        between = os.fork()
        if between:
            for each in received:
                os.close(each)
            os.waitpid(between, 0)
            continue
        asker, *descriptors = [fcntl(each, F_DUPFD_CLOEXEC, _HIGH) for each in received]
        pid = os.fork()
        if pid:
            os.write(asker, str(pid).encode())
            os.read(asker, 1)
            os._exit(0)
        while os.getppid() != request["parent"]:
            time.sleep(0.0005)
        os.closerange(3, _HIGH)
        _take_place(request, descriptors)
        os.write(asker, b"a")
        os.close(asker)
        if with_recipes:
            warm.settle()
            _hand_on()
        return request


def _hand_on() -> None:
    """Let interpreters that this process starts, or becomes, ask its templates."""
    become = os.execv

    def execv(path: str, args: Sequence[str]) -> None:
        args, descriptors = _asking_ours(args)
        for each in descriptors:
            os.set_inheritable(each, True)
        become(path, args)

    def execute(self: Any, args: Any, *how: Any) -> None:
        executable, preexec_fn, close_fds, pass_fds, *more = how
        if isinstance(args, list):
            args, descriptors = _asking_ours(args)
            pass_fds = (*pass_fds, *descriptors)
        _EXECUTE(self, args, executable, preexec_fn, close_fds, pass_fds, *more)

    os.execv = execv  # type: ignore[assignment]
    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _asking_ours(args: Sequence[str]) -> tuple[Sequence[str], list[int]]:
    """How to start an interpreter that asks our templates; and what it asks through."""
    at = 2 if args[1:2] == ["-P"] else 1
    started = args[0] == sys.executable and args[at : at + 2] == ["-m", "sealift"]
    if not started or (args[at + 2 :] or [""])[0] not in _WITH_RECIPES:
        return args, []
    handed = warm.handed_on()
    words = [*args[:at], "-c", _GO_ON, json.dumps(handed), *args[at + 2 :]]
    return words, [descriptor for _, descriptor in handed]


def go_on(place: str) -> None:
    """Be the command that ``_asking_ours`` was given."""
    sys.path.remove(place)
    handed, *words = sys.argv[1:]
    warm.adopt(json.loads(handed))
    warm.install(cold=False)
    _hand_on()
    sys.argv = ["sealift", *words]
    runpy.run_module("sealift", run_name="__main__", alter_sys=True)


def _take_place(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Session, namespace, folder and descriptors, as the one who asked wants them."""
    if request["session"]:
        os.setsid()
    else:
        group = 0 if request["own_group"] else os.getpgid(request["parent"])
        os.setpgid(0, group)
    if request["space"]:
        space = os.open(f"/run/netns/{request['space']}", os.O_RDONLY)
        if _LIBC.setns(space, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(space)
    os.chdir(request["folder"])
    for number, descriptor in zip(request["numbers"], descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    sys.argv = ["sealift", *request["words"]]
    own = [] if request["safe"] else [request["folder"]]
    given = request["environment"].get("PYTHONPATH")
    own += given.split(os.pathsep) if given else []
    sys.path[:] = own + [each for each in sys.path if each not in _OWN_PLACES]


def _main() -> None:
    control = socket.socket(fileno=fcntl(int(sys.argv[1]), F_DUPFD_CLOEXEC, 3))
    os.close(int(sys.argv[1]))
    _serve(control)
    control.detach()  # closed already
    runpy.run_module("sealift", run_name="__main__", alter_sys=True)


# Before a test changes it: a template begins with this, whenever it is started.
_EARLY: Final = read_early(os.environ)

if __name__ == "__main__":
    _main()
