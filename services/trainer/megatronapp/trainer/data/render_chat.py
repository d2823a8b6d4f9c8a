"""Renders one chat template, as a program: what a template from anybody asks for, of time or memory, ends with it.

Reads {"template", "values"} from standard input and writes the text. What can't be rendered is one line of standard
error, and exit status 1. It imports nothing of this project, so that it starts at once.
"""

from __future__ import annotations

import json
import resource
import sys

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 20
MAX_BYTES = 256 << 20
MAX_PROCESSOR_SECONDS = 1
_FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
_ENDLESS = (MemoryError, RecursionError, SyntaxError)


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PROCESSOR_SECONDS, MAX_PROCESSOR_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    try:
        text = rendered(asked["template"], asked["values"]).encode()
    except (*_FAILURES, *_ENDLESS) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.buffer.write(said[:200].encode(errors="replace"))
        return 1
    sys.stdout.buffer.write(text)
    return 0


def rendered(template: str, values: dict[str, object]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    text = environment.from_string(template).render(**values)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it makes {len(text)} characters; at most {MAX_CHARACTERS}")
    return text


def _refuse(message: str) -> None:
    raise TemplateError(message)


if __name__ == "__main__":
    sys.exit(main())
