"""Rules that the API server checks, in CEL, with messages that say what to do.

They restate the model's own validators; a test gives both the same specs. CEL has no loops over sizes, and a message
made by an expression costs more than the server allows: numbers are not in the messages.
"""

from __future__ import annotations

WORLD = "self.nodes * self.procPerNode"
MODEL_RANKS = "(self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context)"
FORWARD_TENSOR = (
    "(self.plugins.fbd.ignoreForwardTensorParallel ? 1 : "
    "has(self.plugins.fbd.forwardTensor) ? self.plugins.fbd.forwardTensor : self.parallelism.tensor)"
)
FORWARD_RANKS = (
    f"{FORWARD_TENSOR} * self.parallelism.context * "
    "(has(self.plugins.fbd.forwardPipeline) ? self.plugins.fbd.forwardPipeline : self.parallelism.pipeline)"
)
BOTH_RANKS = f"({FORWARD_RANKS} + {MODEL_RANKS})"
REPLICA_RANKS = f"(self.plugins.fbd.enabled ? {BOTH_RANKS} : {MODEL_RANKS})"
INPUT = "(!has(self.plugins.fbd.mode) || self.plugins.fbd.mode == 'Input')"
LAYERS = "(has(self.plugins.fbd.mode) && self.plugins.fbd.mode == 'Layers')"
LINEARS = "(has(self.plugins.fbd.mode) && self.plugins.fbd.mode == 'Linears')"
APART = "self.plugins.fbd.enabled && has(self.plugins.fbd.forwardNodeSelector) && "
APART += "size(self.plugins.fbd.forwardNodeSelector) > 0"
INJECTS = (
    "(has(self.plugins.faults.scenarioFrom) || (has(self.plugins.faults.scenario) && "
    "has(self.plugins.faults.scenario.faults) && size(self.plugins.faults.scenario.faults) > 0))"
)
ZERO_BUBBLE = "self.plugins.dpp.policy in ['ZbH1', 'ZbH2']"
PLACES_FOR_W = "self.plugins.dpp.policy in ['InterleavedZb', 'ZbH1', 'ZbH2']"


def _replicas(ranks: str) -> str:
    """That so many ranks are whole replicas, and as many as experts are spread over."""
    spread = f"{ranks} / {REPLICA_RANKS} * self.parallelism.context % self.parallelism.expert == 0"
    return f"{ranks} % {REPLICA_RANKS} == 0 && {spread}"


OBJECT_RULES = [
    (
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 54",
        "metadata.name: use lower-case letters, digits and '-', beginning with a letter, at most 54 characters: "
        "pods are called <name>-<attempt>-<index>",
    ),
    (
        f"!({APART.replace('self.', 'self.spec.')}) || size(self.metadata.name) <= 46",
        "metadata.name: use at most 46 characters with plugins.fbd.forwardNodeSelector: pods are called "
        "<name>-<attempt>-forward-<index>",
    ),
]

SPEC_RULES = [
    (
        f"self.plugins.fbd.enabled || {WORLD} % {MODEL_RANKS} == 0",
        "nodes x procPerNode must be a multiple of parallelism.tensor x pipeline x context",
    ),
    (
        f"self.plugins.fbd.enabled || self.parallelism.expert == 1 || {WORLD} % "
        "(self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.expert) == 0",
        "nodes x procPerNode must be a multiple of parallelism.tensor x pipeline x expert",
    ),
    (
        "self.parallelism.virtualPipeline == 1 || self.parallelism.pipeline > 1",
        "parallelism.virtualPipeline needs parallelism.pipeline of at least 2",
    ),
    (
        "!self.plugins.fbd.enabled || !(self.plugins.dpp.enabled || self.plugins.scope.enabled)",
        "plugins.fbd can't be used with plugins.dpp or scope: turn one of them off",
    ),
    (
        f"!self.plugins.fbd.enabled || self.parallelism.expert == 1 || {INPUT}",
        "plugins.fbd runs experts in mode Input alone: leave mode out, or parallelism.expert",
    ),
    (
        f"!self.plugins.fbd.enabled || {FORWARD_TENSOR} % self.parallelism.tensor == 0 || "
        f"self.parallelism.tensor % {FORWARD_TENSOR} == 0",
        "plugins.fbd.forwardTensor must divide parallelism.tensor, or be a multiple of it",
    ),
    (
        f"!self.plugins.fbd.enabled || {FORWARD_TENSOR} == self.parallelism.tensor || "
        f"(self.parallelism.expert == 1 && (self.parallelism.pipeline > 1 || {LAYERS}) && !{LINEARS})",
        "plugins.fbd needs as many forward as backward tensor ranks with experts and in mode Linears: leave "
        "forwardTensor and ignoreForwardTensorParallel out",
    ),
    (
        f"!self.plugins.fbd.enabled || self.parallelism.pipeline > 1 || !{INPUT}",
        "plugins.fbd needs parallelism.pipeline of at least 2, as the last stage runs its own forward, or mode "
        "Linears or Layers",
    ),
    (
        "!self.plugins.fbd.ignoreForwardTensorParallel || !has(self.plugins.fbd.forwardTensor) || "
        "self.plugins.fbd.forwardTensor == 1",
        "plugins.fbd: ignoreForwardTensorParallel means forwardTensor 1: give one of them",
    ),
    (
        f"!self.plugins.fbd.enabled || {WORLD} % {BOTH_RANKS} == 0",
        "plugins.fbd needs nodes x procPerNode to be a multiple of a replica's forward and backward ranks: "
        "(forwardTensor x forwardPipeline + tensor x pipeline) x context",
    ),
    (
        f"!self.plugins.fbd.enabled || self.parallelism.expert == 1 || {WORLD} / {BOTH_RANKS} * "
        "self.parallelism.context % self.parallelism.expert == 0",
        "plugins.fbd needs replicas x parallelism.context to be a multiple of parallelism.expert",
    ),
    (
        f"!({APART}) || {WORLD} / {BOTH_RANKS} * ({FORWARD_RANKS}) % self.procPerNode == 0",
        "plugins.fbd.forwardNodeSelector: the forward ranks of all replicas must be a multiple of procPerNode, as they "
        "get nodes of their own",
    ),
    (
        f"!({APART}) || (!has(self.elastic) && self.backend == 'Job' && "
        "(!has(self.scheduling.queue) || self.scheduling.queue == ''))",
        "plugins.fbd.forwardNodeSelector can't be used with elastic, backend JobSet or scheduling.queue: leave one of "
        "them out",
    ),
    (
        "!has(self.elastic) || (self.elastic.minNodes <= self.nodes && self.nodes <= self.elastic.maxNodes)",
        "nodes must lie between elastic.minNodes and elastic.maxNodes",
    ),
    (
        f"!has(self.elastic) || ({_replicas('self.elastic.minNodes * self.procPerNode')} && "
        f"(self.elastic.minNodes == self.elastic.maxNodes || {_replicas('self.procPerNode')}))",
        "elastic: every size from minNodes to maxNodes must be whole replicas, as many as experts are spread over; "
        "make procPerNode a multiple of their ranks, or minNodes equal to maxNodes",
    ),
    (
        "!self.plugins.dpp.enabled || self.parallelism.pipeline > 1",
        "plugins.dpp needs parallelism.pipeline of at least 2: it orders what stages do",
    ),
    (
        "!self.plugins.dpp.enabled || !has(self.plugins.dpp.cap) || "
        "self.plugins.dpp.cap >= self.parallelism.virtualPipeline",
        "plugins.dpp.cap must be at least parallelism.virtualPipeline, or a stage can stop for ever",
    ),
    (
        f"!self.plugins.dpp.enabled || !({ZERO_BUBBLE}) || self.parallelism.virtualPipeline == 1",
        "plugins.dpp.policy ZbH1 and ZbH2 take one chunk a stage: leave parallelism.virtualPipeline at 1",
    ),
    (
        f"!self.plugins.dpp.enabled || !({PLACES_FOR_W}) || self.plugins.dpp.split",
        "plugins.dpp.policy InterleavedZb, ZbH1 and ZbH2 put W off: leave split at true, or take another policy",
    ),
    (
        "!(self.plugins.dpp.enabled && self.plugins.dpp.transport == 'ucx') || has(self.rdma)",
        "plugins.dpp.transport ucx needs rdma: name the resource of the RDMA device plug-in",
    ),
    (
        "self.plugins.megatrace.ringMib in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]",
        "plugins.megatrace.ringMib must be a power of two, 1 to 512",
    ),
    (
        "!(has(self.plugins.faults.scenario) && has(self.plugins.faults.scenarioFrom))",
        "plugins.faults: give scenario or scenarioFrom, not both",
    ),
    (
        "!has(self.command) || size(self.command) == 0 || !(self.plugins.megatrace.enabled || "
        "(self.plugins.scope.enabled && !self.attach) || self.plugins.dpp.enabled || self.plugins.fbd.enabled || "
        f"{INJECTS})",
        "plugins.megatrace, scope, dpp, fbd and faults need the platform's own launcher: leave out command, or turn "
        "the plug-in off and give your command its flags in args",
    ),
    (
        "!self.attach || (has(self.command) && size(self.command) > 0 && has(self.image) && self.image != '')",
        "attach needs image and command: what is attached to is yours",
    ),
    (
        "!self.attach || self.plugins.scan.enabled",
        "attach is MegaScan: turn plugins.scan.enabled on, or leave attach out",
    ),
    (
        "self.mode != 'serve' || !has(self.command) || size(self.command) == 0",
        "mode serve needs the platform's own launcher: leave out command",
    ),
    (
        "self.mode != 'serve' || (self.plugins.scope.enabled && !self.plugins.megatrace.enabled && "
        f"!self.plugins.dpp.enabled && !self.plugins.fbd.enabled && !{INJECTS})",
        "mode serve needs plugins.scope.enabled, by which people ask, and no megatrace, dpp, fbd or faults",
    ),
    (
        f"self.mode != 'serve' || (!has(self.elastic) && {WORLD} == self.parallelism.tensor * "
        "self.parallelism.pipeline)",
        "mode serve runs one replica: nodes x procPerNode must be parallelism.tensor x pipeline, without context, "
        "expert and elastic",
    ),
    (
        "!has(self.env) || self.env.all(v, !v.name.matches("
        "'^(PET_|MASTER_|MEGATRONAPP_|TORCHELASTIC_)|^(RANK|WORLD_SIZE|(LOCAL|GROUP)_(RANK|WORLD_SIZE))$'))",
        "env: names that the platform sets (PET_*, MASTER_*, MEGATRONAPP_*, TORCHELASTIC_*, RANK, WORLD_SIZE, LOCAL_*, "
        "GROUP_*) can't be given",
    ),
    *(
        (
            f"!has(self.{keys}) || self.{keys}.all(k, !k.matches("
            "'^(megatronapp|batch[.]kubernetes)[.]io/|^(app[.]kubernetes[.]io/managed-by|job-name|controller-uid)$'))",
            f"{keys}: keys that the platform sets (megatronapp.io/, batch.kubernetes.io/, "
            "app.kubernetes.io/managed-by, job-name, controller-uid) can't be given",
        )
        for keys in ("labels", "annotations")
    ),
    (
        "!has(self.storage) || self.storage.all(a, self.storage.exists_one(b, a.mountPath == b.mountPath))",
        "storage: a mountPath is given twice",
    ),
]

TRANSITION_RULES = [
    ("self.mode == oldSelf.mode", "mode can't be changed; delete the job and create it again"),
    ("self.backend == oldSelf.backend", "backend can't be changed; delete the job and create it again"),
    ("self.managedBy == oldSelf.managedBy", "managedBy can't be changed; delete the job and create it again"),
    (
        "oldSelf.suspend || self.attach == oldSelf.attach",
        "attach can't be changed while the job runs: set suspend to true first",
    ),
    (
        "oldSelf.suspend || self.image == oldSelf.image",
        "image can't be changed while the job runs: set suspend to true first",
    ),
    (
        "oldSelf.suspend || (self.parallelism == oldSelf.parallelism && self.procPerNode == oldSelf.procPerNode)",
        "parallelism and procPerNode can't be changed while the job runs: set suspend to true first",
    ),
    (
        "oldSelf.suspend || has(self.elastic) || self.nodes == oldSelf.nodes",
        "nodes of a job that is not elastic can't be changed while it runs: set suspend to true first",
    ),
    (
        "oldSelf.suspend || self.plugins == oldSelf.plugins",
        "plugins can't be changed while the job runs: set suspend to true first (tracing can be changed on the page)",
    ),
]


def validations(rules: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]
