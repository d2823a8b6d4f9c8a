"""What published schedules reach, in closed form.

Sources: zero-bubble schedules, arXiv 2401.10241; controllable memory (V-Half, V-Min), arXiv 2405.15362; DualPipe, arXiv
2412.19437. Times in any one unit; T = F + B + W of one microbatch on all chunks of a stage.
"""

from __future__ import annotations


def one_f1b_cost(stages: int, microbatches: int, pass_time: float, latency: float) -> float:
    """Step time of 1F1B, with messages beside the passes."""
    p, m = stages, microbatches
    return (m + p - 1) * pass_time + (2 * (p - 1) * m / p + 2 * (p - 2)) * latency


def interleaved_cost(stages: int, chunks: int, microbatches: int, pass_time: float, latency: float) -> float:
    """Step time of interleaved 1F1B as published. megatron-core's order with pure latencies takes stages · latency
    more."""
    p, v = stages, chunks
    return microbatches * pass_time + (p - 1) * pass_time / v + (p * (2 * v - 1) - 2) * latency


def split_bound(stages: int, microbatches: int, forward: float, pass_time: float, latency: float) -> float:
    """Least step time with B split from W, equal stages and a barrier at the end: "ZB-2p global"."""
    return microbatches * pass_time + (stages - 1) * (forward + latency)


def v_half_memory(stages: int) -> int:
    """Activations that V-Half holds, in microbatches of a whole stage."""
    return (stages + 2) // 2


def v_min_memory(stages: int) -> int:
    """Activations that V-Min holds, in microbatches of a whole stage."""
    return (stages + 4) // 3


def dualpipe_bubble(stages: int, overlapped: float, backward: float, wgrad: float) -> float:
    """Idle time of DualPipe on so many devices, or of DualPipeV on half of them: (p/2 − 1)(F&B + B − 3W).

    Times of one chunk: `overlapped` of an F and a B that run as one, `backward` with W in it. DualPipeV has it where
    F, B without W, and W take the same; where they differ it needs less.
    """
    return (stages / 2 - 1) * (overlapped + backward - 3 * wgrad)
