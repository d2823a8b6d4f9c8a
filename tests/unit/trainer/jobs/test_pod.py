"""What a pod's launcher makes of its environment."""

from __future__ import annotations

from megatronapp.trainer.jobs.pod import node_rank


def test_a_second_jobs_pods_are_numbered_after_the_firsts() -> None:
    assert node_rank({"PET_NODE_RANK": "1", "MEGATRONAPP_FIRST_NODE_RANK": "2"}) == {"PET_NODE_RANK": "3"}


def test_a_job_alone_keeps_its_numbers() -> None:
    assert node_rank({"PET_NODE_RANK": "1"}) == {}
