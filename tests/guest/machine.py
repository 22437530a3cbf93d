"""A running guest: a software TPM and QEMU, and the line to the agent inside.

Every process is started here and ended by ``close``; every file lies in one temporary
folder. QEMU has no network. A power cycle is a new QEMU over the same TPM state. To a verifier's
side it is an attested host: evidence, enrolment, and bad acts on demand.

``AgentPort`` offers its agent to one process of this machine at a time, over a socket in a
folder that its owner alone can enter. Only an agent's requests pass: whoever connects can
neither switch the guest off nor have it misbehave.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.agent import (
    AGENT,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    SCHEME,
    AgentReply,
    AnswerChallenge,
    Collect,
    Enrol,
    Keep,
    Measure,
    decode_reply,
    encode_reply,
    error_reply,
    read_frame,
)
from sealift.attest.tpm.enrolment import EnrolmentRequest, SignedEnrolment
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.crypto.certificate import Certificate
from sealift.crypto.tpmcredential import Credential
from sealift.errors import PeerError, SealiftError, UnavailableError
from tests.guest.agent import (
    COMMAND_LINE,
    GUEST,
    Act,
    Misbehave,
    Request,
    ShutDown,
    Start,
    skip_to_preamble,
)
from tests.guest.image import GuestImage
from tests.worlds.softwarehost import (
    Maker,
    end_leashed,
    manufacture,
    new_maker,
    start_leashed,
    tpm_command,
)

BOOT_TIMEOUT_S: Final = 120.0
REPLY_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 5.0
_MEMORY_MIB: Final = 512


class Guest:
    """One guest, from power on to ``close``; an attester to the outside.

    Use as a context manager.

    Args:
        image: What it boots.
        maker: Who certifies its TPM; a maker of its own if None.

    Raises:
        UnavailableError: ``guest-start``, ``guest-tpm``, or what the guest lacks.
    """

    def __init__(self, image: GuestImage, maker: Maker | None = None) -> None:
        self.image = image
        self._folder = Path(tempfile.mkdtemp(prefix="guest-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._line: socket.socket | None = None
        self._asking = threading.Lock()
        try:
            self.maker = maker or new_maker(self._folder / "maker")
            manufacture(self.maker, self._folder / "tpm")
            self.boot()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def root(self) -> Certificate:
        """Of whoever certified its TPM."""
        return self.maker.root

    def boot(self) -> None:
        """Switch it on, or off and on again; returns when its agent speaks."""
        self._power_off()
        shutil.copy(self.image.variables, self._folder / "vars.fd")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._folder / "agent"))
            listener.listen(1)
            listener.settimeout(BOOT_TIMEOUT_S)
            self._start(*tpm_command(self._folder / "tpm", self._folder / "control"))
            self._wait_for(self._folder / "control")
            self._start(*_qemu_command(self.image, self._folder))
            self._line = self._accept(listener)
        self._line.settimeout(BOOT_TIMEOUT_S)
        try:
            skip_to_preamble(self._line.recv)
        except (PeerError, TimeoutError):
            raise self._not_started() from None
        self._line.settimeout(REPLY_TIMEOUT_S)
        self.ask(Start(tuple(each.der for each in self.maker.issuers)))

    def ask(self, request: Request) -> bytes:
        """Send one request and return the answer; threads take turns.

        Raises:
            PeerError: the guest is gone.
            UnavailableError: the guest could not do it.
        """
        if self._line is None:
            raise PeerError("the guest is switched off", code="guest-gone")
        try:
            with self._asking:
                self._line.sendall(GUEST.encode(request))
                reply = decode_reply(read_frame(self._line.recv, MAX_REPLY_BYTES))
        except (OSError, PeerError) as error:
            # An answer that comes late would be taken for that of the next request.
            self._line.close()
            self._line = None
            raise PeerError(
                "the guest does not answer", why=str(error), code="guest-gone"
            ) from None
        if reply.error:
            raise UnavailableError(reply.error, code=reply.code)
        return reply.content

    def collect(self, bound: bytes) -> Evidence:
        """See ``TpmAttester.collect``."""
        return self._collect(bound, None)

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """See ``TpmAttester.continue_from``."""
        return self._collect(bound, earlier)

    def enrolment_request(self) -> EnrolmentRequest:
        """What a broker needs to enrol it."""
        return codec.decode(EnrolmentRequest, self.ask(Enrol()))

    def answer(self, credential: Credential) -> bytes:
        """The secret of a credential for it."""
        return self.ask(AnswerChallenge(credential.blob, credential.seed))

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Have it show an enrolment from now on."""
        self.ask(Keep(codec.encode(signed)))

    def measure(self, event: RuntimeEvent) -> None:
        """Have it extend its runtime log."""
        self.ask(Measure(event.kind, event.content))

    def misbehave(self, act: Act) -> str:
        """Have it do what a host must not; returns the path that its list shows."""
        return self.ask(Misbehave(act)).decode()

    def power_cycle(self, *, orderly: bool = True) -> None:
        """Switch it off and on: same TPM, new boot.

        Args:
            orderly: Whether its kernel may tell the TPM first; without that the TPM
                may not vouch for its clock afterwards.
        """
        if orderly:
            self.shut_down()
        self.boot()

    def shut_down(self) -> None:
        """Have it switch itself off, in good order.

        Raises:
            PeerError: it does not.
        """
        with contextlib.suppress(PeerError):  # QEMU may end before it answers
            self.ask(ShutDown())
        try:
            self._processes[-1].wait(REPLY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise PeerError("the guest stays on", code="guest-gone") from None

    def close(self) -> None:
        """Switch it off and forget it."""
        self._power_off()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _collect(self, bound: bytes, earlier: Evidence | None) -> Evidence:
        known = earlier.digest if earlier else None
        return Evidence(TpmBody.kind, MEDIA_TYPE, self.ask(Collect(bound, known)))

    def _power_off(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        for process in reversed(self._processes):
            end_leashed(process, _END_TIMEOUT_S)
        self._processes.clear()
        for name in ("agent", "control"):
            (self._folder / name).unlink(missing_ok=True)

    def _start(self, *command: str) -> None:
        with (self._folder / "said").open("ab") as said:
            try:
                process = start_leashed(command, stdout=said, stderr=said)
            except OSError as error:
                raise _unavailable(str(error)) from None
        self._processes.append(process)

    def _wait_for(self, path: Path) -> None:
        until = time.monotonic() + _END_TIMEOUT_S
        while not path.exists():
            if self._processes[-1].poll() is not None or time.monotonic() > until:
                raise self._not_started()
            time.sleep(0.005)

    def _accept(self, listener: socket.socket) -> socket.socket:
        # QEMU connects at once, or ends at once and says why.
        listener.settimeout(_END_TIMEOUT_S)
        try:
            return listener.accept()[0]
        except TimeoutError:
            raise self._not_started() from None

    def _not_started(self) -> UnavailableError:
        texts = []
        for name in ("said", "console"):
            with contextlib.suppress(OSError):
                raw = (self._folder / name).read_bytes()
                said = raw.decode(errors="replace").partition("Kernel panic")[0]
                texts.append(said[-400:])
        return _unavailable(" ".join(texts).strip() or "it said nothing")


def _qemu_command(image: GuestImage, folder: Path) -> list[str]:
    """The command that runs ``image`` with its files in ``folder``.

    QEMU hands kernel, initramfs and command line to the firmware, which measures them:
    the kernel into PCR 4, the other two into PCR 9.
    """
    return [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-machine", "q35,accel=tcg,smm=off", "-cpu", "max", "-m", str(_MEMORY_MIB)),
        *("-display", "none", "-vga", "none", "-nic", "none"),
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={image.firmware}"),
        *("-drive", f"if=pflash,format=raw,unit=1,file={folder}/vars.fd"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
        *("-append", COMMAND_LINE),
        *("-chardev", f"socket,id=tpm,path={folder}/control"),
        *("-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0"),
        *("-serial", f"file:{folder}/console"),
        *("-chardev", f"socket,id=agent,path={folder}/agent"),
        *("-serial", "chardev:agent"),
    ]


def _unavailable(why: str) -> UnavailableError:
    return UnavailableError("the guest did not start", why=why, code="guest-start")


_END_S: Final = 2.0


class AgentPort:
    """Serves until ``close``; use as a context manager.

    Args:
        guest: Whose agent it is.
    """

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._folder = Path(tempfile.mkdtemp(prefix="agent-"))  # for us alone: 0700
        self._line: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / "agent"))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> AgentPort:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """What ``sealift accelerator --agent`` is told."""
        return f"{SCHEME}{self._folder / 'agent'}"

    def close(self) -> None:
        """Hang up and take no more calls."""
        for line in (self._listener, self._line):
            if line is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_S)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._line, _ = self._listener.accept()
                with self._line, contextlib.suppress(OSError, SealiftError):
                    self._converse(self._line)

    def _converse(self, line: socket.socket) -> None:
        while True:
            request = AGENT.decode(read_frame(line.recv, MAX_REQUEST_BYTES))
            try:
                reply = AgentReply(self._guest.ask(request))
            except PeerError:
                return  # the guest is gone, and so is its agent
            except SealiftError as error:
                reply = error_reply(error)
            line.sendall(encode_reply(reply))
