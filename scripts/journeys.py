"""The three journeys: which files of src/sealift a reader passes, from a recorded run.

It runs ``sealift demo`` with the plans travel and local, every process of it with this
file as its `sitecustomize`, which looks at each call in each thread. What counts:

* A journey has legs, one per process and thread that has the object in hand. A leg is a
  first function, from which on it is in hand, and marks: the innermost functions that do
  something with it (read, seal, send, receive, open, verify, place, hand over).
* When a mark is entered, each function on its thread's stack from the leg's first one to
  the mark is on the way. A file counts if one of its functions is.
* What those functions call beside the way does not count: checks of time and standing,
  events, derived keys, what was read or verified before. Nor does who drives a leg.
* Bytes in hand are sealed once more and carried on like any others by what is below a
  session or a transport: those files are shown apart, as `carried by`.

The journeys: a record from a holder's sealed file to the recipe's `loss`; a data key from
its owner's vault to the accelerator; `train` with the plan `local` from the command line
to `optimizer.step`, where the object in hand is the control itself.
A mark that no run enters is an error, so the table stays true.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType

CARRIERS = ("codec/", "session/", "channel/transport/")
BARS = {"record": 20, "key": 15, "train": 15}
# Journey, first function of a leg, and its marks.
LEGS = """
record travel/holder/visit.py:Provisioning._send_frames
  channel/transport/memfd.py:MemfdTransport.commit
record travel/holder/visit.py:Provisioning._build
  channel/transport/memfd.py:MemfdTransport.reserve travel/visit/lease.py:frame_head
  channel/record/rawfile.py:FileSource.read_into
record travel/accelerator/visit.py:CargoLoader._load
  channel/transport/memfd.py:MemfdTransport.borrow travel/visit/memory.py:CPUPool.buffer
record travel/accelerator/visit.py:CargoLoader._place
  travel/visit/lease.py:parse_frame travel/visit/lease.py:Frame.authenticate
  travel/visit/state.py:Visit.admit
  crypto/aead.py:Aead.open_into channel/record/opener.py:Slot.mark_verified
record travel/accelerator/visit.py:Hashing._hash
  crypto/hash.py:keyed_hash
record travel/accelerator/visit.py:work_together
  data/schedule/memory.py:SharedBuffer.descriptor train/worker/process.py:send_with
record train/sandboxed/recipeworker.py:run_worker
  train/sandboxed/parentpipe.py:map_copy data/schema/rows.py:demand_rows
  data/loader/rowtensors.py:batch_from_rows train/sandboxed/recipe.py:_plain
key release/broker/server.py:Broker.serve
  release/vault/vault.py:Vault.fetch crypto/hpke.py:HpkePublicKey.seal
key release/vault/vault.py:Vault.fetch
  crypto/aead.py:Aead.open
key release/grant.py:seal_grant
  crypto/keys.py:SecretKey.reveal
key session/session.py:Session.send_message
  codec/writing.py:encode channel/record/sealer.py:StreamSealer.seal_frame
  crypto/aead.py:Aead.seal_into channel/transport/tcp.py:TcpTransport.send
key session/relay/server.py:Relay._serve
  session/relay/switchboard.py:Switchboard.handle
  session/relay/server.py:RelayConnection.put
key session/relay/client.py:RelayClient._read
  channel/transport/tcp.py:TcpTransport.receive session/relay/circuit.py:Circuit.deliver
key train/job/releasedkeys.py:ReleasedKeys._collect_from
  release/client.py:collect_release
key release/client.py:collect_release
  session/relay/circuit.py:Circuit.receive channel/record/opener.py:StreamOpener.open_frame
  crypto/aead.py:Aead.open_into codec/reading.py:decode crypto/hpke.py:HpkePrivateKey.open
  channel/record/commitment.py:key_commitment
train cli/main.py:main
  train/worker/process.py:WorkerProcess.start
train train/sandboxed/zygote.py:main
  train/sandboxed/zygote.py:Zygote._run
train train/sandboxed/recipeworker.py:run_worker
  train/sandboxed/training.py:Training._differentiate
"""
SLOT, SLOTS = 1 << 16, 4096  # bytes of one process's notes, and processes


def legs() -> dict[str, list[tuple[str, str]]]:
    """Journey and first function of each leg, by its marks."""
    found: dict[str, list[tuple[str, str]]] = {}
    journey = first = ""
    for line in LEGS.strip().splitlines():
        if not line.startswith(" "):
            journey, first = line.split()
        else:
            for mark in line.split():
                found.setdefault(mark, []).append((journey, first))
    return found


def record_calls(notes: mmap.mmap) -> None:
    """Take notes of every mark that this process and its children enter.

    They go into memory that forked children share, since a sandbox lets out nothing else.
    """
    marks, seen, at = legs(), set[str](), [0, 0]
    names: dict[CodeType, str] = {}

    def begin(slot: int) -> None:
        at[:] = slot * SLOT, (slot + 1) * SLOT

    def take_slot() -> None:
        (last,) = struct.unpack_from("<I", notes)
        struct.pack_into("<I", notes, 0, last + 1)
        at.append(last + 1)

    def name_of(code: CodeType) -> str:
        if code not in names:
            place = code.co_filename.partition("/src/sealift/")[2]
            names[code] = f"{place}:{code.co_qualname}" if place else ""
        return names[code]

    def look(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (mark := name_of(frame.f_code)) not in marks:
            return
        way: list[str] = []
        reached: FrameType | None = frame
        firsts = {first: journey for journey, first in marks[mark]}
        while reached is not None and (name := name_of(reached.f_code)) not in firsts:
            way, reached = [name, *way], reached.f_back
        if reached is None:
            return
        line = " ".join([firsts[name], mark, name, *filter(None, way)]) + "\n"
        if line not in seen and at[0] + len(line) < at[1] - 32:
            seen.add(line)
            note = f"{time.monotonic_ns()} {line}".encode()
            notes[at[0] : at[0] + len(note)] = note
            at[0] += len(note)

    take_slot()
    begin(at.pop())
    os.register_at_fork(before=take_slot, after_in_child=lambda: begin(at[-1]))
    threading.setprofile(look)
    sys.setprofile(look)


def recorded(folder: Path, plan: str) -> Iterator[tuple[str, str, list[str]]]:
    """Journey, mark and the way of functions to it, in the order of legs, then of calls."""
    folder.mkdir()
    shutil.copy(__file__, folder / "sitecustomize.py")
    with (folder / "notes").open("wb") as notes:
        notes.truncate(SLOT * SLOTS)
    words = ["demo", "--plan", plan, "--output", str(folder / "run")]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "sealift", *words]
    subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)  # noqa: S603
    lines = (folder / "notes").read_bytes()[SLOT:].replace(b"\0", b"").decode()
    found = [line.split() for line in lines.splitlines()]
    found.sort(key=lambda each: (LEGS.index(f"{each[1]} {each[3]}\n"), int(each[0])))
    for _, journey, mark, *way in found:
        if (journey == "train") is (plan == "local"):
            yield journey, mark, way


def main() -> int:
    """Print the journeys; 1 if a mark was not reached."""
    print(__doc__)
    found: dict[str, dict[str, str]] = {name: {} for name in BARS}
    reached: set[tuple[str, str, str]] = set()
    with tempfile.TemporaryDirectory() as folder:
        runs = (recorded(Path(folder) / plan, plan) for plan in ("travel", "local"))
        for journey, mark, way in chain.from_iterable(runs):
            reached.add((mark, journey, way[0]))
            for place, _, function in (each.partition(":") for each in way):
                found[journey].setdefault(place, function)
    for journey, files in found.items():
        carried = [each for each in files if each.startswith(CARRIERS)]
        own = len(files) - len(carried)
        print(
            f"{journey}: {own} files, carried by {len(carried)} (bar: {BARS[journey]})"
        )
        for place, function in files.items():
            print(f"  {'. ' if place in carried else ''}{place:<40}{function}")
    missed = {(m, *leg) for m, each in legs().items() for leg in each} - reached
    for mark, journey, first in sorted(missed):
        print(f"journeys: {journey}: {first} did not reach {mark}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "sitecustomize":
    with (Path(__file__).parent / "notes").open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), SLOT * SLOTS)
    record_calls(shared)
elif __name__ == "__main__":
    sys.exit(main())
