"""Boot logs of real machines: they replay to what was quoted, and cover what they say."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from sealift.attest.tpm import eventlog as tcglog
from sealift.attest.tpm.eventlog import EventLog, MeasuredEvent
from sealift.crypto.hash import HashName
from sealift.errors import MalformedError
from tests.sim.eventtypes import EVENT_TYPES
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors
RTMR0_AT = 48 + 328  # quote header, then the offset of RTMR0 in a TD report body
ZEROS = bytes(48)

# Banks, events, padding, and how many events have data that their digest covers.
LOGS = {
    "eventlog/arch-linux-workstation.bin": (("sha1", "sha256"), 24, 0, 19),
    "eventlog/confidential-gke-debug-251000_eventlog.bin": (
        ("sha1", "sha256", "sha384"), 54, 0, 41,
    ),
    "eventlog/debian-10.bin": (("sha1",), 25, 0, 22),
    "eventlog/dstack_tpm_eventlog.bin": (("sha1", "sha256", "sha384"), 45, 0, 24),
    "eventlog/keylime_binary_bios_measurements-secureboot": (("sha256",), 98, 0, 77),
    "eventlog/ubuntu-2404-amd-sevsnp.bin": (("sha1", "sha256", "sha384"), 116, 0, 96),
    "ccel/CCEL_AAEL_alibabacloud": (("sha384",), 87, 8, 74),
    "ccel/CCEL_data_gcp": (("sha384",), 21, 241_795, 14),
    "ccel/CCEL_data_grub": (("sha384",), 37, 50_406, 19),
    "ccel/CCEL_data_ovmf": (("sha384",), 20, 63_416, 12),
    "tdx/gotdx_ccel_data.dat": (("sha384",), 43, 244_043, 31),
}  # fmt: skip
EXPECTED = {
    "ccel/CCEL_AAEL_alibabacloud": "ccel/CCEL_AAEL_alibabacloud_out.json",
    "ccel/CCEL_data_grub": "ccel/CCEL_data_grub_out.json",
    "ccel/CCEL_data_ovmf": "ccel/CCEL_data_ovmf_out.json",
}
# What GRUB and firmware hash is more than the reference tool looks for.
ALSO_COVERED = {"EV_IPL", "EV_EFI_VARIABLE_BOOT"}


@pytest.mark.parametrize("name", LOGS)
def test_log(name: str) -> None:
    log = tcglog.parse(vector(name))
    covered = sum(
        tcglog.covered(each, log.banks[-1]) is not None for each in log.events
    )
    assert (log.banks, len(log.events), log.padding, covered) == LOGS[name]
    assert log.replay(log.banks[0])


def kind_name(event: MeasuredEvent) -> str:
    return EVENT_TYPES.get(event.kind, f"0x{event.kind:08x}")


def test_cc_log_gives_the_registers_of_its_quote() -> None:
    quote = vector("tdx/gotdx_cos-113-tdx-quote.dat")
    found = tcglog.rtmrs(tcglog.parse(vector("tdx/gotdx_ccel_data.dat")))
    quoted = [quote[RTMR0_AT + 48 * n :][:48] for n in range(4)]
    assert [found.get(n, ZEROS) for n in range(4)] == quoted
    assert ZEROS not in quoted[:3]


def windows() -> tuple[EventLog, dict[int, bytes]]:
    log = json.loads(vector("tpm/windows_gcp_shielded_vm.json"))["Log"]
    pcrs = {each["Index"]: base64.b64decode(each["Digest"]) for each in log["PCRs"]}
    return tcglog.parse(base64.b64decode(log["Raw"])), pcrs


def test_windows_log_gives_the_quoted_pcrs() -> None:
    log, pcrs = windows()
    found = log.replay("sha1")
    assert found.keys() == {0, 4, 5, 7, 11, 12, 13, 14}
    assert found == {number: pcrs[number] for number in found}
    assert {n for n in range(16) if any(pcrs[n])} == found.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_events_are_those_of_the_reference_tool(name: str) -> None:
    expected = json.loads(vector(EXPECTED[name]))["uefi_event_logs"]
    events = tcglog.parse(vector(name)).events
    assert len(events) == len(expected)
    for event, wanted in zip(events, expected, strict=True):
        assert kind_name(event) == wanted["type_name"]
        assert event.register == wanted["index"]
        assert event.content == base64.b64decode(wanted["event"])
        digests = {each["alg"]: each["digest"] for each in wanted["digests"]}
        assert digests == {"SHA-384": event.digests["sha384"].hex()}
        found = tcglog.covered(event, "sha384") is not None
        also = kind_name(event) in ALSO_COVERED and found
        assert also or found == wanted["digest_matches_event"]


def outcome(raw: bytes, bank: HashName) -> object:
    """What becomes of a log: registers, or that it is refused."""
    try:
        return tcglog.parse(raw).replay(bank)
    except MalformedError:
        return None


def picked(name: str, number: int, count: int) -> int:
    """One of ``count`` places, the same one every time."""
    return int.from_bytes(hashlib.sha256(f"{name} {number}".encode()).digest()) % count


@pytest.mark.parametrize("name", LOGS)
def test_changed_digests_and_registers_change_the_replay(name: str) -> None:
    raw = vector(name)
    log = tcglog.parse(raw)
    bank = log.banks[-1]
    replayed = log.replay(bank)
    for number, event in enumerate(log.events):
        if event.extends:
            found = event.digests[bank]
            at = raw.index(found, event.offset) + picked(name, number, len(found))
            for place in (at, event.offset):
                changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
                assert outcome(changed, bank) != replayed, (event, place)


@pytest.mark.parametrize("name", ["ccel/CCEL_AAEL_alibabacloud", "ccel/CCEL_data_ovmf"])
def test_changed_data_is_covered_no_longer(name: str) -> None:
    """A byte of an event's data changes no register; then the data proves nothing."""
    raw = vector(name)
    log = tcglog.parse(raw)
    ends = [*(each.offset for each in log.events[1:]), len(raw) - log.padding]
    for event, end in zip(log.events, ends, strict=True):
        covered = tcglog.covered(event, "sha384")
        if not covered:
            continue
        begin = end - len(event.content) + event.content.index(covered)
        for at in (begin, begin + len(covered) // 2, begin + len(covered) - 1):
            changed = bytearray(raw)
            changed[at] ^= 1
            again = tcglog.parse(bytes(changed))
            assert again.replay("sha384") == log.replay("sha384")
            same = next(each for each in again.events if each.offset == event.offset)
            assert tcglog.covered(same, "sha384") is None


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_padding_of_one_byte_only(byte: bytes) -> None:
    raw = vector("ccel/CCEL_data_ovmf").rstrip(b"\xff")
    log = tcglog.parse(raw + byte * 99)
    assert log.padding == 99
    with pytest.raises(MalformedError):
        tcglog.parse(raw + byte * 99 + b"\x01")


def test_cut_logs_are_refused_or_shorter() -> None:
    """No cut gives other registers under the same number of events."""
    raw = vector("ccel/CCEL_data_ovmf").rstrip(b"\xff")
    whole = tcglog.parse(raw)
    ends = {each.offset for each in whole.events} | {len(raw)}
    for end in range(len(raw)):
        if end in ends:
            continue
        try:
            cut = tcglog.parse(raw[:end])
        except MalformedError:
            continue
        assert cut.padding
        assert len(cut.events) < len(whole.events)
