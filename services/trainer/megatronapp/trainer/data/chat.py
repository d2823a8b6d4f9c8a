"""A chat's turns as the text that a model was tuned on: the Jinja template of its tokenizer_config.json.

The template comes with a checkpoint, from anybody: it is rendered in a sandbox, without access to what objects are made
of, and in a process of its own, which ends where it asks for too much time or memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.json_file import load_json

MAX_SECONDS = 30.0
"""Of a machine that is busy: the program's own limit is of processor time."""
_PROGRAM = Path(__file__).with_name("render_chat.py")
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def rendered(settings: bytes, turns: Sequence[Mapping[str, str]]) -> str:
    """`settings`: a tokenizer_config.json; `turns`: each with `role` and `content`. What follows is the assistant's.
    Raises UsageError where there is no template, or it can't be rendered."""
    document = _document(settings)
    template = _template(document.get("chat_template"))
    if template is None:
        raise UsageError("this model's tokenizer has no chat template: ask without chat")
    tokens = {name: _content(document[name]) for name in _TOKENS if name in document}
    values = {"messages": list(turns), "add_generation_prompt": True, **tokens}
    try:
        done = subprocess.run(
            [sys.executable, "-I", _PROGRAM],
            input=json.dumps({"template": template, "values": values}).encode(),
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise UsageError(f"the tokenizer's chat template can't be rendered: {error!s:.200}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace") if done.returncode == 1 else "it takes too long, or too much memory"
        raise UsageError(f"the tokenizer's chat template can't be rendered: {said:.200}")
    return done.stdout.decode()


def _document(settings: bytes) -> Mapping[str, Any]:
    try:
        document = load_json(settings or b"{}", "tokenizer_config.json")
    except DataError:
        return {}
    return document if isinstance(document, dict) else {}


def _template(value: Any) -> str | None:
    """One text, or of several with names the default one."""
    if isinstance(value, list):
        named = [each.get("template") for each in value if isinstance(each, dict) and each.get("name") == "default"]
        value = named[-1] if named else None
    return value if isinstance(value, str) else None


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
