"""What devices hold, in bytes. Buffers of collectives and of libraries come on top."""

from __future__ import annotations

from megatronapp.core.pipeline.caps import peak
from megatronapp.core.pipeline.disaggregation.cluster import VALUE_BYTES, Model, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.orders import interleaved
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.recompute import ON_THE_WAY, ahead_with, recompute_order


def training_bytes(model: Model, training: Training, *, recomputes: bool) -> float:
    """Of a device of the first stage, which holds most, under megatron-core's own schedule."""
    chunk_layers = model.layers / training.layout.parts
    held = peak(interleaved(training.layout, 0))
    activation = model.activation_bytes(training.tensor)
    if recomputes:
        return _trained(model, training) + held * chunk_layers * model.border_bytes + activation
    return _trained(model, training) + held * chunk_layers * activation


def backward_bytes(model: Model, training: Training, mapping: Mapping) -> float:
    """Of a backward device: what it has run again, which keeps what it was sent, what waits in other slots, and what
    all slots are received into."""
    layout = training.layout
    activation = model.layers / layout.parts * model.activation_bytes(training.tensor)
    if mapping.mode is Mode.LAYERS:
        taken = 2 * mapping.slots * layout.chunks * message_bytes(model, layout.parts, mapping)
        return _trained(model, training) + taken + model.activation_bytes(training.tensor)
    run_again = peak(recompute_order(layout, ahead=ahead_with(layout, mapping.slots)))
    waiting = max(0, mapping.slots * layout.chunks - run_again)
    message = message_bytes(model, layout.parts, mapping)
    received_into = mapping.slots * layout.chunks * message  # the engine's, from where it goes to the tensors
    return _trained(model, training) + run_again * activation + waiting * message + received_into


def forward_bytes(model: Model, training: Training, mapping: Mapping) -> float:
    """Of a forward device: weights, one layer's activations, and what is on its way."""
    partition = mapping.partition(model, training)
    parameters = partition.stage_layers[0] * model.layer_parameters + model.embedding_parameters
    fed = min(training.layout.parts, 1 + partition.stage_layers[0] // partition.part_layers)
    sent = fed * ON_THE_WAY * message_bytes(model, training.layout.parts, mapping)
    return VALUE_BYTES * parameters / mapping.tensor + model.activation_bytes(mapping.tensor) + sent


def message_bytes(model: Model, parts: int, mapping: Mapping) -> float:
    """What one tensor rank sends or takes of a microbatch for one part."""
    if mapping.mode is Mode.INPUT:
        return model.border_bytes
    if mapping.mode is Mode.LAYERS:
        return model.border_bytes * (1 + model.layers / parts)
    return model.border_bytes + model.layers / parts * model.linears_bytes(mapping.tensor)


def _trained(model: Model, training: Training) -> float:
    parameters = model.layers / training.layout.stages * model.layer_parameters + model.embedding_parameters
    return training.parameter_bytes * parameters / training.tensor
