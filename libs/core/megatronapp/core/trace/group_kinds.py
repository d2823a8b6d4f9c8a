"""What kinds of process groups there are: one table for the recorder, which names them, and for the metrics, where each
has a series."""

from __future__ import annotations

from megatronapp.core.str_enum import StrEnum


class GroupKind(StrEnum):
    """Named after the axes of parallelism that a group spans, as megatron-core abbreviates them. `_gloo`: the same
    ranks' group on the CPU."""

    WORLD = "world"
    TP = "tp"
    PP = "pp"
    DP = "dp"
    DP_GLOO = "dp_gloo"
    DP_CP = "dp_cp"
    DP_CP_AG = "dp_cp_ag"
    DP_CP_GLOO = "dp_cp_gloo"
    INTRA_DP_CP = "intra_dp_cp"
    INTRA_DP_CP_GLOO = "intra_dp_cp_gloo"
    INTRA_DIST_OPT = "intra_dist_opt"
    CP = "cp"
    MP = "mp"
    EMBD = "embd"
    POS_EMBD = "pos_embd"
    TP_DP = "tp_dp"
    TP_DP_CP = "tp_dp_cp"
    TP_CP = "tp_cp"
    EP = "ep"
    EXPERT_TP = "expert_tp"
    EXPERT_TP_EP = "expert_tp_ep"
    EXPERT_TP_EP_PP = "expert_tp_ep_pp"
    EXPERT_DP = "expert_dp"
    EXPERT_DP_GLOO = "expert_dp_gloo"
    P2P = "p2p"
    """No group of its own: the messages between two ranks."""
