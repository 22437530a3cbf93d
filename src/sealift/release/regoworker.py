"""Evaluates Rego policies, each in a process of its own: see ``release/regoprocess.py``.

It is started with an empty environment, loads the evaluator, and forks for every
question: the child has never seen another policy, has no line but the one for its
answer, and ends. The evaluator cannot be interrupted and knows no limits, so the kernel
sets them in the child. Here nothing of a policy is ever looked at.
Not imported by anything: it runs as a file. Frames are a u32 length and that many bytes.
"""

import importlib
import json
import os
import resource
import signal
from typing import Any

CPU_S = 2
MEMORY_BYTES = 1 << 30
FILES = 32
MAX_ANSWER = 4096  # and a line that an evaluation writes beyond it breaks


def limit() -> None:
    """From here on: little time, little memory, no writing, few files."""
    for kind, most in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def evaluate(rego: Any, question: dict[str, Any]) -> dict[str, Any]:
    """The value of ``data.policy.allow``, or why there is none."""
    interpreter = rego.Interpreter()
    interpreter.log_level = getattr(rego.LogLevel, "NONE")  # noqa: B009
    interpreter.strict_built_in_errors = True
    try:
        interpreter.add_module("policy.rego", question["policy"])
        interpreter.add_data_json(json.dumps(question["data"]))
        interpreter.set_input_term(json.dumps(question["input"]))
        output = interpreter.query("data.policy.allow")
    except rego.RegoError as error:
        return {"error": str(error)}
    if not output.ok():
        return {"error": "it does not evaluate"}
    values = [value for each in output.results for value in each.expressions]
    return {"value": values[0] if len(values) == 1 else None}


def answer_in_child(rego: Any, question: bytes) -> bytes:
    """What a fresh child says; empty, or not whole, if something killed it."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.closerange(0, there)
            limit()
            answer = evaluate(rego, json.loads(question))
            os.write(there, json.dumps(answer).encode()[:MAX_ANSWER])
        finally:
            os._exit(0)
    os.close(there)
    answer_bytes = read(here, MAX_ANSWER)
    os.close(here)
    os.kill(child, signal.SIGKILL)  # it has answered, or never will
    os.waitpid(child, 0)
    return answer_bytes


def read(descriptor: int, wanted: int) -> bytes:
    """So many bytes, fewer if the line ends."""
    parts = b""
    while len(parts) < wanted and (part := os.read(descriptor, wanted - len(parts))):
        parts += part
    return parts


def main() -> None:
    """Answer questions until there are no more."""
    rego = importlib.import_module("regopy")
    while len(head := read(0, 4)) == 4:
        answer = answer_in_child(rego, read(0, int.from_bytes(head, "big")))
        os.write(1, len(answer).to_bytes(4, "big") + answer)


if __name__ == "__main__":
    main()
