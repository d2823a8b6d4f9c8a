"""A chat's turns as the text that a model was tuned on: the Jinja template of its tokenizer_config.json.

The template comes with a checkpoint, from anybody: it is rendered in a sandbox, without access to what objects are made
of, and can change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from megatronapp.core.errors import UsageError

MAX_CHARACTERS = 1 << 20
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_ENDLESS = (MemoryError, OverflowError, RecursionError)


def rendered(settings: bytes, turns: Sequence[Mapping[str, str]]) -> str:
    """`settings`: a tokenizer_config.json; `turns`: each with `role` and `content`. What follows is the assistant's.
    Raises UsageError where there is no template, or it can't be rendered."""
    document = _document(settings)
    template = _template(document.get("chat_template"))
    if template is None:
        raise UsageError("this model's tokenizer has no chat template: ask without chat")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    tokens = {name: _content(document[name]) for name in _TOKENS if name in document}
    try:
        text = environment.from_string(template).render(messages=list(turns), add_generation_prompt=True, **tokens)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, *_ENDLESS) as error:
        raise UsageError(f"the tokenizer's chat template can't be rendered: {error!s:.200}") from error
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the tokenizer's chat template makes {len(text)} characters; at most {MAX_CHARACTERS}")
    return text


def _document(settings: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(settings or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _template(value: Any) -> str | None:
    """One text, or of several with names the default one."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _refuse(message: str) -> None:
    raise TemplateError(message)
