"""The relay with a peer in another process, which is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sealift.errors import PeerError
from sealift.session.relay.server import Relay

SOURCE = Path(__file__).parents[2] / "src"
ECHO = """
import sys
from sealift.session.relay.client import RelayClient
with RelayClient.dial(("127.0.0.1", int(sys.argv[1])), "echo") as link:
    circuit = link.accept(20)
    while True:
        circuit.send(circuit.receive(20))
"""


@pytest.mark.distributed
def test_a_killed_process_is_a_peer_error() -> None:
    with Relay.listen() as relay, relay.local_client() as link:
        child = subprocess.Popen(
            [sys.executable, "-c", ECHO, str(relay.address[1])],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        try:
            circuit = link.open("echo", wait_s=20)
            circuit.send(b"hello")
            assert circuit.receive(20) == b"hello"
            child.send_signal(signal.SIGKILL)
            with pytest.raises(PeerError) as refusal:
                circuit.receive(20)
        finally:
            child.kill()
            child.wait()
        assert refusal.value.code == "peer-gone"
        with pytest.raises(PeerError) as refusal:
            link.open("echo")
        assert refusal.value.code == "unknown-peer"
