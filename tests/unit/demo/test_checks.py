"""What of a demo's cheating server is verified, and what would not pass for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.crypto.sign import SigningKey, sign_document
from sealift.demo.cheating import ZEROS
from sealift.demo.outcome import DemoVerdict
from sealift.demo.progress import AttackSeen, Progress
from sealift.demo.run import _check_wrong
from sealift.errors import AuthenticationError, IntegrityError, UnavailableError
from sealift.ids import Digest
from sealift.outsource.masked import WrongAnswer
from sealift.outsource.messages import StepAnswers
from sealift.train.job.shareservers import WrongRecord

CLOUD = SigningKey.generate()
SOME = Digest.of(b"of a run")


def record(step: int = 7, key: SigningKey = CLOUD) -> WrongRecord:
    answered = StepAnswers(
        agreement=SOME, share="M", traces=SOME, pipe=SOME, begun=8, step=step,
        answers=SOME,
    )  # fmt: skip
    wrong = WrongAnswer(("M",), "fc", "forward", 7, 0)
    return WrongRecord(wrong, (sign_document(answered, key),))


def check(kept: str) -> DemoVerdict:
    party = SimpleNamespace(sign=CLOUD.public_key)
    verified = SimpleNamespace(party=lambda name: {"cloud-b": party}[name])
    progress, verdict = Progress(0), DemoVerdict()
    attack = AttackSeen(ZEROS, "cloud-b", "step 7", kept=kept)
    progress.attacks.append(attack)
    _check_wrong(cast("Any", verified), progress, verdict)
    return verdict


def test_a_record_with_its_servers_signature(tmp_path: Path) -> None:
    verdict = check(str(record().keep(tmp_path)))
    assert (verdict.wrong_answers, verdict.wrong_verified) == (1, True)
    assert any("1 records of wrong products" in line for _, line in verdict.checks)


def test_a_record_of_another_step_key_or_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as caught:
        check(str(record(step=8).keep(tmp_path)))
    assert caught.value.code == "wrong-product"
    with pytest.raises(AuthenticationError):
        check(str(record(key=SigningKey.generate()).keep(tmp_path)))
    with pytest.raises(UnavailableError):
        check("")
