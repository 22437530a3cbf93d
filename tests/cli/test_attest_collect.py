"""`sealift attest collect` and which attester a host takes: over stand-ins of devices."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift import codec
from sealift.attest import Evidence, Level
from sealift.attest.azure.attester import AzureAttester
from sealift.attest.azure.evidence import AzureBody
from sealift.attest.collateral import pack_bundle
from sealift.attest.composite import (
    CompositeBody,
    read_binding,
)
from sealift.attest.configfs import SnpAttester, TsmReader
from sealift.attest.reference import (
    SetName,
    parse_set,
    verify_set,
)
from sealift.attest.runtimelog import (
    CODE_BUNDLE,
    GPU_BINDING,
    measured_bundle,
)
from sealift.attest.tdx.evidence import TdxBody
from sealift.cli import attest as attestcollect
from sealift.cli.main import build_parser, main
from sealift.crypto.identity import create_identity, save_identity
from sealift.errors import SealiftError, UnavailableError
from sealift.ids import Digest
from sealift.train.job import hostattester
from sealift.train.job.hostattester import EvidencePlaces, HostPlatform, open_attester
from tests.sim import nvidia_device
from tests.sim.attestedworld import host_words
from tests.sim.intel_world import IntelWorld
from tests.sim.nvidia_device import SoftDevice
from tests.sim.nvml import FakeNvml
from tests.sim.paravisor import move_in
from tests.sim.swtpm import software_tpm
from tests.sim.tpmhost import TpmHost, tpm_host
from tests.sim.tsm_folder import StandInTsmFolder

BOUND = bytes(range(32))
BUNDLE = Digest.of(b"code")


@pytest.fixture
def world() -> IntelWorld:
    return IntelWorld()


def tdx_platform(world: IntelWorld, *gpus: SoftDevice) -> HostPlatform:
    folder = StandInTsmFolder(lambda inblob, level: (world.quote(inblob), b""))
    nvml = FakeNvml(list(gpus))
    return HostPlatform(TsmReader(folder), world.guest, Path("/absent"), lambda: nvml)


def no_platform() -> HostPlatform:
    return HostPlatform(
        TsmReader(StandInTsmFolder(lambda i, p: (i, b""), provider=None))
    )


def collect(platform: HostPlatform, *words: str) -> int:
    line = ["attest", "collect", *words]
    args = build_parser(line).parse_args(line)
    return attestcollect.run_collect(args, platform)


def read(path: Path) -> Evidence:
    return codec.decode(Evidence, path.read_bytes(), max_bytes=8 << 20)


@pytest.mark.parametrize("kind", ["auto", "tdx"])
def test_a_tdx_guest(
    world: IntelWorld, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "evidence.json"
    words = ["--kind", kind, "--bound", BOUND.hex(), "-o", str(out)]
    assert collect(tdx_platform(world), *words) == 0
    assert BOUND in TdxBody.parse(read(out).body).quote
    assert f"bound     {BOUND.hex()}" in capsys.readouterr().out
    with pytest.raises(SealiftError) as caught:
        collect(tdx_platform(world), *words)
    assert caught.value.code == "exists"


def test_a_fresh_bound_value_is_shown(
    world: IntelWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = set()
    for name in ("a", "b"):
        assert collect(tdx_platform(world), "-o", str(tmp_path / name)) == 0
        bound = capsys.readouterr().out.split()[-1]
        assert bytes.fromhex(bound) in TdxBody.parse(read(tmp_path / name).body).quote
        shown.add(bound)
    assert len(shown) == 2


def test_a_tdx_guest_binds_its_gpus_once(
    world: IntelWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_device.trust(monkeypatch)
    out = tmp_path / "evidence.json"
    platform = tdx_platform(world, SoftDevice(), SoftDevice())
    collect(platform, "--kind", "composite", "-o", str(out))
    body = CompositeBody.parse(read(out).body)
    binding, checks = read_binding(TdxBody.parse(body.lead.body).events)
    assert binding is not None
    assert len(body.devices) == len(binding.devices) == 2
    assert all(each.passed for each in checks)
    with pytest.raises(UnavailableError) as caught:  # they accept work by now
        collect(platform, "--kind", "composite", "-o", str(tmp_path / "again"))
    assert caught.value.code == "gpu-unavailable"


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        collect(no_platform(), "--tpm", "unix:/absent", "-o", str(tmp_path / "x"))
    assert caught.value.code == "no-evidence"


@pytest.fixture(scope="module")
def host() -> Iterator[TpmHost]:
    with tpm_host() as host:
        yield host


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ada.key"
    save_identity(create_identity("ada"), path, "correct horse")
    monkeypatch.setenv("SEALIFT_PASSPHRASE", "correct horse")
    return path


def swtpm_words(host: TpmHost) -> tuple[str, ...]:
    host.attester.close()  # one at a time talks to swtpm
    return host_words(host, host.folder / "state")


@pytest.mark.distributed
@pytest.mark.swtpm
def test_a_host_becomes_a_reference_set_and_passes_it(
    host: TpmHost, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = swtpm_words(host)
    made = tmp_path / "host.references"
    assert (
        collect(
            no_platform(), *words, "--as-reference", "host", "--signer-key", str(key),
            "--operator", "software", "--without-revocation", "--number", "4", "-o", str(made),
        )
        == 0
    )  # fmt: skip
    signed = parse_set(made.read_bytes())
    name = SetName(name="host", signer=signed.signer, number=4)
    assert verify_set(signed, name).values.tpm is not None
    # The set names no enroller: only an agreement may. Beside that, all of it fits.
    capsys.readouterr()
    evidence = tmp_path / "evidence.json"
    assert collect(no_platform(), *words, "-o", str(evidence)) == 0
    bound = capsys.readouterr().out.split()[-1]
    line = ["attest", "verify", str(evidence), "--references", str(made)]
    assert main([*line, "--accept", "development", "--bound", bound]) == 5
    assert "[tpm-not-enrolled]" in capsys.readouterr().err


def test_a_captured_file_becomes_a_reference_set(
    world: IntelWorld,
    key: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The made world is refused: Intel never signed it (its like: the vectors)."""
    evidence, bundle = tmp_path / "evidence.json", tmp_path / "bundle.json"
    collect(tdx_platform(world), "-o", str(evidence))
    bundle.write_bytes(pack_bundle(world.collateral()))
    words = [
        "attest", "reference", str(evidence), "--name", "guest", "--signer-key",
        str(key), "--collateral", str(bundle), "-o", str(tmp_path / "set"),
    ]  # fmt: skip
    assert main(words) == 5
    assert "chain-" in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


# ------------------------------------------------------- which attester a host takes


@dataclass
class Agreed:
    """As much of a role's setup as the choice looks at."""

    accept: tuple[Level, ...]
    rehearse: Level | None = None

    @property
    def setup(self) -> Any:
        references = SimpleNamespace(tpm=None)
        code = SimpleNamespace(digest=BUNDLE)
        agreement = SimpleNamespace(
            rehearse=self.rehearse, references=references, code=code
        )
        verified = SimpleNamespace(agreement=agreement, accept=self.accept)
        return SimpleNamespace(agreement=verified, folder=Path(tempfile.gettempdir()))


NO_TPM = EvidencePlaces(
    tpm="unix:/absent", tpm_state=Path("/absent"), event_log=None, ima_list=None
)


def test_a_tdx_guest_proves_tee(world: IntelWorld) -> None:
    made = open_attester(Agreed((Level.TEE,)).setup, NO_TPM, tdx_platform(world))
    events = TdxBody.parse(made.collect(BOUND).body).events
    assert measured_bundle(events) == BUNDLE


def test_a_tdx_guest_with_gpus_proves_gpu_tee(
    world: IntelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_device.trust(monkeypatch)
    platform = tdx_platform(world, SoftDevice())
    accept = (Level.GPU_TEE, Level.TEE)
    made = open_attester(Agreed(accept).setup, NO_TPM, platform)
    lead = CompositeBody.parse(made.collect(BOUND).body).lead
    events = TdxBody.parse(lead.body).events
    assert [each.kind for each in events] == [GPU_BINDING, CODE_BUNDLE]


def test_a_snp_guest_proves_tee_and_no_gpu_tee() -> None:
    folder = StandInTsmFolder(lambda i, p: (b"report", b""), provider="sev_guest")
    platform = HostPlatform(TsmReader(folder))
    made = open_attester(Agreed((Level.TEE,)).setup, NO_TPM, platform)
    assert isinstance(made, SnpAttester)
    with pytest.raises(UnavailableError, match="bind GPUs") as caught:
        open_attester(Agreed((Level.GPU_TEE,)).setup, NO_TPM, platform)
    assert caught.value.code == "no-evidence"


def test_ranks_of_one_host_open_it_one_after_the_other(
    world: IntelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two would find no bundle measured, and both measure it."""
    setup = Agreed((Level.TEE,)).setup
    alone = []

    def probe(host: object) -> SnpAttester:
        descriptor = os.open(setup.folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        alone.append(host)
        return SnpAttester(no_platform().reader)

    monkeypatch.setitem(hostattester._MAKERS, Level.TEE, probe)
    open_attester(setup, NO_TPM, tdx_platform(world))
    assert alone


@pytest.mark.distributed
@pytest.mark.swtpm
def test_an_azure_guest_proves_tee(tmp_path: Path) -> None:
    with software_tpm() as tpm:
        platform = replace(no_platform(), azure_host=move_in(tpm))
        places = replace(NO_TPM, tpm=tpm.name, tpm_state=tmp_path / "state")
        made = open_attester(Agreed((Level.TEE,)).setup, places, platform)
        assert isinstance(made, AzureAttester)
        with made:
            body = AzureBody.parse(made.collect(BOUND).body)
            assert measured_bundle(body.events) == BUNDLE

        out = tmp_path / "azure.json"
        found = ("--tpm", tpm.name, "--event-log", "none", "--bound", BOUND.hex())
        state = ("--tpm-state", str(tmp_path / "state"))
        assert collect(platform, *found, *state, "-o", str(out)) == 0
        assert read(out).kind == "azure"


@pytest.mark.distributed
@pytest.mark.swtpm
def test_a_host_with_a_tpm_is_no_azure_guest(tmp_path: Path) -> None:
    with software_tpm() as tpm:
        places = replace(NO_TPM, tpm=tpm.name)
        with pytest.raises(UnavailableError) as caught:
            open_attester(Agreed((Level.TEE,)).setup, places, no_platform())
    assert caught.value.code == "no-evidence"


def test_what_a_bare_machine_lacks_is_named_level_by_level() -> None:
    accept = (Level.GPU_TEE, Level.TEE, Level.ATTESTED_HOST, Level.UNTRUSTED_GPU)
    with pytest.raises(UnavailableError) as caught:
        open_attester(Agreed(accept).setup, NO_TPM, no_platform())
    assert all(f"{level}: " in caught.value.why for level in accept)


def test_the_composite_measures_into_its_lead(
    world: IntelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sealift.attest.evidence import measuring
    from sealift.attest.runtimelog import RuntimeEvent

    nvidia_device.trust(monkeypatch)
    platform = tdx_platform(world, SoftDevice())
    made = open_attester(Agreed((Level.GPU_TEE,)).setup, NO_TPM, platform)
    measuring(made)(RuntimeEvent("module", b"{}"))
    lead = CompositeBody.parse(made.collect(BOUND).body).lead
    assert TdxBody.parse(lead.body).events[-1].kind == "module"
