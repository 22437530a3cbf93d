"""Our client against a software TPM, and against what a TPM should not say."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm import keys
from sealift.attest.tpm.attester import TpmAttester
from sealift.attest.tpm.client import (
    Command,
    DeviceLink,
    SocketLink,
    TpmClient,
    TpmError,
    open_link,
)
from sealift.attest.tpm.enrolment import check_answer, make_challenge
from sealift.attest.tpm.evidence import TpmBody, parse_quote
from sealift.attest.tpm.keys import read_index
from sealift.attest.tpm.registers import extend, read_registers
from sealift.attest.verifier import check_bound
from sealift.crypto.certificate import Certificate
from sealift.crypto.hash import digest
from sealift.errors import MalformedError, UnavailableError, UsageError
from tests.sim.swtpm import manufactured, software_tpm
from tests.sim.tpmhost import enrol, examine, failed, sources, tpm_host

SUCCESS = bytes.fromhex("8001 0000000a 00000000")
RETRY = bytes.fromhex("8001 0000000a 00000922")


@pytest.fixture
def client() -> Iterator[TpmClient]:
    with software_tpm() as tpm:
        client = TpmClient(open_link(tpm.name))
        client.begin()
        yield client
        client.close()


class ScriptedLink:
    """Answers what it was told to, the last answer for ever."""

    exclusive = False

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.commands: list[bytes] = []

    def exchange(self, command: bytes) -> bytes:
        self.commands.append(command)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self) -> None:
        pass


@pytest.mark.swtpm
@pytest.mark.parametrize("name", keys.ENDORSEMENT_KINDS)
def test_every_standard_endorsement_key_activates(client: TpmClient, name: str) -> None:
    """RSA and both curves, with our half of the credential."""
    kind = keys.ENDORSEMENT_KINDS[name]
    ek = keys.create_primary(client, keys.ENDORSEMENT, kind.template)
    ak = keys.load_attestation(client, keys.create_attestation(client))
    credential, secret = make_challenge(ek.public, ak.public.name)
    check_answer(secret, keys.activate(client, ak, ek, credential))
    raw = read_index(client, kind.certificate)
    if raw is not None:  # made from the template that its maker used
        certificate = Certificate(keys.trim_der(raw))
        assert certificate.spki_digest == ek.public.spki_digest


@pytest.mark.swtpm
@pytest.mark.parametrize("name", keys.ENDORSEMENT_KINDS)
@pytest.mark.parametrize("part", ["blob", "seed"])
def test_changed_credential_opens_nothing(
    client: TpmClient, name: str, part: str
) -> None:
    template = keys.ENDORSEMENT_KINDS[name].template
    ek = keys.create_primary(client, keys.ENDORSEMENT, template)
    ak = keys.load_attestation(client, keys.create_attestation(client))
    credential, _ = make_challenge(ek.public, ak.public.name)
    raw = getattr(credential, part)
    changed = {
        "blob": credential.blob,
        "seed": credential.seed,
        part: raw[:-1] + bytes([raw[-1] ^ 1]),
    }
    for _ in range(5):  # sessions of refused attempts are flushed: a TPM has three
        with pytest.raises(TpmError):
            keys.activate(client, ak, ek, type(credential)(**changed))


@pytest.mark.swtpm
def test_host_with_an_rsa_endorsement_key() -> None:
    with tpm_host() as host:
        host.reopen(endorsement=("rsa2048",))
        host.attester.keep_enrolment(enrol(host.attester, host.owner, host.tpm.maker))
        assert failed(examine(host.evidence(), host.references())) == set()
        # The enrolment beside the other endorsement key still counts.
        host.reopen()
        assert failed(examine(host.evidence(), host.references())) == set()


@pytest.mark.swtpm
def test_missing_endorsement_certificate_is_named() -> None:
    with tpm_host() as host, pytest.raises(UnavailableError) as caught:
        host.reopen(endorsement=("p256",))
    assert caught.value.code == "tpm-no-certificate"


@pytest.mark.swtpm
def test_what_a_crashed_user_left_is_flushed() -> None:
    with software_tpm() as tpm:
        for _ in range(3):
            client = TpmClient(open_link(tpm.name))
            client.begin()
            for _ in range(2):
                keys.create_primary(client, keys.OWNER, keys.STORAGE_TEMPLATE)
            client.close()


@pytest.mark.swtpm
def test_registers_extend_in_every_bank(client: TpmClient) -> None:
    before = read_registers(client, "sha384", range(24))
    assert len(before) == 24
    extend(client, 15, {"sha256": b"\1" * 32, "sha384": b"\2" * 48})
    after = read_registers(client, "sha384", [15])[15]
    assert after == digest("sha384", before[15], b"\2" * 48)
    with pytest.raises(UnavailableError) as caught:
        read_registers(client, "sha512", [0])
    assert caught.value.code == "tpm-bank"


@pytest.mark.swtpm
def test_evidence_in_another_bank() -> None:
    with tpm_host() as host:
        host.reopen(bank="sha384")
        host.attester.measure(RuntimeEvent("module", b"x"))
        pcrs = {str(number): (bytes(48),) for number in range(10)}
        references = host.references(bank="sha384", pcrs=pcrs)
        # The boot aggregate was made over the other bank.
        assert failed(examine(host.evidence(), references)) == {"ima-boot-aggregate"}


@pytest.mark.swtpm
def test_tcp_socket(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    folder = tmp_path / "tpm"
    subprocess.run(["cp", "-r", str(manufactured(0, "maker")), str(folder)], check=True)
    process = subprocess.Popen(
        [
            *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder}"),
            *("--server", f"type=tcp,port={port}", "--flags", "not-need-init"),
        ]
    )
    try:
        client = TpmClient(_patiently(f"tcp:127.0.0.1:{port}"))
        client.begin()
        assert len(read_registers(client, "sha256", range(16))) == 16
        client.close()
    finally:
        process.terminate()
        process.wait(300)


def _patiently(name: str) -> SocketLink:
    for _ in range(200):
        with contextlib.suppress(UnavailableError):
            link = open_link(name)
            assert isinstance(link, SocketLink)
            return link
        threading.Event().wait(0.02)
    raise AssertionError("swtpm did not start")


@pytest.mark.swtpm
def test_several_threads_share_one_attester() -> None:
    with tpm_host() as host:
        found: list[bytes] = []

        def quote(number: int) -> None:
            bound = bytes([number]) * 32
            claims = examine(host.evidence(bound), references, bound=bound)
            assert failed(claims) == set()
            found.append(bound)

        references = host.references()
        threads = [threading.Thread(target=quote, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4


@pytest.mark.swtpm
@pytest.mark.parametrize("register", [16, 23, 17])
def test_runtime_log_needs_a_register_that_software_cannot_reset(
    tmp_path: Path, register: int
) -> None:
    with software_tpm() as tpm, pytest.raises(UsageError):
        TpmAttester(sources(tmp_path, tpm, register=register))


@pytest.mark.swtpm
def test_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with tpm_host() as host:
        host.reopen(ima_list=tmp_path / "nothing")
        with pytest.raises(UnavailableError) as caught:
            host.evidence()
        assert caught.value.code == "measurement-log"
        host.reopen(ima_list=tmp_path / "long")
        (tmp_path / "long").write_bytes(bytes(4 << 20))
        with pytest.raises(UnavailableError, match="too long"):
            host.evidence()
        with pytest.raises(UsageError):
            host.evidence(b"s")


@pytest.mark.swtpm
@pytest.mark.parametrize("length", [2, 20, 48, 64])
def test_a_tpm_binds_what_other_protocols_ask_for(length: int) -> None:
    bound = bytes(range(length))
    with tpm_host() as host:
        quote = parse_quote(TpmBody.parse(host.evidence(bound).body).quote)
        assert check_bound(quote.extra, bound, "qualifying data").passed
        assert not check_bound(quote.extra, bound[:-1] + b"x", "").passed


@pytest.mark.swtpm
def test_tpm_that_dies_is_named() -> None:
    with tpm_host() as host:
        host.tpm.stop()
        with pytest.raises(UnavailableError) as caught:
            host.evidence()
        assert caught.value.code == "tpm-unavailable"


@pytest.mark.swtpm
def test_owner_that_was_cleared_gets_a_new_key(tmp_path: Path) -> None:
    """The kept key cannot be loaded by another TPM: it makes one of its own."""
    with tpm_host() as host, software_tpm(1) as other:
        kept = host.attester.enrolment_request().attestation_key
        with TpmAttester(sources(host.folder, other)) as attester:
            assert attester.enrolment_request().attestation_key != kept


@pytest.mark.parametrize(
    "name", ["/nonexistent/tpm", "unix:/nonexistent", "tcp:127.0.0.1:1", "tcp:x"]
)
def test_nothing_there_is_named(name: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        open_link(name)
    assert caught.value.code == "tpm-unavailable"


def test_device_answers_in_one_piece(tmp_path: Path) -> None:
    """A file stands for the device: what is written there is read back behind it."""
    device = tmp_path / "device"
    device.write_bytes(bytes(12) + SUCCESS)
    link = DeviceLink(str(device))
    assert link.exchange(bytes(12)) == SUCCESS
    for _ in range(2):
        link.close()
    with pytest.raises(UnavailableError):
        link.exchange(b"")


def test_busy_tpm_is_asked_again() -> None:
    link = ScriptedLink(RETRY, RETRY, SUCCESS)
    TpmClient(link).flush(1)
    assert len(set(link.commands)) == 1
    assert len(link.commands) == 3


def test_tpm_that_stays_busy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealift.attest.tpm.client._PAUSE_S", 0)
    with pytest.raises(TpmError, match="busy for too long"):
        TpmClient(ScriptedLink(RETRY)).flush(1)


@pytest.mark.parametrize(
    "raw", [b"", SUCCESS[:9], SUCCESS + b"\0", bytes.fromhex("8001 ffffffff 00000000")]
)
def test_answer_that_does_not_parse_is_named(raw: bytes) -> None:
    with pytest.raises(UnavailableError) as caught:
        TpmClient(ScriptedLink(raw)).flush(1)
    assert caught.value.code == "tpm-unavailable"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("00000921", "locked"),
        ("000001c4", "out of range"),
        ("0000098e", "password"),
        ("00000101", "self test"),
        ("00000b8b", "does not know"),
        ("000003ff", "response 0x3ff"),
    ],
)
def test_refusals_say_why(code: str, reason: str) -> None:
    raw = bytes.fromhex(f"8001 0000000a {code}")
    with pytest.raises(TpmError, match=reason) as caught:
        TpmClient(ScriptedLink(raw)).run(Command.PCR_READ)
    assert caught.value.code == "tpm-refused"
    assert caught.value.exit_code == 3


def test_no_certificate_in_the_index_is_refused() -> None:
    for raw in (b"", b"\x30\x82\x01", bytes(500)):
        with pytest.raises(MalformedError):
            keys.trim_der(raw)


@pytest.mark.tpm
def test_real_device() -> None:
    """Reads only: nothing on the machine's own TPM is changed."""
    client = TpmClient(open_link("/dev/tpmrm0"))
    client.begin()
    assert len(read_registers(client, "sha256", range(8))) == 8
    client.close()
