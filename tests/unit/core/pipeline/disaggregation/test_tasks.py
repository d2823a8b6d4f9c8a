"""Tasks on resources."""

from __future__ import annotations

import pytest

from megatronapp.core.errors import TrainingError
from megatronapp.core.pipeline.disaggregation.tasks import Task, ends


def test_a_task_waits_for_those_before_it_and_for_its_resources() -> None:
    done = ends(
        {
            "first": Task(2.0, ("link",)),
            "second": Task(3.0, ("link", "other")),
            "third": Task(1.0, ("other",), (("first", 0.5),)),
            "free": Task(1.0, (), (("first", 0.5),)),
        }
    )

    assert done == {"first": 2.0, "second": 5.0, "third": 6.0, "free": 3.5}


def test_tasks_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(TrainingError, match="2 of 2 tasks wait for each other"):
        ends({"a": Task(1.0, (), (("b", 0.0),)), "b": Task(1.0, (), (("a", 0.0),))})
