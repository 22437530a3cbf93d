"""Refusals as HTTP answers: RFC 7807 objects with the types that Trustee's clients know.

A detail is one line and ends with our rule's name in brackets. What failed on this side
is not told to strangers.
Source: kbs/src/error.rs of confidential-containers/trustee; spec/kbs.md section Errors.
"""

from __future__ import annotations

import json
from typing import Final

from sealift.errors import SealiftError
from sealift.release.files import is_about_peer

TYPE_PREFIX: Final = "https://github.com/confidential-containers/kbs/errors/"
MEDIA_TYPE: Final = "application/problem+json"
ATTESTATION: Final = "AttestationError"
POLICY_DENY: Final = "PolicyDeny"
NO_TOKEN: Final = "TokenNotFound"  # noqa: S105 - the name of an error
BAD_TOKEN: Final = "TokenVerifierError"  # noqa: S105 - the name of an error
BAD_PATH: Final = "InvalidRequestPath"
NO_PLUGIN: Final = "PluginNotFound"
NOT_OPEN: Final = "AdminAuthAccess"
FAILED: Final = "PluginInternalError"
LIMITED: Final = "LimitReached"


class Problem(Exception):  # noqa: N818 - RFC 7807 calls it a problem
    """An answer that says no.

    Args:
        status: Of HTTP.
        kind: Last part of the type.
        detail: One line for people.
        rule: Our stable name.
        retry_s: After how many seconds it is worth trying again, or 0.
    """

    def __init__(
        self, status: int, kind: str, detail: str, rule: str, retry_s: int = 0
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.rule = rule
        self.retry_s = retry_s

    def body(self) -> bytes:
        """The object."""
        content = {"type": f"{TYPE_PREFIX}{self.kind}", "detail": self.detail}
        return json.dumps(content).encode()


def refusal(error: SealiftError, kind: str) -> Problem:
    """The answer for an error that a decision of ours raised."""
    if not is_about_peer(error):
        line = "the broker cannot answer now; its own output says why"
        return Problem(503, FAILED, f"{line} [{error.code}]", error.code, retry_s=5)
    return Problem(401, kind, f"{error} [{error.code}]"[:1000], error.code)


def not_found(kind: str, detail: str, rule: str) -> Problem:
    """There is nothing at that path."""
    return Problem(404, kind, f"{detail} [{rule}]", rule)


def limited(status: int, detail: str, rule: str, *, retry_s: int = 0) -> Problem:
    """A limit of this server was reached."""
    return Problem(status, LIMITED, f"{detail} [{rule}]", rule, retry_s)
