"""Evaluates one Rego policy in a process of its own: see ``release/regopolicy.py``.

It is started with an empty environment, takes one question from stdin, and ends. The
evaluator cannot be interrupted and knows no limits, so the kernel sets them here.
Not imported by anything: it runs as a file.
"""

import importlib
import json
import resource
import sys
from typing import Any

CPU_S = 2
MEMORY_BYTES = 1 << 30
FILES = 32


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


def main() -> None:
    """Answer one question."""
    rego = importlib.import_module("regopy")
    limit()
    json.dump(evaluate(rego, json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
