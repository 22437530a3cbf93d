"""Each role on a machine that something is wrong with: one line, its exit code, nothing lost.

The job's own machine is well; a role's command is started in a mount namespace where it is not.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from sealift.codec import encode
from sealift.crypto.identity import create_identity, save_identity
from sealift.demo.folder import World
from tests.cli.test_bad_machines import NAMESPACES, sealift
from tests.sim.jobworld import Wishes, fresh_world

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not NAMESPACES, reason="root alone mounts a small disk"),
]
PARTIES = {
    "orchestrator": "cloud",
    "accelerator": "gpu-host",
    "broker": "north",
    "join": "north",
}
READ_ONLY = "mount --bind $PWD $PWD && mount -o remount,bind,ro $PWD && cd $PWD"
# The folder is copied to a small disk, on which then 16 KiB are left; never the machine's own.
FULL = (
    "cp -r . ../kept && mount -t tmpfs -o size=24m tmpfs $PWD && cd $PWD && "
    "mountpoint -q . && cp -r ../kept/. . && "
    "{ dd if=/dev/zero of=other bs=4k count=6144 2>/dev/null; truncate -s -16k other; }"
)
NO_DEVICES = "mount -t tmpfs tmpfs /dev"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = fresh_world(tmp_path / "world", Wishes())
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    text = made.job.read_text()
    made.job.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    return made


def words(world: World, role: str) -> list[str]:
    """What its party types in the world's folder."""
    home = world.home(PARTIES[role])
    more: dict[str, list[str | Path]] = {
        "orchestrator": ["--output", "results"],
        "accelerator": ["--keep-freed-memory"],
        "broker": home.stores,
        "join": [*home.stores, *home.cargo],
    }
    typed = [role, world.job.name, *home.unlocking, *more[role]]
    return [
        str(each.relative_to(world.path)) if isinstance(each, Path) else each
        for each in typed
    ]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith((".lock", "-shm", "-wal"))
    }


def told(said: str) -> str:
    """The one line that a command ended with."""
    (line,) = [each for each in said.splitlines() if each.endswith("]")]
    assert "Traceback" not in said
    return line


@pytest.mark.parametrize("role", ["broker", "join"])
def test_a_full_disk(world: World, role: str) -> None:
    """16 KiB are left: the owner's stores stay as they were."""
    before = digests(world.path)
    code, said = sealift(world.path, *words(world, role), before=FULL)
    assert code == 3, said
    assert told(said).endswith("[disk-full]")
    assert digests(world.path) == before


@pytest.mark.parametrize("role", PARTIES)
def test_a_folder_that_cannot_be_written(world: World, role: str) -> None:
    before = digests(world.path)
    code, said = sealift(world.path, *words(world, role), before=READ_ONLY)
    assert code == 3, said
    assert told(said).endswith("[cannot-write]")
    assert digests(world.path) == before


@pytest.mark.parametrize("role", PARTIES)
def test_a_key_that_cannot_be_read(world: World, role: str) -> None:
    """Its permissions are wrong: the line names the file."""
    command = words(world, role)
    key = world.path / command[command.index("--key") + 1]
    key.chmod(0)
    # Root reads everything, but for the right to.
    rights = "exec setpriv --bounding-set=-dac_override,-dac_read_search"
    code, said = sealift(world.path, *command, before=f'{rights} "$@"; true')
    assert code == 3, said
    assert told(said).endswith("[cannot-read]")
    assert "identity.key" in told(said)


def test_no_devices(world: World) -> None:
    """A recipe's process needs /dev/null, and that is what the line names."""
    code, said = sealift(
        world.path, *words(world, "accelerator"), before=f"{NO_DEVICES} && exec 2>&1"
    )
    assert code == 3, said
    assert "/dev/null" in told(said)


def test_the_port_is_taken(world: World) -> None:
    place = world.job.read_text().split('orchestrator = "')[1].split('"')[0]
    name, port = place.split(":")
    with socket.create_server((name, int(port))):
        code, said = sealift(world.path, *words(world, "orchestrator"))
    assert code == 3, said
    assert told(said).endswith("[port-in-use]")
    status = world.path / "status"
    status.mkdir()
    with socket.create_server((name, int(port))):
        code, said = sealift(
            world.path, "health", str(status), "--host", name, "--port", port
        )
    assert code == 3, said
    assert told(said).endswith("[cannot-listen]")
    assert "already in use" in said


@pytest.fixture
def shares(tmp_path: Path) -> tuple[Path, list[str]]:
    """The folder of a server of share P, and what is typed there."""
    secret = tmp_path / "secret"
    secret.write_text("three organisations\n")
    secret.chmod(0o600)
    lines = ['client = "lab.card.json"', "development = true"]
    for name in ("lab", "P", "M", "Z"):
        identity = create_identity(f"cloud-{name.lower()}")
        save_identity(identity, tmp_path / f"{name}.key", "three organisations")
        (tmp_path / f"{name}.card.json").write_bytes(encode(identity.card))
        if name != "lab":
            lines += [f"[{name}]", f'card = "{name}.card.json"']
            lines += ['address = "127.0.0.1:0"']
    (tmp_path / "servers.toml").write_text("\n".join(lines))
    words = ["share-server", "--share", "P", "servers.toml", "--key", "P.key"]
    return tmp_path, [*words, "--passphrase-file", "secret"]


def test_a_share_servers_port_is_taken(shares: tuple[Path, list[str]]) -> None:
    folder, typed = shares
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = sealift(folder, *typed, "--listen", place)
    assert code == 3, said
    assert told(said).endswith("[port-in-use]")


def test_torch_that_does_not_start(shares: tuple[Path, list[str]]) -> None:
    """Without /dev/urandom; the line has torch's own reason."""
    folder, typed = shares
    code, said = sealift(folder, *typed, before=f"{NO_DEVICES} && exec 2>&1")
    assert code == 3, said
    assert told(said).endswith("[no-torch]")
    assert "/dev/urandom" in told(said)
