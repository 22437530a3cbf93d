"""One host over time: resets, renewals, restarts of its process, enrolment again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sealift.attest import Evidence
from sealift.attest.runtimelog import MODULE, RuntimeEvent
from sealift.attest.tpm.enrolment import make_challenge, require_pair
from sealift.attest.tpm.evidence import (
    ClockInfo,
    TpmBody,
    check_same_boot,
    clock_measurements,
)
from sealift.errors import (
    PolicyError,
    StaleError,
    UnavailableError,
)
from tests.sim.tpmhost import (
    BOUND,
    TpmHost,
    appraiser,
    enrol,
    examine,
    failed,
    tpm_host,
)

pytestmark = pytest.mark.swtpm


@pytest.fixture
def host() -> Iterator[TpmHost]:
    with tpm_host() as host:
        yield host


def test_hard_power_off_is_noticed(host: TpmHost) -> None:
    host.boot(orderly=False)
    codes = failed(examine(host.evidence(), host.references()))
    assert codes == {"tpm-clock-unsafe"}


def test_reset_is_noticed(host: TpmHost) -> None:
    first = examine(host.evidence(), host.references())
    again = examine(host.evidence(), host.references())
    assert check_same_boot(first.measurements, again.measurements).passed
    host.boot()
    after = examine(host.evidence(), host.references())
    check = check_same_boot(again.measurements, after.measurements)
    assert (check.code, check.refusal) == ("tpm-reset", "stale")


@pytest.mark.parametrize(
    "now",
    [
        ClockInfo(10, 1, 0, True),
        ClockInfo(11, 2, 0, True),
        ClockInfo(11, 1, 1, True),
        ClockInfo(9, 1, 0, True),
    ],
)
def test_counters_and_clock_decide_on_a_reset(now: ClockInfo) -> None:
    before = clock_measurements(ClockInfo(10, 1, 0, True))
    same = (now.reset_count, now.restart_count) == (1, 0) and now.clock_ms >= 10
    assert check_same_boot(before, clock_measurements(now)).passed is same
    assert not check_same_boot({}, clock_measurements(now)).passed


def renewed(host: TpmHost, earlier: Evidence) -> Evidence:
    return host.attester.continue_from(earlier, BOUND)


def test_renewal_sends_only_what_is_new(host: TpmHost) -> None:
    shown = host.evidence()
    result = appraiser(host.references()).appraise(shown, BOUND)
    for number in range(3):
        host.kernel.run(f"/usr/bin/later{number}", b"later")
        shown = renewed(host, shown)
        body = TpmBody.parse(shown.body)
        assert body.ima_from == 3 + number
        assert body.ima_list.count(b"/usr/bin/") == 1
        result = appraiser(host.references()).appraise(shown, BOUND, result)
    assert renewed(host, shown).digest != shown.digest


def test_renewal_may_send_more_than_is_new(host: TpmHost) -> None:
    """An attester that was restarted does not know what it showed."""
    shown = host.evidence()
    first = appraiser(host.references()).appraise(shown, BOUND)
    host.reopen()
    host.kernel.run("/usr/bin/later", b"later")
    again = renewed(host, shown)
    assert TpmBody.parse(again.body).ima_from == 0
    appraiser(host.references()).appraise(again, BOUND, first)


def test_renewal_does_not_forget_the_entry_in_between(host: TpmHost) -> None:
    first = appraiser(host.references()).appraise(host.evidence(), BOUND)
    host.kernel.run("/tmp/bad", b"bad", allow=False)
    missed = host.evidence()
    host.kernel.run("/usr/bin/good", b"good")
    judge = appraiser(host.references())
    with pytest.raises(PolicyError, match="IMA list"):
        judge.appraise(renewed(host, missed), BOUND, first)
    with pytest.raises(PolicyError, match="/tmp/bad"):
        judge.appraise(host.evidence(), BOUND, first)


def test_partial_evidence_is_no_first_evidence(host: TpmHost) -> None:
    shown = host.evidence()
    host.kernel.run("/usr/bin/later", b"later")
    with pytest.raises(PolicyError) as caught:
        appraiser(host.references()).appraise(renewed(host, shown), BOUND)
    assert caught.value.code == "tpm-ima-list"


def test_renewal_notices_a_reset(host: TpmHost) -> None:
    shown = host.evidence()
    first = appraiser(host.references()).appraise(shown, BOUND)
    host.boot()
    with pytest.raises(StaleError) as caught:
        appraiser(host.references()).appraise(renewed(host, shown), BOUND, first)
    assert caught.value.code == "tpm-reset"


def test_key_stays_the_same_after_a_restart(host: TpmHost) -> None:
    first = examine(host.evidence(), host.references()).attester
    host.reopen()
    assert examine(host.evidence(), host.references()).attester == first


def test_runtime_log_outlives_a_process_but_not_a_boot(host: TpmHost) -> None:
    host.attester.measure(RuntimeEvent(MODULE, b"one"))
    host.reopen()
    host.attester.measure(RuntimeEvent(MODULE, b"two"))
    claims = examine(host.evidence(), host.references())
    assert [each.content for each in claims.events] == [b"one", b"two"]
    assert failed(claims) == set()
    host.boot()
    claims = examine(host.evidence(), host.references())
    assert claims.events == ()
    assert failed(claims) == set()


def test_enrolment_needs_the_tpm_of_the_endorsement_key(host: TpmHost) -> None:
    with tpm_host(1) as other:
        request = replace(
            other.attester.enrolment_request(),
            attestation_key=host.attester.enrolment_request().attestation_key,
        )
        assert enrol(other.attester, host.owner, other.tpm.maker)
        ek, ak = require_pair(request)
        credential, _ = make_challenge(ek, ak.name)
        for machine in (host, other):
            with pytest.raises(UnavailableError) as caught:
                machine.attester.answer(credential)
            assert caught.value.code == "tpm-refused"
