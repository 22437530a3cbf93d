"""Policies that an owner wrote in Rego: asked after the native rules, which stay.

The agreement names a policy by its digest, so every party sees that there is one and
which. It is judged like a KBS resource policy of Trustee: ``input`` is the EAR of the
evidence, ``data`` names the resource, and only ``data.policy.allow == true`` allows.
The evaluator runs in a process of its own for each question, a fork of one that is kept
ready (``release/regoprocess.py``), without environment, time-limited; what it
could learn of its surroundings (environment, time, chance) is refused in the text, so
that a decision follows from its input and is the same whenever it is made again.
Source: spec/release.md section Owner's policy; regopy 1.5 (rego-cpp), extra ``rego``.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sealift import __version__
from sealift.attest.ear import Binding, token_claims
from sealift.attest.level import Tier
from sealift.attest.result import AttestationResult
from sealift.errors import MalformedError, PolicyError, UnavailableError
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.release.regoprocess import PolicyProcess

MAX_POLICY_BYTES: Final = 64 << 10
LIMIT_S: Final = 5.0
_PROCESS: Final = PolicyProcess(LIMIT_S)
# Surroundings, by every way that the language has to name a built-in: the name itself,
# an alias by import, a name in brackets. There is no way to call one by computed name.
_FORBIDDEN: Final = re.compile(
    r"\b(?:opa|rand|uuid|http|net)\s*[.\[]"
    r"|\btime\s*\[|\bnow_ns\b|\bdecode_verify\b|\bencode_sign(?:_raw)?\b"
    r"|^\s*import\s+(?!(?:data|input|rego|future)\b).*",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a policy decides about.

    Attributes:
        result: What the evidence of whoever asks amounted to.
        line: Name of the agreement's line.
        agreement: Digest of the agreement in force.
        resource: Whose key is asked for.
        challenge: Of the request.
        bound: Digest of what the evidence bound (session, or key of the KBS client).
        at_s: Seconds since 1970, by the owner's clock: the only time that it learns.
    """

    result: AttestationResult
    line: str
    agreement: Digest
    resource: Resource
    challenge: bytes
    bound: Digest
    at_s: int

    def to_input(self) -> dict[str, Any]:
        """The EAR, and the same in the form of Trustee's newer policies."""
        binding = Binding(
            nonce=self.challenge, key=self.bound, agreement=self.agreement
        )
        claims = token_claims(
            self.result, binding, at_s=self.at_s, software=f"sealift {__version__}"
        )
        summary = {
            "tee_type": [self.result.standing],
            "policy_ids": [f"sealift:{self.agreement.to_text()}"],
            "verification_result": self.result.tier is Tier.AFFIRMING,
            "claims": claims,
        }
        context = {"attestation_summary": summary, "custom_claims": {}}
        return {**claims, "trust_context": context}

    def to_data(self) -> dict[str, Any]:
        """The resource, as the KBS protocol would name it."""
        path = [self.line, self.resource.part, self.resource.name]
        return {"plugin": "resource", "resource-path": path, "query": {}}


@dataclass(frozen=True, slots=True)
class OwnerPolicy:
    """One policy.

    Raises:
        MalformedError: ``owner-policy-malformed``, ``owner-policy-impure``.
        UnavailableError: ``extra-missing``.
    """

    source: bytes

    def __post_init__(self) -> None:
        if importlib.util.find_spec("regopy") is None:
            raise UnavailableError(
                "Rego policies need a package that is not installed",
                fix="Install sealift[rego]",
                code="extra-missing",
            )
        _require_pure(self.text)
        answer = _evaluate(self.text, {}, {})
        if "error" in answer:
            raise _malformed(str(answer["error"]))

    @property
    def digest(self) -> Digest:
        """What the agreement calls it."""
        return Digest.of(self.source)

    @property
    def text(self) -> str:
        """The policy as text.

        Raises:
            MalformedError: if it is too long or not UTF-8.
        """
        if len(self.source) > MAX_POLICY_BYTES:
            raise _malformed(f"it is longer than {MAX_POLICY_BYTES} bytes")
        try:
            return self.source.decode()
        except UnicodeDecodeError:
            raise _malformed("it is not UTF-8") from None

    def require_allowed(self, question: Question) -> None:
        """Refuse unless the policy says that exactly this is allowed.

        Raises:
            PolicyError: ``owner-policy-refused``; also where it fails or takes too long.
        """
        answer = _evaluate(self.text, question.to_data(), question.to_input())
        if answer.get("value") is True and "error" not in answer:
            return
        why = answer.get("error") or "data.policy.allow is not true"
        raise PolicyError(
            f"the policy of {question.resource.owner} does not allow "
            f"{question.resource.name}",
            why=f"{self.digest.short}: {why}",
            fix="Ask the owner what the policy wants to see",
            code="owner-policy-refused",
        )


class OwnerPolicies:
    """The policies that an owner gave its broker.

    Args:
        policies: Those that no resource names are of no use, and do no harm.
    """

    def __init__(self, policies: Iterable[OwnerPolicy] = ()) -> None:
        self._known: Mapping[Digest, OwnerPolicy] = {p.digest: p for p in policies}

    def require_present(self, resources: Iterable[Resource]) -> None:
        """Refuse to serve resources whose policy is not here.

        Raises:
            UnavailableError: ``owner-policy-absent``.
        """
        for resource in resources:
            self._find(resource)

    def require_allowed(self, question: Question) -> None:
        """Refuse what the resource's policy does not allow, if it has one.

        Raises:
            PolicyError: as ``OwnerPolicy.require_allowed``.
            UnavailableError: as ``require_present``.
        """
        policy = self._find(question.resource)
        if policy is not None:
            policy.require_allowed(question)

    def _find(self, resource: Resource) -> OwnerPolicy | None:
        wanted = resource.rule.policy
        if wanted is None:
            return None
        if wanted not in self._known:
            raise UnavailableError(
                f"the policy of {resource.name} is not here",
                why=f"the agreement names {wanted.short}",
                fix="Give the very file that was agreed on with --policy",
                code="owner-policy-absent",
            )
        return self._known[wanted]


def _require_pure(text: str) -> None:
    found = _FORBIDDEN.search(text)
    if found:
        raise MalformedError(
            "a policy may look at its input only",
            why=f"it names {found.group().strip()[:40]!r}",
            fix="Decide by input and data: input.iat is the time",
            code="owner-policy-impure",
        )


def _evaluate(
    text: str, data: Mapping[str, Any], shown: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer of a fresh process; whatever kills that is an error of the policy."""
    question = json.dumps({"policy": text, "data": data, "input": shown})
    try:
        answer = json.loads(_PROCESS.ask(question.encode()))
    except TimeoutError:
        return {"error": f"it took longer than {LIMIT_S:g} s"}
    except ValueError:
        return {"error": "its evaluation took too much time or memory"}
    return answer if isinstance(answer, dict) else {"error": "no answer"}


def _malformed(why: str) -> MalformedError:
    return MalformedError(
        "not a Rego policy",
        why=" ".join(why.split())[:300],
        code="owner-policy-malformed",
    )
