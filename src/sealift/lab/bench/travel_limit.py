"""A link with a cap: two network namespaces and a real shaper, or a modelled one.

Real: the holder's processes live in a network namespace of their own, joined to this one
by a veth pair with a token bucket filter (tc-tbf) in each direction. That needs root and
iproute2. Else ``unlimited`` tells why, and the link is modelled (``travel_bucket``).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from sealift.lab.bench.travel_bucket import Address, ModelledLink

LATENCY: Final = "400ms"  # how long a packet may wait in the shaper
MIN_BURST_BYTES: Final = 32 << 10


class ShapedLink:
    """A veth pair; this process is at one end, ``inside`` commands at the other."""

    def __init__(self) -> None:
        tag = secrets.token_hex(3)
        self._space, self._here, self._there = f"sl-{tag}", f"sl{tag}a", f"sl{tag}b"
        net = 1 + secrets.randbelow(250)
        self.here, self._far = f"10.213.{net}.1", f"10.213.{net}.2"

    def open(self) -> None:
        """Make namespace and pair, without a cap."""
        _run("ip", "netns", "add", self._space)
        pair = (self._here, "type", "veth", "peer", "name", self._there)
        _run("ip", "link", "add", *pair)
        _run("ip", "link", "set", self._there, "netns", self._space)
        _run("ip", "addr", "add", f"{self.here}/30", "dev", self._here)
        _run("ip", "link", "set", self._here, "up")
        far = ("ip", "-n", self._space)
        _run(*far, "addr", "add", f"{self._far}/30", "dev", self._there)
        _run(*far, "link", "set", self._there, "up")
        _run(*far, "link", "set", "lo", "up")

    def cap(self, mbit_per_s: float) -> None:
        """Cap both directions; 0 takes the cap away."""
        for where, device in (((), self._here), (("-n", self._space), self._there)):
            if not mbit_per_s:
                with suppress(subprocess.CalledProcessError):  # there was none
                    _run("tc", *where, "qdisc", "del", "dev", device, "root")
                continue
            burst = max(MIN_BURST_BYTES, int(mbit_per_s * 1e6 / 8 / 200))
            shaper = ("tbf", "rate", f"{mbit_per_s}mbit", "burst", str(burst))
            place = ("qdisc", "replace", "dev", device, "root")
            _run("tc", *where, *place, *shaper, "latency", LATENCY)

    def inside(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command, at the far end."""
        return ("ip", "netns", "exec", self._space, *command)

    def through(self, address: Address) -> Address:
        """Where to dial to reach ``address`` over the link: right there."""
        return address

    def close(self) -> None:
        """Remove pair and namespace."""
        for command in (("link", "del", self._here), ("netns", "del", self._space)):
            with suppress(subprocess.CalledProcessError):
                _run("ip", *command)


class Link(Protocol):
    """What lies between holder and accelerator."""

    here: str

    def cap(self, mbit_per_s: float) -> None:
        """Cap both directions; 0 takes the cap away."""
        ...

    def inside(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command, run at the far end."""
        ...

    def through(self, address: Address) -> Address:
        """Where to dial from the far end to reach an address here."""
        ...

    def close(self) -> None:
        """Take it away."""
        ...


@contextmanager
def capped_link(why_not: str) -> Iterator[Link]:
    """A link with a real shaper, or a modelled one if there is a reason against it."""
    link: ShapedLink | ModelledLink = ModelledLink() if why_not else ShapedLink()
    try:
        if isinstance(link, ShapedLink):
            link.open()
        yield link
    finally:
        link.close()


def unlimited() -> str:
    """Why no link can be shaped here; empty if one can."""
    if os.geteuid() != 0:
        return "it takes root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (iproute2)"
    try:
        _run("ip", "netns", "list")
        probe = ShapedLink()
        try:
            probe.open()
            probe.cap(100)
        finally:
            probe.close()
    except (OSError, subprocess.CalledProcessError):
        return "the kernel refuses network namespaces, veth pairs or tbf"
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)  # noqa: S603 - fixed commands
