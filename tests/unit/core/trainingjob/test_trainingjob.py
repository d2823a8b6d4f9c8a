from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.core.errors import ConfigError
from megatronapp.core.scenario import FaultKind
from megatronapp.core.trainingjob import Phase, Reason, Status, TrainingJob

EXAMPLES = Path(__file__).parents[4] / "examples"
APART: dict[str, Any] = {
    "nodes": 3,
    "procPerNode": 2,
    "parallelism": {"tensor": 2, "pipeline": 2},
    "plugins": {"fbd": {"enabled": True, "forwardPipeline": 1, "forwardNodeSelector": {"pool": "old"}}},
}
"""Two nodes of backward ranks, one of forward ranks."""


def fbd(mode: str | None = None, *, tensor: int = 1, pipeline: int = 1, **keys: int) -> dict[str, Any]:
    sizes = {key: keys.pop(key) for key in ("context", "expert") if key in keys}
    return {
        "plugins": {"fbd": {"enabled": True, "mode": mode, **keys}},
        "parallelism": {"tensor": tensor, "pipeline": pipeline, **sizes},
    }


SERVE: dict[str, Any] = {
    "mode": "serve",
    "parallelism": {"tensor": 4, "pipeline": 2},
    "plugins": {"scope": {"enabled": True}},
    "args": ["--load", "/checkpoints/default/gpt"],
}
"""On 8 ranks."""


def job(spec: dict[str, Any] | None = None, **metadata: Any) -> TrainingJob:
    content = {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", **metadata},
        "spec": {"procPerNode": 8, **(spec or {})},
    }
    return TrainingJob.parse(yaml.safe_dump(content), "job.yaml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("laptop/*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    again = TrainingJob.model_validate(TrainingJob.load(path).dump())

    assert again == TrainingJob.load(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("k8s/*.yaml")), ids=lambda path: path.name)
def test_the_job_is_found_among_what_else_a_cluster_needs(path: Path) -> None:
    assert TrainingJob.load(path).metadata.name == path.stem


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("some words", "job.yaml holds no TrainingJob$"),
        ("", "job.yaml holds no TrainingJob$"),
        ("{kind: Service}\n---\n{kind: Secret}", "job.yaml holds no TrainingJob$"),
        ("{kind: TrainingJob}\n---\n{kind: TrainingJob}", "job.yaml holds 2 TrainingJobs, where one is wanted$"),
    ],
)
def test_a_file_without_one_job_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TrainingJob.parse(text, "job.yaml")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"parallelism": {"tensor": 3}},
            r"spec: nodes x procPerNode = 8 is no multiple of tensor x pipeline x context = 3 x 1 x 1 = 3",
        ),
        ({"parallelism": {"tensor": 4, "expert": 4}}, "no multiple of tensor x pipeline x expert = 16"),
        ({"parallelism": {"virtualPipeline": 2}}, r"spec\.parallelism: virtualPipeline needs pipeline"),
        ({"parallelism": {"tensor": 0}}, r"spec\.parallelism\.tensor: .*greater than or equal to 1"),
        ({"procPerNode": 0}, r"spec\.procPerNode"),
        ({"elastic": {"minNodes": 2, "maxNodes": 4}}, "nodes 1 must lie between minNodes 2 and maxNodes 4"),
        (
            {"nodes": 2, "parallelism": {"tensor": 16}, "elastic": {"minNodes": 1, "maxNodes": 2}},
            "every size from minNodes to maxNodes must be a multiple of 16",
        ),
        (fbd(pipeline=2, context=3), "multiple of 6 forward and 6 backward ranks = 12"),
        (fbd(pipeline=2, expert=3), "fbd: 2 replicas x context 1 are no multiple of expert 3"),
        (
            {"plugins": {"fbd": {"enabled": True}, "dpp": {"enabled": True}}},
            r"fbd can't be used with plugins\.dpp: turn",
        ),
        ({"plugins": {"fbd": {"enabled": True}, "scope": {"enabled": True}}}, r"can't be used with plugins\.scope"),
        (fbd("Linears", pipeline=2, expert=2), r"fbd\.mode Linears can't run experts: leave mode out"),
        (fbd(tensor=2, pipeline=2, expert=2, forwardTensor=1), "1 forward tensor ranks can't run experts over"),
        (fbd(tensor=2, pipeline=2, forwardTensor=3), "3 forward tensor ranks neither divide parallelism.tensor = 2"),
        (fbd("Linears", tensor=2, pipeline=2, forwardTensor=1), "1 forward tensor ranks can't send linears"),
        (fbd("Auto", tensor=3, forwardTensor=1), "1 forward tensor ranks can't send linears"),
        (
            {**fbd(pipeline=2), "args": ["--forward-pipeline-model-parallel-size=1"]},
            r"args: give plugins\.fbd\.forwardPipeline, not --forward-pipeline-model-parallel-size",
        ),
        (
            {**fbd(pipeline=2), "nodes": 2, "procPerNode": 2, "elastic": {"minNodes": 2, "maxNodes": 3}},
            "every size from minNodes to maxNodes must be a multiple of 4 ranks",
        ),
        (
            {"nodes": 2, "parallelism": {"expert": 16}, "elastic": {"minNodes": 1, "maxNodes": 2}},
            "every size from minNodes to maxNodes must be a multiple of 16 ranks",
        ),
        ({"plugins": {"fbd": {"enabled": True}}}, "fbd needs pipeline of at least 2"),
        (
            {"plugins": {"fbd": {"enabled": True}}, "parallelism": {"tensor": 4, "pipeline": 2}},
            "multiple of 8 forward and 8 backward ranks = 16",
        ),
        (
            {**APART, "nodes": 2, "procPerNode": 3},
            "forwardNodeSelector: 2 forward ranks fill no whole nodes of procPerNode = 3: change nodes or procPerNode",
        ),
        ({**APART, "elastic": {"minNodes": 3, "maxNodes": 3}}, "can't be used with elastic: leave one of them out"),
        ({**APART, "backend": "JobSet"}, "can't be used with backend JobSet: leave one of them out"),
        ({**APART, "scheduling": {"queue": "a"}}, r"can't be used with scheduling\.queue: leave one of them out"),
        (
            {"plugins": {"fbd": {"ignoreForwardTensorParallel": True, "forwardTensor": 2}}},
            "means forwardTensor 1: give one of them",
        ),
        ({"plugins": {"dpp": {"enabled": True, "transport": "ucx"}}, "parallelism": {"pipeline": 2}}, "ucx needs rdma"),
        ({"plugins": {"dpp": {"enabled": True}}}, r"plugins\.dpp needs parallelism\.pipeline of at least 2"),
        (
            {"plugins": {"dpp": {"enabled": True, "cap": 1}}, "parallelism": {"pipeline": 2, "virtualPipeline": 2}},
            r"plugins\.dpp\.cap 1 can stop for ever: it must be at least parallelism\.virtualPipeline = 2",
        ),
        (
            {
                "plugins": {"dpp": {"enabled": True, "policy": "ZbH1"}},
                "parallelism": {"pipeline": 2, "virtualPipeline": 2},
            },
            r"policy ZbH1 takes one chunk a stage: leave parallelism\.virtualPipeline at 1",
        ),
        (
            {"plugins": {"dpp": {"enabled": True, "policy": "ZbH2", "split": False}}, "parallelism": {"pipeline": 2}},
            "policy ZbH2 puts W off: leave split at true",
        ),
        ({"plugins": {"dpp": {"policy": "Replay"}}}, r"spec\.plugins\.dpp\.policy"),
        ({"args": ["--dpp-policy=replay"]}, "--dpp-policy replay needs the order to run: add --dpp-order FILE.csv"),
        (
            {"args": ["--num-layers", "6"], "parallelism": {"pipeline": 2, "virtualPipeline": 2}},
            r"--num-layers 6 is no multiple of parallelism\.pipeline x virtualPipeline = 2 x 2 = 4: change one of them",
        ),
        ({"plugins": {"megatrace": {"enabled": True, "ringMib": 3}}}, "ringMib 3: take a power of two, 1 to 512"),
        (
            {"command": ["torchrun", "train.py"], "plugins": {"megatrace": {"enabled": True}}},
            r"plugins\.megatrace needs the platform's own launcher: leave out command",
        ),
        (
            {"command": ["torchrun", "train.py"], "plugins": {"dpp": {"enabled": True}}},
            r"plugins\.dpp needs the platform's own launcher: leave out command",
        ),
        (
            {"command": ["x"], "plugins": {"faults": {"scenarioFrom": {"name": "a", "key": "b"}}}},
            r"plugins\.faults needs the platform's own launcher",
        ),
        ({"attach": True, "command": ["x"]}, "attach needs image and command"),
        ({"attach": True, "image": "x"}, "attach needs image and command"),
        (
            {"attach": True, "image": "x", "command": ["x"], "plugins": {"megatrace": {"enabled": True}}},
            r"plugins\.megatrace needs the platform's own launcher",
        ),
        (
            {"attach": True, "image": "x", "command": ["x"], "plugins": {"scan": {"enabled": False}}},
            r"attach is MegaScan: turn plugins\.scan\.enabled on",
        ),
        ({"mode": "explain"}, r"spec\.mode"),
        ({**SERVE, "command": ["x"], "plugins": {}}, "mode serve needs the platform's own launcher"),
        ({**SERVE, "plugins": {}}, r"mode serve needs plugins\.scope\.enabled"),
        (
            {**SERVE, "plugins": {"scope": {"enabled": True}, "dpp": {"enabled": True}}},
            "mode serve needs .* no megatrace, dpp, fbd or faults",
        ),
        ({**SERVE, "args": []}, "mode serve needs a checkpoint: give args --load"),
        (
            {**SERVE, "nodes": 2},
            "one replica: nodes x procPerNode = 16 must be tensor x pipeline = 4 x 2",
        ),
        ({**SERVE, "elastic": {"minNodes": 1, "maxNodes": 1}}, "mode serve runs one replica"),
        ({"env": [{"name": "MASTER_ADDR", "value": "x"}]}, r"spec\.env\.0: MASTER_ADDR is set by the platform"),
        ({"env": [{"name": "MEGATRONAPP_JOB"}]}, "MEGATRONAPP_JOB is set by the platform"),
        ({"args": ["--tensor-model-parallel-size=2"]}, r"differs from parallelism\.tensor 1"),
        ({"args": ["--pipeline-model-parallel-size", "2"]}, r"size 2 differs from parallelism\.pipeline 1"),
        ({"args": ["--num-layers-per-virtual-pipeline-stage", "2"]}, r"give parallelism\.virtualPipeline"),
        ({"failurePolicy": {"nonRetriableExitCodes": [0]}}, r"nonRetriableExitCodes\.0"),
        (
            {"storage": [{"name": "a", "claimName": "c", "mountPath": p} for p in ("/x", "/y")]},
            "storage: name a is given twice",
        ),
        ({"storage": [{"name": "a", "claimName": "c", "mountPath": "x"}]}, r"storage\.0\.mountPath"),
        ({"nod": 2}, r"spec\.nod: there is no such key"),
        ({"plugins": {"faults": {"scenario": {"faults": [{"kind": "hang"}]}}}}, r"scenario\.faults\.0\.from_?[sS]tep"),
    ],
)
def test_one_clear_message_for_each_mistake(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        job(spec)

    assert str(caught.value).startswith("job.yaml: spec")
    assert "\n" not in str(caught.value)


def test_a_command_of_ones_own_needs_not_turn_off_what_is_on_by_default() -> None:
    spec = job({"command": ["torchrun", "train.py"], "plugins": {"scan": {}, "faults": {"scenario": {}}}}).spec

    assert spec.plugins.enabled == ["scan"]


def test_a_name_leaves_room_for_attempt_and_index() -> None:
    with pytest.raises(ConfigError, match=r"metadata\.name"):
        job(name="a" * 55)
    with pytest.raises(ConfigError, match=r"metadata\.name"):
        job(name="Upper")


def test_what_kubernetes_adds_to_metadata_is_taken() -> None:
    assert job(uid="1-2", resourceVersion="7", managedFields=[]).metadata.uid == "1-2"


def test_fbd_has_a_world_of_its_own() -> None:
    sizes = {"tensor": 3, "pipeline": 2}
    spec = {"plugins": {"fbd": {"enabled": True, "ignoreForwardTensorParallel": True}}, "parallelism": sizes}

    assert job(spec).spec.world_size == 8


@pytest.mark.parametrize(
    ("procs", "sizes"), [(8, {"context": 2}), (8, {"expert": 2}), (8, {"context": 2, "expert": 2})]
)
def test_fbd_takes_context_and_experts(procs: int, sizes: dict[str, int]) -> None:
    assert job({**fbd(pipeline=2, **sizes), "procPerNode": procs}).spec.plugins.fbd.enabled


def test_an_elastic_job_of_fbd_takes_whole_replicas() -> None:
    spec = {**fbd(pipeline=2, forwardPipeline=1), "procPerNode": 3, "elastic": {"minNodes": 1, "maxNodes": 4}}

    assert job(spec).spec.world_size == 3


def test_forward_ranks_with_nodes_of_their_own_are_numbered_last() -> None:
    assert "--fbd-roles-apart" in job(APART).spec.trainer_args()


def test_names_leave_room_for_those_of_forward_pods() -> None:
    assert job(APART, name="n" * 46)
    with pytest.raises(ConfigError, match=r"metadata\.name: at most 46 characters with plugins\.fbd\.forwardNode"):
        job(APART, name="n" * 47)


def test_trainer_args_carry_layout_and_tracing() -> None:
    spec = job(
        {
            "parallelism": {"tensor": 2, "pipeline": 2, "virtualPipeline": 2},
            "plugins": {"scan": {"interval": 7, "granularity": "base"}},
            "args": ["--pipeline-model-parallel-size=2", "--bf16"],
        }
    ).spec

    flags = spec.trainer_args("faults.yaml")

    assert " ".join(flags) == (
        "--tensor-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
        "--trace --trace-interval 7 --trace-granularity base --continuous-trace-iterations 2 "
        "--fault-scenario faults.yaml --pipeline-model-parallel-size=2 --bf16"
    )


def test_a_job_that_serves_has_flags_of_its_own_and_traces_nothing() -> None:
    assert " ".join(job(SERVE).spec.trainer_args()) == (
        "--serve --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --require-plugins scope --scope "
        "--load /checkpoints/default/gpt"
    )


@pytest.mark.parametrize(
    ("plugins", "flags"),
    [
        ({"dpp": {"policy": "DepthFirst"}, "fbd": {"ignoreForwardTensorParallel": True}}, ""),
        ({"scope": {"enabled": True}}, "--require-plugins scope --scope"),
        (
            {"megatrace": {"enabled": True, "level": "all", "ringMib": 16}},
            "--require-plugins megatrace --nccl-trace all --nccl-trace-ring-mib 16",
        ),
        (
            {"dpp": {"enabled": True, "policy": "DepthFirst", "transport": "shm"}},
            "--require-plugins dpp --use-dpp --dpp-policy depth-first --dpp-transport shm",
        ),
        (
            {"dpp": {"enabled": True, "cap": 6, "split": False}},
            "--require-plugins dpp --use-dpp --dpp-policy auto --dpp-cap 6 --dpp-no-split --dpp-transport auto",
        ),
        (
            {"fbd": {"enabled": True, "ignoreForwardTensorParallel": True}},
            "--require-plugins fbd --forward-backward-disaggregating --ignore-forward-tensor-parallel",
        ),
        (
            {"fbd": {"enabled": True, "mode": "Input", "forwardTensor": 2, "forwardPipeline": 1}},
            "--require-plugins fbd --forward-backward-disaggregating --fbd-mode input "
            "--forward-tensor-model-parallel-size 2 --forward-pipeline-model-parallel-size 1",
        ),
    ],
)
def test_plugins_that_are_on_are_required_of_the_image_with_all_that_is_said_of_them(
    plugins: dict[str, Any], flags: str
) -> None:
    spec = job({"parallelism": {"pipeline": 2}, "plugins": {"scan": {"enabled": False}, **plugins}}).spec

    assert spec.trainer_args() == ["--pipeline-model-parallel-size", "2", *flags.split()]


def test_an_inline_scenario_is_checked_and_read() -> None:
    fault = {"kind": "slow_compute", "ranks": [1], "from_step": 30, "effect_ratio": 1.2}

    scenario = job({"plugins": {"faults": {"scenario": {"faults": [fault]}}}}).spec.plugins.faults.scenario

    assert scenario is not None
    assert scenario.faults[0].kind is FaultKind.SLOW_COMPUTE


def test_conditions_of_a_newer_operator_are_left_out_after_a_rollback() -> None:
    known = {"type": "Running", "status": "True", "reason": "Training"}
    newer = [{**known, "type": "Dreaming"}, {**known, "type": "Failed", "reason": "OfTomorrow"}]

    status = Status.model_validate({"conditions": [known, *newer]})

    assert [condition.type for condition in status.conditions] == ["Running"]


def test_status_survives_a_newer_operator() -> None:
    status = Status.model_validate(
        {
            "phase": "Running",
            "conditions": [{"type": "Degraded", "status": "True", "reason": "SlowRanks"}],
            "findings": {"slowRanks": [13], "worstSlowdown": "1.42"},
            "fromTheFuture": 1,
        }
    )

    assert status.phase is Phase.RUNNING
    assert status.conditions[0].reason is Reason.SLOW_RANKS


@pytest.mark.parametrize(
    ("text", "says"), [("a: [", "is not YAML"), ("{}", r"apiVersion"), ("kind: Pod", "apiVersion"), ("7", "job.yaml")]
)
def test_what_is_no_training_job_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TrainingJob.parse(text, "job.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: No such file"):
        TrainingJob.load(tmp_path / "gone.yaml")
