"""Requests and events as JSON; what is no request says so in one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.generation import (
    Beam,
    BeamsMoved,
    Candidate,
    Control,
    Event,
    Finished,
    GenerationRequest,
    InputGradients,
    RowFinished,
    Sampling,
    Started,
    StateChanged,
    Stepped,
    Token,
)
from megatronapp.core.generation_json import command_from_json, event_from_json, to_json


@pytest.mark.parametrize(
    "command",
    [
        GenerationRequest(prompts=("a", (1, 2)), sampling=Sampling(top_k=3), stop_words=("x",), seed=5),
        Control(action="step", request="r", steps=3),
    ],
)
def test_commands_come_back(command: GenerationRequest | Control) -> None:
    assert command_from_json(to_json(command)) == command


def test_a_request_needs_no_type_and_takes_defaults() -> None:
    assert command_from_json('{"prompts": ["a"]}') == GenerationRequest(prompts=("a",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "a JSON object"),
        ("{}", "prompts: "),
        ('{"prompts": ["a", "b"], "input_gradients": true}', "one prompt and its continuation"),
        ('{"prompts": [1]}', "prompts.0"),
        ('{"prompts": ["a"], "seed": "x"}', "seed: "),
        ('{"prompts": ["a"], "temprature": 1}', "temprature: "),
        ('{"prompts": ["a"], "sampling": {"temperature": -1}}', "temperature -1.0"),
        ('{"prompts": ["a"], "length_penalty": NaN}', "length_penalty"),
        ('{"type": "system"}', "type 'system'"),
        ('{"type": "control", "action": "explode", "request": "a"}', "action: "),
        ('{"prompts": ["\\ud800"]}', ""),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        command_from_json(text)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["type", "prompts", "sampling", "seed", "stop_words", "continuations", "beam_width", "action", "request"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_nothing_but_usage_errors_comes_of_hostile_text(document: dict[str, object]) -> None:
    try:
        command_from_json(json.dumps(document))
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_an_event_is_one_line() -> None:
    token = Token(
        row=0, position=3, id=7, text="\n", origin="sampled", log_probability=-0.5,
        candidates=(Candidate(id=7, text="\n", log_probability=-0.5),), logits=b"\x00\x00\x80?",
    )  # fmt: skip

    line = to_json(Stepped(request="r", step=1, tokens=(token,)))

    document = json.loads(line)
    assert "\n" not in line
    assert (document["type"], document["request"]) == ("stepped", "r")
    assert document["tokens"][0]["candidates"] == [{"id": 7, "text": "\n", "log_probability": -0.5}]
    assert document["tokens"][0]["logits"] == "AACAPw=="


CANDIDATE = Candidate(id=1, text="a", log_probability=-1.0)
TOKEN = Token(
    row=0,
    position=3,
    id=5,
    text="é",
    delta="é",
    origin="sampled",
    log_probability=-0.5,
    candidates=(CANDIDATE,),
    logits=b"\x00\xff\xfe\x01",
)
BEAM = Beam(ids=(1, 2), text="q", log_probability=-2.0, score=-1.0, finished=True)


@pytest.mark.parametrize(
    "event",
    [
        Started(request="r", rows=((TOKEN,), ())),
        Stepped(request="r", step=1, tokens=(TOKEN,)),
        BeamsMoved(request="r", step=1, row=0, beams=(BEAM,)),
        InputGradients(request="r", row=0, values=(0.5, -1.0)),
        RowFinished(request="r", row=0, reason="stop", text="x", beams=(BEAM,)),
        StateChanged(request="r", state="paused"),
        Finished(request="r", reason="refused", message="no prompts"),
    ],
)
def test_events_come_back(event: Event) -> None:
    assert event_from_json(to_json(event)) == event


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": []}', '{"type": "stepped", "step": "x"}', "[" * 10**5])
def test_what_is_no_event_is_a_data_error(text: str) -> None:
    with pytest.raises(DataError, match="no event"):
        event_from_json(text)
