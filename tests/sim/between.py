"""Stands between an owner and a device: `python -m tests.sim.between HERE THERE`.

Forwards every byte from one Unix socket to the other and back, as a process of its own.
"""

from __future__ import annotations

import socket
import sys
import threading
import time


def forward(source: socket.socket, target: socket.socket) -> None:
    while part := source.recv(65536):
        target.sendall(part)
    target.shutdown(socket.SHUT_WR)


def main() -> None:
    here, there = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(here)
    listener.listen(1)
    print("listening", flush=True)
    owner, _ = listener.accept()
    device = socket.socket(socket.AF_UNIX)
    while device.connect_ex(there):
        time.sleep(0.01)
    back = threading.Thread(target=forward, args=(device, owner), daemon=True)
    back.start()
    forward(owner, device)
    back.join()


if __name__ == "__main__":
    main()
