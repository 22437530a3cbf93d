"""A whole job on a host with a TPM: enrolled by each owner, quoted at every session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.demo.folder import World
from sealift.release.agreement import ReleaseRule
from sealift.release.log.heads import read_entries
from tests.sim.attestedworld import host_words, rehearse_attested_host
from tests.sim.jobrun import JobRun, job_run
from tests.sim.jobworld import Wishes, fresh_world
from tests.sim.tpmhost import TpmHost, tpm_host

pytestmark = [pytest.mark.distributed, pytest.mark.swtpm]
OWNERS = ("north", "east")
RULE = ReleaseRule(lease_s=60.0, heartbeat_s=3.0)
REHEARSED = "development (rehearsing attested-host)"


@pytest.fixture
def host() -> Iterator[TpmHost]:
    with tpm_host() as started:
        yield started


@pytest.fixture
def world(tmp_path: Path) -> World:
    return fresh_world(tmp_path / "world", Wishes(owners=OWNERS, step_s=0.02))


def run_job(run: JobRun, host: TpmHost, state: Path) -> None:
    host.attester.close()  # a software TPM has one user at a time
    run.orchestrator()
    run.accelerator("accelerator", *host_words(host, state))
    for owner in OWNERS:
        run.broker(owner)
        run.holder(owner, with_broker=False)


def log_of(world: World, owner: str) -> list[tuple[str, str]]:
    entries = read_entries(world.home(owner).log)
    return [(each.kind, each.level or each.rule) for each in entries]


def test_keys_go_to_an_enrolled_host(
    world: World, host: TpmHost, tmp_path: Path
) -> None:
    rehearse_attested_host(world, host.references(), OWNERS, RULE)
    with job_run(world) as run:
        run_job(run, host, tmp_path / "tpm")
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
        for owner in OWNERS:
            run["accelerator"].wait_event("host.enrolled", owner=owner)
        summary = run["orchestrator"].results[-1]
        assert summary["level"] == REHEARSED
    for owner in OWNERS:
        told = log_of(world, owner)
        assert told[:2] == [("agreement", ""), ("enrolment", "")]
        assert ("release", REHEARSED) in told
        assert not [each for each in told if each[0] in ("refusal", "revocation")]


@pytest.mark.long
def test_another_host_is_not_enrolled(
    world: World, host: TpmHost, tmp_path: Path
) -> None:
    """A relay from a clean machine elsewhere: its endorsement key is not agreed on."""
    with tpm_host(1) as elsewhere:
        agreed = host.references()
        rehearse_attested_host(world, agreed, OWNERS)
        with job_run(world) as run:
            run_job(run, elsewhere, tmp_path / "tpm")
            assert run["accelerator"].end() == 5
            assert "tpm-other-host" in run["accelerator"].error()


def test_an_unlisted_program_gets_no_keys(
    world: World, host: TpmHost, tmp_path: Path
) -> None:
    references = host.references()
    host.kernel.run("/tmp/unlisted", b"a stranger", allow=False)
    rehearse_attested_host(world, references, OWNERS)
    with job_run(world) as run:
        run_job(run, host, tmp_path / "tpm")
        assert run["accelerator"].end() == 5
        assert "ima" in run["accelerator"].error()
    assert "release" not in dict(log_of(world, "north"))


def test_development_evidence_does_not_rehearse(world: World, host: TpmHost) -> None:
    """The rehearsal is of the whole path: a software key alone is refused."""
    rehearse_attested_host(world, replace(host.references()), OWNERS)
    with job_run(world) as run:
        run.orchestrator()
        run.accelerator("accelerator", "--tpm", "unix:/nowhere")
        assert run["accelerator"].end() == 3
        assert "no-evidence" in run["accelerator"].error()
