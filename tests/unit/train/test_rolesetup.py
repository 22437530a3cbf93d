"""A rank that a launcher started learns all it needs from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.errors import SealiftError
from sealift.events import discard, wall_clock
from sealift.train.job.hostattester import EvidencePlaces, open_attester
from sealift.train.job.rolesetup import RoleSetup, given, set_up_rank
from tests.sim.torchranks import group_world, variables


def environment() -> dict[str, str]:
    return {k: v for k, v in variables().items() if k.startswith("SEALIFT_")}


def set_up(said: dict[str, str]) -> RoleSetup:
    return set_up_rank(said, "rank", clock=wall_clock, sink=discard)


def test_a_rank_is_set_up_and_attests() -> None:
    setup = set_up(environment())
    assert (setup.identity.name, setup.folder) == ("host", group_world())
    attester = open_attester(setup, EvidencePlaces.read(given(environment())))
    assert isinstance(attester, DevelopmentAttester)


def test_a_passphrase_in_the_environment_is_not_left_there() -> None:
    said = environment()
    said["SEALIFT_PASSPHRASE"] = (
        Path(said.pop("SEALIFT_PASSPHRASE_FILE")).read_text().strip()
    )
    set_up(said)
    assert set(said) == {"SEALIFT_JOB", "SEALIFT_KEY"}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SEALIFT_JOB", "variable-missing"),
        ("SEALIFT_KEY", "variable-missing"),
        ("SEALIFT_PASSPHRASE_FILE", "no-terminal"),
    ],
)
def test_what_is_missing_is_said(name: str, code: str) -> None:
    said = environment()
    del said[name]
    with pytest.raises(SealiftError) as caught:
        set_up(said)
    assert caught.value.code == code


def test_variables_have_the_names_of_options() -> None:
    said = {"SEALIFT_TPM_STATE": "/state", "SEALIFT_EVENT_LOG": "none", "TPM": "other"}
    places = EvidencePlaces.read(given(said))
    assert places == EvidencePlaces(tpm_state=Path("/state"), event_log=None)
