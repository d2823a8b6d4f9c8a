"""What a TrainingJob becomes. Whole objects are compared with files; `UPDATE_GOLDEN=1` writes these anew."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from megatronapp.core.tls import ClientTls
from megatronapp.core.trainingjob import Status
from megatronapp.core.trainingjob.status import ExcludedNode
from megatronapp.operator import names
from megatronapp.operator.actions import Create
from megatronapp.operator.reconcile import decide
from megatronapp.operator.render import Plan, render_job, render_network_policy, render_service
from megatronapp.operator.render.jobset import render_jobset
from megatronapp.operator.render.pod import pod_template
from tests.support.networkpolicy import Endpoint, allowed
from tests.unit.operator.samples import PLATFORM, UID, observation, training_job

GOLDEN = Path("tests/unit/operator/golden")
FAULT = {"kind": "slow_compute", "node": "node2", "from_step": 31, "effect_ratio": 1.5}
GPU = {"resources": {"limits": {"nvidia.com/gpu": 8}}, "procPerNode": 8}

CASES: dict[str, dict[str, Any]] = {
    "static": {},
    "full": {
        **GPU,
        "image": "registry.example.com/trainer:1",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "registry"}],
        "args": ["--num-layers=4"],
        "parallelism": {"tensor": 4, "pipeline": 2, "virtualPipeline": 2},
        "rdma": {"resourceName": "rdma/hca", "count": 2, "networks": ["ib0", "ib1"]},
        "storage": [
            {"name": "checkpoints", "claimName": "ckpt", "mountPath": "/checkpoints"},
            {"name": "data", "claimName": "corpus", "mountPath": "/data", "readOnly": True},
        ],
        "scheduling": {
            "topology": {"level": "topology.example.com/rack"},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "excludeNodes": ["bad-1"],
            "priorityClassName": "high",
        },
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
        "envFrom": [{"secretRef": {"name": "wandb"}}],
        "labels": {"team": "a"},
        "annotations": {"note": "x"},
        "serviceAccountName": "trainer",
    },
    "faults": {"plugins": {"faults": {"scenario": {"faults": [FAULT]}}}},
    "faults-from": {"plugins": {"faults": {"scenarioFrom": {"name": "scenarios", "key": "slow.yaml"}}}},
    "kueue": {"scheduling": {"queue": "team-a", "topology": {"level": "rack", "mode": "Preferred"}}},
    "coscheduling": {"scheduling": {"gang": "Coscheduling"}},
    "volcano": {"scheduling": {"gang": "Volcano", "queue": "team-a"}},
    "suspended": {"suspend": True},
    "forward-nodes": {
        "nodes": 3,
        "parallelism": {"tensor": 2, "pipeline": 2},
        "plugins": {"fbd": {"enabled": True, "forwardPipeline": 1, "forwardNodeSelector": {"pool": "old"}}},
        "scheduling": {"gang": "Coscheduling", "nodeSelector": {"pool": "new"}, "topology": {"level": "rack"}},
    },
    "own-command": {"command": ["torchrun", "train.py"], "args": ["--fast"]},
    "attached": {
        "image": "registry.example.com/gpt:1",
        "command": ["torchrun", "pretrain_gpt.py"],
        "args": ["--load", "/checkpoints", "--save", "/checkpoints"],
        "attach": True,
        "storage": [{"name": "checkpoints", "claimName": "ckpt", "mountPath": "/checkpoints"}],
    },
    "overlay": {
        "podTemplate": {
            "spec": {
                "hostNetwork": True,
                "containers": [
                    {"name": "trainer", "env": [{"name": "A", "value": "1"}]},
                    {"name": "side", "image": "x"},
                ],
                "volumes": [{"name": "scratch", "hostPath": {"path": "/scratch"}}],
            }
        }
    },
}


def plan(**spec: Any) -> Plan:
    return Plan(training_job(**spec), 3, 2, ("bad-1",) if "scheduling" in spec else (), PLATFORM)


def made_of(**spec: Any) -> list[dict[str, Any]]:
    """All that the third attempt of a job is made of, in the order in which it is made."""
    excluded = [ExcludedNode(name="bad-1")] if "scheduling" in spec else []
    job = training_job(Status(attempt=3, excluded_nodes=excluded), **spec)
    decision = decide(observation(job, service=False))
    return [action.body for action in decision.actions if isinstance(action, Create)]


@pytest.mark.parametrize("name", CASES)
def test_objects_are_as_they_were(name: str) -> None:
    _compare(GOLDEN / f"{name}.yaml", made_of(**CASES[name]))


def test_a_jobset_holds_the_same_pods() -> None:
    made = plan(**CASES["full"])
    jobset = render_jobset(made)

    _compare(GOLDEN / "jobset.yaml", [jobset])
    inner = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert inner == render_job(made)["spec"]


def test_jobs_of_two_roles_share_all_nodes_of_torchrun() -> None:
    jobs = [body for body in made_of(**CASES["forward-nodes"]) if body["kind"] == "Job"]
    pods = [job["spec"]["template"]["spec"] for job in jobs]
    env = [{each["name"]: each.get("value") for each in pod["containers"][0]["env"]} for pod in pods]

    assert [(job["metadata"]["name"], job["spec"]["completions"]) for job in jobs] == [
        ("gpt-3", 2),
        ("gpt-3-forward", 1),
    ]
    assert [pod["nodeSelector"] for pod in pods] == [{"pool": "new"}, {"pool": "old"}]
    assert [each.get("MEGATRONAPP_FIRST_NODE_RANK") for each in env] == [None, "2"]
    assert {(each["PET_NNODES"], each["PET_MASTER_ADDR"]) for each in env} == {("3", "gpt-3-0.gpt-ranks")}


@pytest.mark.parametrize("name", CASES)
def test_objects_are_valid_kubernetes(name: str) -> None:
    made = plan(**CASES[name])

    for body in (render_network_policy(made.job), render_service(made.job), *map(render_job, made.parts)):
        kubernetes_validate.validate(body, "1.34", strict=True)


def test_ranks_are_reached_by_each_other_alone() -> None:
    made = plan()
    labels = render_job(made)["spec"]["template"]["metadata"]["labels"]
    ranks = [Endpoint(name, made.job.metadata.namespace, labels) for name in ("first", "second")]
    other_job = Endpoint("other job", made.job.metadata.namespace, {**labels, names.JOB_LABEL: "other"})
    namesake = Endpoint("same name elsewhere", "elsewhere", labels)
    outside = Endpoint("outside", address="203.0.113.9")

    policies = [render_network_policy(made.job)]

    assert allowed(policies, *ranks, 29500)
    assert all(allowed(policies, ranks[0], target, 443) for target in (other_job, namesake, outside))
    assert not any(allowed(policies, source, ranks[0], 29500) for source in (other_job, namesake, outside))


@pytest.mark.parametrize("name", [name for name in CASES if name not in {"full", "overlay"}])
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    pod = render_job(plan(**CASES[name]))["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    sources = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
    assert sources <= {"emptyDir", "projected", "persistentVolumeClaim", "configMap", "downwardAPI"}


HOSTILE_TEMPLATES: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": {names.JOB_LABEL: "vic", names.RUN_LABEL: None, names.ATTEMPT_LABEL: "9"}}},
    "fields": {"spec": {"restartPolicy": "Always", "subdomain": "vic-ranks"}},
    "environment": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "PET_NNODES", "value": "9"}]}]}},
    "all of the environment": {"spec": {"containers": [{"name": "trainer", "env": None, "volumeMounts": None}]}},
    "token": {"spec": {"volumes": [{"name": "megatronapp-token", "projected": {"sources": []}}]}},
    "volumes": {"spec": {"volumes": None}},
}


@pytest.mark.parametrize("what", HOSTILE_TEMPLATES)
def test_the_platforms_own_wins_over_any_overlay(what: str) -> None:
    """The model refuses these; were one overlooked, it would change nothing that others see."""
    plain = plan()
    spec = plain.spec.model_copy(update={"pod_template": HOSTILE_TEMPLATES[what]})
    hostile = replace(plain, job=plain.job.model_copy(update={"spec": spec}))

    pod, wanted = pod_template(hostile), pod_template(plain)

    assert pod["metadata"]["labels"] == wanted["metadata"]["labels"]
    for field in ("restartPolicy", "subdomain"):
        assert pod["spec"][field] == wanted["spec"][field]
    container, wanted_container = pod["spec"]["containers"][0], wanted["spec"]["containers"][0]
    assert container["env"] == wanted_container["env"]
    for key, found, all_wanted in (
        ("volumes", pod["spec"], wanted["spec"]),
        ("volumeMounts", container, wanted_container),
    ):
        token = [item for item in all_wanted[key] if item["name"] == "megatronapp-token"]
        assert [item for item in found[key] if item["name"] == "megatronapp-token"] == token


def test_a_token_names_job_and_run_and_nothing_else() -> None:
    volumes = render_job(plan())["spec"]["template"]["spec"]["volumes"]
    (source,) = next(v for v in volumes if v["name"] == "megatronapp-token")["projected"]["sources"]

    assert source["serviceAccountToken"]["audience"] == f"megatronapp/team/gpt/{UID}"


def test_neither_env_nor_env_from_shadows_the_platforms() -> None:
    """Of two of one name the last one counts, and `env` counts over `envFrom`."""
    spec = {"env": [{"name": "A", "value": "1"}], "envFrom": [{"configMapRef": {"name": "x", "optional": True}}]}
    container = render_job(plan(**spec))["spec"]["template"]["spec"]["containers"][0]

    given = [variable["name"] for variable in container["env"]]
    assert len(given) == len(set(given))
    assert {"PET_NNODES", "MEGATRONAPP_RUN_ID", "A"} <= set(given)


def test_only_rdma_asks_for_a_capability() -> None:
    container = render_job(plan(**CASES["full"]))["spec"]["template"]["spec"]["containers"][0]

    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert container["resources"]["limits"]["rdma/hca"] == 2


def test_rendering_again_gives_the_same() -> None:
    assert render_job(plan(**CASES["full"])) == render_job(plan(**CASES["full"]))


def test_one_run_has_one_collector() -> None:
    shards = {PLATFORM.collector_of(f"run-{number}") for number in range(50)}

    assert shards == {f"collector-{shard}.traces:7601" for shard in range(3)}
    assert PLATFORM.collector_of("run-1") == PLATFORM.collector_of("run-1")


class Plain(yaml.SafeDumper):
    """Writes out what is there twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _compare(file: Path, bodies: list[dict[str, Any]]) -> None:
    text = yaml.dump_all(bodies, Dumper=Plain, sort_keys=False, width=120)
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.read_text() == text


@pytest.mark.parametrize("mutual", [False, True])
def test_pods_get_the_certificates_beside_their_token(mutual: bool) -> None:
    platform = replace(PLATFORM, collector_tls_secret="collector-tls", collector_mutual_tls=mutual)
    body = pod_template(replace(plan(), platform=platform))

    container = body["spec"]["containers"][0]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    (token,) = [volume for volume in body["spec"]["volumes"] if volume["name"] == "megatronapp-token"]
    secrets = [source["secret"] for source in token["projected"]["sources"] if "secret" in source]
    files = {item["path"] for secret in secrets for item in secret["items"]}
    assert [secret["name"] for secret in secrets] == ["collector-tls"]
    assert files == ({"ca.crt", "tls.crt", "tls.key"} if mutual else {"ca.crt"})
    (folder,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "megatronapp-token"]
    named = {name: value for name, value in environment.items() if "CA_FILE" in name or "CLIENT" in name}
    assert {f"{folder}/{file}" for file in files} == set(named.values())
    assert ClientTls.of_environment({name: str(value) for name, value in named.items()}).enabled


def test_megascope_is_attached_where_it_is_asked_for() -> None:
    asked = {**CASES["attached"], "plugins": {"scope": {"enabled": True}}}

    pod = pod_template(plan(**asked))["spec"]

    [training], [_, agent] = pod["containers"], pod["initContainers"]
    [flags] = [found["value"] for found in training["env"] if found["name"] == "MEGATRONAPP_ATTACH"]
    assert "--scope" in json.loads(flags)
    assert "MEGATRONAPP_GATEWAY_ADDRESS" in {found["name"] for found in agent["env"]}


def example(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(Path(f"examples/attach/{name}.yaml").read_text()))


def pods_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods' specs of a Job, a JobSet or a PyTorchJob."""
    spec = body["spec"]
    match body["kind"]:
        case "Job":
            templates = [spec["template"]]
        case "JobSet":
            templates = [each["template"]["spec"]["template"] for each in spec["replicatedJobs"]]
        case _:
            templates = [each["template"] for each in spec["pytorchReplicaSpecs"].values()]
    return [template["spec"] for template in templates]


@pytest.mark.parametrize("name", ["indexed-job", "jobset", "pytorchjob"])
def test_the_pods_of_an_example_are_valid_kubernetes_and_attached_as_ours_are(name: str) -> None:
    *_, body = example(name)
    ours = pod_template(plan(**CASES["attached"]))["spec"]
    own = {found["name"]: found for found in ours["containers"][0]["env"]}

    for pod in pods_of(body):
        meta = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "llama"}}
        kubernetes_validate.validate({**meta, "spec": pod}, "1.34", strict=True)
        assert pod["shareProcessNamespace"] == ours["shareProcessNamespace"]
        assert [each["command"] for each in pod["initContainers"]] == [
            each["command"] for each in ours["initContainers"]
        ]
        added = [found for found in pod["containers"][0]["env"] if found["name"].startswith("MEGATRONAPP_")]
        assert {found["name"] for found in added} <= own.keys()
        assert own["MEGATRONAPP_AGENT_SOCKET"] in added


@pytest.mark.parametrize("name", ["indexed-job", "jobset", "pytorchjob"])
def test_an_example_says_how_its_run_is_put_into_it(name: str) -> None:
    text = Path(f"examples/attach/{name}.yaml").read_text()
    [old] = re.findall(r's/(\w+)/\$run/"', text)

    filled = "\n".join(line.replace(old, "the-run", 1) for line in text.splitlines())

    for pod in pods_of(list(yaml.safe_load_all(filled))[-1]):
        values = {found["name"]: found.get("value") for found in pod["containers"][0]["env"]}
        assert values["MEGATRONAPP_RUN_ID"] == "the-run"
        assert old not in str(pod)


def test_the_example_of_an_attached_job_is_valid_kubernetes() -> None:
    for body in example("indexed-job"):
        kubernetes_validate.validate(body, "1.34", strict=True)


def test_the_jobs_of_an_attached_job_set_are_valid_kubernetes_and_of_its_schema() -> None:
    [body] = example("jobset")
    [ranks] = body["spec"].pop("replicatedJobs")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "llama-ranks-0"}}

    kubernetes_validate.validate({**job, **ranks.pop("template")}, "1.34", strict=True)

    assert (body["apiVersion"], body["spec"], ranks) == ("jobset.x-k8s.io/v1alpha2", {}, {"name": "ranks"})


def test_the_replicas_of_an_attached_pytorch_job_are_of_its_schema() -> None:
    """kubeflow.org/v1 knows more; the names that the controller looks for are these."""
    [body] = example("pytorchjob")

    assert body["apiVersion"] == "kubeflow.org/v1"
    assert body["spec"].keys() == {"nprocPerNode", "pytorchReplicaSpecs"}
    assert isinstance(body["spec"]["nprocPerNode"], str)
    replicas = body["spec"]["pytorchReplicaSpecs"]
    assert replicas.keys() == {"Master", "Worker"}
    for each in replicas.values():
        assert each.keys() == {"replicas", "restartPolicy", "template"}
        assert [found["name"] for found in each["template"]["spec"]["containers"]] == ["pytorch"]
