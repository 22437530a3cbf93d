"""Organisations in network namespaces, with the firewalls that such have.

The host's lets in its one port; of the owners every other one, from the first, has no way out
but a proxy; the rest is behind NAT. Lines between them can be cut, or become slow.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = "10.77.0.1"
PORT = 7420
PROXY_PORT = 3128
_FIREWALL = f"""
table inet fence {{
  chain input {{
    type filter hook input priority 0; policy drop;
    iif lo accept
    ct state established,related accept
    tcp dport {PORT} accept
  }}
}}
"""
_NAT = """
table ip nat {
  chain after {
    type nat hook postrouting priority 100;
    ip saddr 10.79.0.0/16 masquerade
  }
}
"""
# What is beyond the rate is lost, both ways, as on a line that is too narrow.
_SLOW = """
table inet narrow {{
  chain before {{
    type filter hook prerouting priority -300;
    iifname "{port}" limit rate over 128 kbytes/second burst 64 kbytes drop
  }}
}}
"""
_PROXY = (
    "import threading; from tests.sim.proxies import LittleProxy; "
    f"LittleProxy(({HOST!r}, {PORT}), own=('0.0.0.0', {PROXY_PORT})); "
    "print('listens', flush=True); threading.Event().wait()"
)


def lacking() -> str:
    """Why no namespaces can be made here; empty if they can."""
    if os.geteuid() != 0:
        return "this machine lacks root, who alone makes network namespaces"
    if missing := [each for each in ("ip", "nft") if shutil.which(each) is None]:
        return f"this machine lacks {missing[0]} (apt-get install iproute2 nftables)"
    name = f"sl{secrets.token_hex(3)}"
    made = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, check=False
    )
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return "" if made.returncode == 0 else "this machine lacks network namespaces"


class Organisations:
    """The namespaces, by party, and those between them."""

    def __init__(self, owners: tuple[str, ...]) -> None:
        self._mark = f"sl{secrets.token_hex(2)}"
        self._proxy: subprocess.Popen[str] | None = None
        self._links = 0
        self._names = ("between", "host", "proxy", "nat", *owners)
        # Of each owner: the gateway, its port to that owner, and its address there.
        self._lines: dict[str, tuple[str, str, str]] = {}
        for each in self._names:
            _run("ip", "netns", "add", self._of(each))
            self._in(each, "ip", "link", "set", "lo", "up")
        self._in("between", "ip", "link", "add", "bridge", "type", "bridge")
        self._in("between", "ip", "link", "set", "bridge", "up")
        for each, address in {
            "host": HOST,
            "proxy": "10.77.0.2",
            "nat": "10.77.0.3",
        }.items():
            port = self._link(each, address, "between")
            self._in("between", "ip", "link", "set", port, "master", "bridge", "up")
        for number, owner in enumerate(owners):
            outer, net = (("proxy", 78), ("nat", 79))[number % 2]
            port = self._link(owner, f"10.{net}.{number}.2", outer)
            gate = f"10.{net}.{number}.1"
            self._in(outer, "ip", "address", "add", f"{gate}/24", "dev", port)
            self._in(outer, "ip", "link", "set", port, "up")
            self._lines[owner] = (outer, port, gate)
            if outer == "nat":
                self._in(owner, "ip", "route", "add", "default", "via", gate)
        self._in("nat", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._in("nat", "nft", "-f", "-", text=_NAT)
        self._in("host", "nft", "-f", "-", text=_FIREWALL)
        self.renew_proxy()

    def proxy_of(self, owner: str) -> dict[str, str]:
        """The setting that names its proxy, if it is behind one."""
        outer, _, gate = self._lines[owner]
        return (
            {"HTTPS_PROXY": f"http://{gate}:{PROXY_PORT}"} if outer == "proxy" else {}
        )

    def cut(self, owner: str) -> None:
        """Nothing comes through any more, and nobody is told."""
        gateway, port, _ = self._lines[owner]
        self._in(gateway, "ip", "link", "set", port, "down")

    def mend(self, owner: str) -> None:
        """What was cut."""
        gateway, port, _ = self._lines[owner]
        self._in(gateway, "ip", "link", "set", port, "up")

    def slow(self, owner: str) -> None:
        """Its line carries 128 kB a second."""
        gateway, port, _ = self._lines[owner]
        self._in(gateway, "nft", "-f", "-", text=_SLOW.format(port=port))

    def widen(self, owner: str) -> None:
        """What was slow."""
        self._in(self._lines[owner][0], "nft", "delete", "table", "inet", "narrow")

    def enter(self, party: str) -> list[str]:
        """Words before a command that runs there."""
        return ["ip", "netns", "exec", self._of(party)]

    def reaches(self, party: str, host: str, port: int) -> bool:
        """Whether a connection from there comes through."""
        program = f"import socket; socket.create_connection(({host!r}, {port}), 2)"
        return _ran(*self.enter(party), sys.executable, "-c", program) == 0

    def renew_proxy(self) -> None:
        """Its certificate is renewed, for which it is started anew: connections end."""
        self._end_proxy()
        self._proxy = subprocess.Popen(
            [*self.enter("proxy"), sys.executable, "-c", _PROXY],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._proxy.stdout is not None
        assert self._proxy.stdout.readline() == "listens\n"

    def close(self) -> None:
        self._end_proxy()
        for each in reversed(self._names):
            _ran("ip", "netns", "del", self._of(each))

    def _end_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
            assert self._proxy.stdout is not None
            self._proxy.stdout.close()

    def _of(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _in(self, name: str, *words: str, text: str = "") -> None:
        _run(*self.enter(name), *words, text=text)

    def _link(self, name: str, address: str, other: str) -> str:
        """A cable; the name of its other end."""
        self._links += 1
        near, far = f"near{self._links}", f"far{self._links}"
        self._in(
            name, "ip", "link", "add", near, "type", "veth",
            "peer", "name", far, "netns", self._of(other),
        )  # fmt: skip
        self._in(name, "ip", "address", "add", f"{address}/24", "dev", near)
        self._in(name, "ip", "link", "set", near, "up")
        return far


def _run(*words: str, text: str = "") -> None:
    ran = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (words, ran.stderr)


def _ran(*words: str) -> int:
    return subprocess.run(words, capture_output=True, check=False).returncode


@contextmanager
def organisations_of(owners: tuple[str, ...]) -> Iterator[Organisations]:
    """A host's and those of the owners, until the block ends."""
    made = Organisations(owners)
    try:
        yield made
    finally:
        made.close()
