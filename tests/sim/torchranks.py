"""Processes of one sealed group of torch.distributed, on this machine."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sealift.codec import encode
from sealift.crypto.identity import create_identity, save_identity
from sealift.data.schema.card import read_card
from sealift.events import wall_clock
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import add_signature, save_signed
from sealift.release.agreement.starter import Starter
from tests.sim.runfolder import made_once

Work = Callable[[int], Any]
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/ddp_script.py"
PARTIES = ("ada", "bern")
PASSPHRASE = "correct horse"


def group_world() -> Path:
    """A folder with all that a script's ranks start from; made once per run of tests."""
    return made_once("group", make_group_world)


def make_group_world(folder: Path, name: str = "scripts") -> None:
    """Parties, the key of a host that they accept, and what they agreed on."""
    identities = {each: create_identity(each) for each in PARTIES}
    for each, identity in identities.items():
        (folder / f"{each}.card.json").write_bytes(encode(identity.card))
    host = create_identity("host")
    save_identity(host, folder / "host.key", PASSPHRASE)
    (folder / "passphrase").write_text(PASSPHRASE)
    (folder / "code").mkdir()
    shutil.copy(SCRIPT, folder / "code")
    starter = Starter(
        name=name,
        about="group",
        party_cards=[(f"{each}.card.json", each) for each in PARTIES],
        resource_cards=[],
        bundle="code",
        entry=SCRIPT.name,
        model_owner="",
        operator="ada",
        attesters=[host.public_key],
        now_s=wall_clock(),
    )
    document = folder / "agreement.toml"
    document.write_text(starter.to_toml())
    signed = compile_document(document, lambda path: read_card(path).resource)
    for identity in identities.values():
        signed = add_signature(signed, identity)
    save_signed(signed, folder / "agreement.json")
    (folder / "job.toml").write_text(JOB)


JOB = """\
name = "script"
plan = "group"
agreement = "agreement.json"
bundle = "code"
"""


def variables() -> dict[str, str]:
    """What a script's ranks learn from their environment."""
    folder = group_world()
    return {
        "SEALIFT_JOB": str(folder / "job.toml"),
        "SEALIFT_KEY": str(folder / "host.key"),
        "SEALIFT_PASSPHRASE_FILE": str(folder / "passphrase"),
        "OMP_NUM_THREADS": "1",
    }


def on_ranks(
    world: int, work: Work, *, killed: int = 0, backend: str = "sealift"
) -> list[Any]:
    """What ``work(rank)`` returns in a process of each rank of a process group.

    Args:
        world: How many.
        work: A function of a module.
        backend: Torch's name of the process group.
        killed: How many of the last ranks end without an answer; all others end well.
    """
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    # A file, and no port: another process might have that before the first rank does.
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        children = [
            context.Process(
                target=_rank,
                args=(rank, world, variables(), work, answers, store, backend),
            )
            for rank in range(world)
        ]
        # A recipe that another test ran in this process took the folder off the path.
        with patch.object(sys, "path", [str(ROOT), *sys.path]):
            for child in children:
                child.start()
        left = children[: world - killed]
        found = dict(answers.get(timeout=300) for _ in left)
        for child in children:
            child.join()
    assert not any(child.exitcode for child in left)
    return [found[rank] for rank in range(len(left))]


def _rank(
    rank: int,
    world: int,
    said: dict[str, str],
    work: Work,
    answers: Any,
    store: str,
    backend: str,
) -> None:
    os.environ.update(said)
    import torch
    import torch.distributed as dist

    import sealift.integrations.process_group  # noqa: F401 - as scripts do

    torch.set_num_threads(1)
    dist.init_process_group(backend, store, rank=rank, world_size=world)
    try:
        answers.put((rank, work(rank)))
    except BaseException as error:
        answers.put((rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()
