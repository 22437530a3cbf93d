"""`sealift data seal` killed at its steps, then run again: FOLDER MODE N [STEP...].

FOLDER holds north.key, passphrase and t.npz. A step is whatever opens, makes, moves or
removes a file there, and both ends of a transaction. For each a fresh process is killed
before it; one line of JSON says what was found then, and after the same command again.
MODE ``product`` seals as it is; ``places-first`` is a mutant that puts files in place
before their keys are kept, ``one-by-one`` one that keeps the keys in a step each. N is
the number of shards; 0: none. Without a STEP it is killed at all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sealift.cli import data
from sealift.cli.main import main
from sealift.crypto.identity import Identity, load_identity
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.data import SealedDataset, sealing
from sealift.data.ownersvault import OwnersVault
from sealift.data.schema.document import load_schema
from sealift.data.staging import Staging
from sealift.errors import SealiftError
from sealift.release.broker.stores import keep_keys
from sealift.release.vault import file as vault_file
from sealift.release.vault.vault import Vault

STEPS = (
    "open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link",
    "sqlite3.connect", "transaction",
)  # fmt: skip
GIVEN = ("north.key", "passphrase", "t.npz", "s.toml")
WANTED = sys.argv[4:] or STEPS
KILLED = 128 + signal.SIGKILL


def mutate(mode: str) -> None:
    def one_by_one(self: OwnersVault, keys: dict[str, Any]) -> None:
        for name, key in keys.items():
            keep_keys(self.path, self.identity, {name: key})

    if mode == "one-by-one":
        OwnersVault.keep = one_by_one  # type: ignore[method-assign,assignment]
    if mode == "places-first":
        place, original, staged = Staging.place, sealing.seal_shards, sealing.staged
        inside: list[Staging] = []

        @contextmanager
        def seen(*words: Any) -> Iterator[Staging]:
            with staged(*words) as folder:
                inside.append(folder)
                yield folder

        def swapped(*words: Any, keep: Any, **named: Any) -> Any:
            def first(cards: Any) -> None:
                place(inside[-1])
                keep(cards)

            return original(*words, keep=first, **named)

        Staging.place = lambda folder: None  # type: ignore[method-assign]
        sealing.staged = seen  # type: ignore[assignment]
        sealing.seal_shards = swapped


def is_inside(place: object, folder: Path) -> bool:
    if isinstance(place, int):
        return False
    text = os.fspath(place)  # type: ignore[call-overload]
    return str(folder) in (text if "://" in str(text) else os.path.abspath(text))


def step_by_step(folder: Path, die_before: int) -> None:
    """Kill this process before step ``die_before``; steps are counted from 1."""
    taken = 0

    def step(event: str, words: tuple[Any, ...]) -> None:
        nonlocal taken
        if event in WANTED and is_inside(words[0], folder):
            taken += 1
            if taken == die_before:
                os.write(1, f"{event} {words[0]!s:.90}".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def reported(
        begin: Callable[..., Any],
    ) -> Callable[..., Any]:
        @contextmanager
        def inside(*words: Any) -> Iterator[None]:
            with begin(*words):
                yield
                step("transaction", (folder / "before its commit",))
            step("transaction", (folder / "after its commit",))

        return inside

    vault_file.transaction = reported(vault_file.transaction)
    sys.addaudithook(step)


def run(words: list[str], folder: Path, die_before: int = 0) -> tuple[int, str]:
    """In a process of its own: exit code, and what it said."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        if die_before:
            step_by_step(folder, die_before)
        os._exit(main(words))
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read().decode()
    _, status = os.waitpid(child, 0)
    code = KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return code, text.strip()


OWNER = load_identity(Path(sys.argv[1]) / "north.key", "correct horse")
SEED = OWNER.seed.reveal(TOKEN)  # a key does not live on in a forked process


def rows_of(folder: Path, pattern: str, *, schema: bool) -> int | str:
    """The rows that a user gets who opens it now, or the code of the refusal."""
    identity = OWNER
    given = load_schema(folder / "s.toml") if schema else None
    try:
        with closing(Vault.open(folder / "v.db", identity)) as keys:
            data = SealedDataset(str(folder / "out" / pattern), keys, schema=given)
        with closing(data):
            return int(data.rows(range(len(data)))["n"].sum())
    except SealiftError as error:
        return error.code


def left(folder: Path) -> list[str]:
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return sorted(set(every) - set(GIVEN))


def tried(folder: Path, words: list[str], pattern: str, step: int) -> dict[str, Any]:
    for name in left(folder):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True)
    code, before = run(words, folder, step)
    found = [rows_of(folder, pattern, schema=each) for each in (False, True)]
    again, said = run(words, folder)
    whole = rows_of(folder, pattern, schema=False)
    return {
        "killed": code == KILLED, "step": before, "found": found,
        "again": again, "all_said": said, "whole": whole, "left": left(folder),
    }  # fmt: skip


if __name__ == "__main__":
    home, count = Path(sys.argv[1]), int(sys.argv[3])
    mutate(sys.argv[2])
    # A passphrase costs time in each process, and is not what is asked here.
    data.unlock = lambda *_: Identity("north", SecretKey(SEED))
    command = [
        "data", "seal", "t.npz", "--schema", "s.toml", "--name", "n", "-o", "out",
        "--part", "train", "--vault", "v.db", "--key", "north.key",
        "--passphrase-file", "passphrase", "--record-bytes", "64",
        *(["--shards", str(count)] if count else []),
    ]  # fmt: skip
    for number in range(1, 200):
        seen = tried(home, command, "n-*.sealed" if count else "n.sealed", number)
        print(json.dumps(seen), flush=True)
        if not seen["killed"]:
            break
