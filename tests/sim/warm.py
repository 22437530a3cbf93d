"""Zygotes that have torch already: forked from a process that loaded it once.

Loading torch costs three seconds of a processor, and hundreds of tests start a zygote
(`sealift.train.sandboxed.zygote`) without being about its start. Here each is forked from
a template: one process for each environment that a zygote would get, as an allocator reads
some variables when its process begins. From there on, everything is the product's: the
child runs ``zygote.main`` with its own arguments, descriptors and process group.

A test that is about the start itself, or about memory that a fresh process has, is marked
``cold``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Final

from sealift.train.worker import executor

_STATUS: Final = struct.Struct("<i")
# Nothing is loaded before somebody asks: most commands that could ask never do.
_WHEN_ASKED: Final = """
import runpy, socket, sys
control = socket.socket(fileno=int(sys.argv[2]))
if control.recv(1, socket.MSG_PEEK):
    control.detach()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
_START: Final = executor._start
# Each with the end that it is asked through: it ends with the last copy of that.
_TEMPLATES: dict[
    tuple[tuple[str, str], ...], tuple[socket.socket, subprocess.Popen[bytes]]
] = {}
# Those of a process before this one, by environment: an end to ask each through.
_ADOPTED: dict[tuple[tuple[str, str], ...], socket.socket] = {}


def start(
    wanted: str, environment: Mapping[str, str], said: int
) -> tuple[ForkedProcess, socket.socket]:
    """In place of ``executor._start``: the zygote's process, and our end of its control.

    Where templates were adopted, there is none for another environment.
    """
    if _ADOPTED and tuple(sorted(environment.items())) not in _ADOPTED:
        return _START(wanted, environment, said)  # type: ignore[return-value]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended, tells = socket.socketpair()
    with theirs, tells:
        descriptors = [theirs.fileno(), said, tells.fileno()]
        template = _template(environment)
        socket.send_fds(template, [wanted.encode()], descriptors)
        (pid,) = _STATUS.unpack(ended.recv(_STATUS.size))
    return ForkedProcess(pid, ended), ours


def install(*, cold: bool) -> None:
    """Have the next test's zygotes forked; those of a ``cold`` one start as ever."""
    executor._start = _START if cold else start  # type: ignore[assignment]


def end() -> None:
    """End the templates of this process; a test run calls it last."""
    for asking, process in _TEMPLATES.values():
        asking.close()
        process.wait()
    _TEMPLATES.clear()


def prepare(environment: Mapping[str, str], lowest: int) -> None:
    """Start the template of an environment before this process is forked itself.

    Its forks ask through a descriptor that is not below ``lowest``.
    """
    key = tuple(sorted(environment.items()))
    if key not in _TEMPLATES:
        low = _template(environment)
        kept = socket.socket(fileno=fcntl(low.fileno(), F_DUPFD_CLOEXEC, lowest))
        low.close()
        _TEMPLATES[key] = kept, _TEMPLATES[key][1]


def handed_on() -> list[tuple[dict[str, str], int]]:
    """Each environment that there is a template for, and the descriptor to ask it through."""
    asked = {key: asking for key, (asking, _) in _TEMPLATES.items()} | _ADOPTED
    return [(dict(key), asking.fileno()) for key, asking in asked.items()]


def settle() -> None:
    """Start no template in this process, which was forked: there are those of before."""
    _ADOPTED.update((key, asking) for key, (asking, _) in _TEMPLATES.items())


def adopt(handed: Sequence[tuple[Mapping[str, str], int]]) -> None:
    """Ask the templates of the process that started this one, or was it before."""
    for environment, descriptor in handed:
        os.set_inheritable(descriptor, False)
        key = tuple(sorted(environment.items()))
        _ADOPTED[key] = socket.socket(fileno=descriptor)


class ForkedProcess:
    """What an executor uses of ``subprocess.Popen``, of a process that is not our child.

    Args:
        pid: Of the process.
        ended: Where the template writes its exit status.
    """

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def wait(self, timeout: float | None = None) -> int:
        """See ``subprocess.Popen.wait``."""
        if self.returncode is None:
            if not _ready([self._ended], timeout):
                raise subprocess.TimeoutExpired("a zygote", timeout or 0)
            (self.returncode,) = _STATUS.unpack(self._ended.recv(_STATUS.size))
            self._ended.close()
        return self.returncode

    def poll(self) -> int | None:
        """See ``subprocess.Popen.poll``."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """See ``subprocess.Popen.kill``."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _ready(
    sources: Sequence[socket.socket | int], timeout_s: float | None = None
) -> list[int]:
    """Descriptors that can be read; ``select`` takes none above 1023."""
    poll = select.poll()
    for each in sources:
        poll.register(each, select.POLLIN)
    return [
        ready for ready, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)
    ]


def _template(environment: Mapping[str, str]) -> socket.socket:
    key = tuple(sorted(environment.items()))
    if key in _ADOPTED:
        return _ADOPTED[key]
    if key not in _TEMPLATES:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _WHEN_ASKED,
                    __file__,
                    str(theirs.fileno()),
                ],
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        _TEMPLATES[key] = ours, process
    return _TEMPLATES[key][0]


def _serve(control: socket.socket) -> None:
    """Fork a zygote for each request; tell of each its number, and then how it ended."""
    from sealift.train.sandboxed.recipeworker import warm_up

    warm_up()
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in _ready([control, *children]):
            if ready in children:
                pid, tells = children.pop(ready)
                os.close(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with tells:
                    try:
                        tells.sendall(_STATUS.pack(status))
                    except OSError:  # nobody waits for it any more
                        continue
                continue
            wanted, descriptors, *_ = socket.recv_fds(control, 4096, 3)
            if not descriptors:
                return
            ours, said, told = descriptors
            tells = socket.socket(fileno=told)
            pid = os.fork()
            if pid == 0:
                control.close()
                tells.close()
                for each, (_, other) in children.items():
                    os.close(each)
                    other.close()
                _become(ours, said, wanted.decode())
            os.close(ours)
            os.close(said)
            tells.sendall(_STATUS.pack(pid))
            children[os.pidfd_open(pid)] = pid, tells


def _become(control: int, said: int, wanted: str) -> None:
    """Run a zygote in this process, and end with it."""
    from sealift.train.sandboxed import zygote

    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(said, 2)
        os.close(said)
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 1)
        sys.argv = ["zygote", str(control), wanted]
        status = zygote.main()
    except BaseException:  # as the interpreter would say it
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
