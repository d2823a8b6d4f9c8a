"""Chat templates come with checkpoints: they are rendered, and can do nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import GenerationRequest, Limits
from megatronapp.trainer.data import chat
from megatronapp.trainer.data.chat import rendered
from megatronapp.trainer.data.render_chat import MAX_CHARACTERS
from megatronapp.trainer.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer
from megatronapp.trainer.generate.rows import rows_of

EXAMPLES = Path(__file__).parents[4] / "examples" / "data"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SAID = [{"role": "user", "content": "Hi {{ 7 * 7 }}"}]


def settings(template: object) -> bytes:
    return json.dumps({"chat_template": template, "bos_token": {"content": "<s>"}}).encode()


def test_what_a_user_says_is_put_into_the_template_as_it_is() -> None:
    assert rendered(settings(TEMPLATE), SAID) == "<s><user>Hi {{ 7 * 7 }}\n<assistant>"


def test_of_several_templates_the_default_one_is_taken() -> None:
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]

    assert rendered(settings(named), SAID) == "yes"


@pytest.mark.parametrize("given", [b"", b"{}", b"[]", b"no JSON", settings(7), settings([{"name": "tools"}])])
def test_without_a_template_it_is_refused(given: bytes) -> None:
    with pytest.raises(UsageError, match="no chat template"):
        rendered(given, SAID)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for x in range(999999999) %}{% endfor %}",
        "{% broken",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        f"{{{{ 'x' * {MAX_CHARACTERS + 1} }}}}",
        "{% include 'file' %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ '%999999999d' % 1 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ raise_exception('\ud800') }}",
        "\ud800",
        "{{ raise_exception('a\nb') }}",
    ],
)
def test_a_hostile_or_broken_template_is_refused_in_one_line(template: str) -> None:
    with pytest.raises(UsageError, match="chat template") as caught:
        rendered(settings(template), SAID)
    assert "\n" not in str(caught.value)


def test_a_template_that_takes_for_ever_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 1.0)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    with pytest.raises(UsageError, match="can't be rendered"):
        rendered(settings(endless), SAID)


@pytest.mark.parametrize(
    "given", [b"[" * 100_000, settings([{"name": ["a"], "template": "x"}]), b'{"chat_template": "\\ud8'], ids=range(3)
)
def test_settings_that_can_not_be_meant_have_no_template(given: bytes) -> None:
    with pytest.raises(UsageError, match="no chat template"):
        rendered(given, SAID)


def test_a_request_in_chat_has_the_templates_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((EXAMPLES / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_bytes(settings(TEMPLATE))
    tokenizer = HuggingFaceTokenizer(tmp_path)
    limits = Limits(vocabulary=tokenizer.vocab_size, max_positions=64)

    [row] = rows_of(GenerationRequest(prompts=("Hello",), chat=True, max_new_tokens=1), tokenizer, limits)

    assert tokenizer.detokenize(row.ids) == "<s><user>Hello\n<assistant>"


def test_ids_are_no_chat() -> None:
    with pytest.raises(UsageError, match="prompts of text"):
        GenerationRequest(prompts=((1, 2),), chat=True)


def test_a_part_of_a_character_is_spelled() -> None:
    tokenizer = ByteTokenizer()
    limits = Limits(vocabulary=tokenizer.vocab_size, max_positions=64)

    [row] = rows_of(GenerationRequest(prompts=("é",), max_new_tokens=1), tokenizer, limits)

    assert [(token.text, token.piece) for token in row.prompt_tokens()] == [("", "<0xC3>"), ("é", "")]
