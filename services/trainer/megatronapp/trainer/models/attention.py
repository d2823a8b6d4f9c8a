"""Attention for megatron-core's own layers, over torch's scaled_dot_product_attention: with ALiBi, T5's biases,
windows, masks of documents and sequences that are shared among ranks, none of which core's local attention can.

The fused kernel never holds scores and probabilities. Where somebody watches them, or dropout draws on them, they are
computed plainly, with core's own arithmetic and draws.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.models.attention_choice import has_own_attention


class Attention(MegatronModule):
    """A layer's `core_attention`. `fused`: False computes scores and probabilities always."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        alibi: bool = False,
        fused: bool = True,
    ) -> None:
        super().__init__(config=config)
        if config.apply_query_key_layer_scaling or config.softmax_type != "vanilla":
            raise UsageError("only --attention-backend local scales queries by layer or has another softmax")
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self._context = groups.cp
        self._causal = attn_mask_type == AttnMaskType.causal
        self._fused = fused
        self._scale = softmax_scale or 1 / math.sqrt(config.kv_channels)
        self._window = _window(config, layer_number)
        self._slopes = _rank_slopes(config.num_attention_heads, groups.tp) if alibi else None
        self.scale_mask_softmax = MaskedSoftmax()
        self.attention_dropout = torch.nn.Dropout(
            config.attention_dropout if attention_dropout is None else attention_dropout
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """Of [tokens, rows, heads, width], keys and values with heads or groups of them; [tokens, rows, heads x width].

        `attention_mask`: true where a key must not be seen, [rows or 1, 1, tokens, all tokens]; that no key of the
        future is seen needs none, over a filled cache neither. `attention_bias`: is added to scores, [1, heads, tokens,
        all tokens].
        """
        if packed_seq_params is not None:
            raise UsageError("documents of one row are told apart by --reset-attention-mask alone")
        queries, keys = self._positions(query.size(0), key.size(0), query.device)
        if self._context.size() > 1:
            key, value = (_gathered(tensor, self._context) for tensor in (key, value))
        plain_causal = self._causal and attention_mask is None and self._window is None and self._context.size() == 1
        bias = attention_bias if self._slopes is None else _alibi(self._slopes, queries, keys)
        plainly = self._is_plain()
        by_kernel = plain_causal and bias is None and len(queries) == len(keys) and not plainly  # which hides by itself
        hidden = None
        if not by_kernel and not (plain_causal and len(queries) == 1):  # the newest token sees all
            hidden = self._hidden(queries, keys, attention_mask)
        shared = query.size(2) // key.size(2)
        if shared > 1:
            key, value = (tensor.repeat_interleave(shared, dim=2) for tensor in (key, value))
        if plainly:
            context = self._computed_plainly(query, key, value, hidden, bias)
        else:
            context = _fused(query, key, value, self._scale, hidden, bias, causal=by_kernel)
        return context.permute(2, 0, 1, 3).flatten(2)

    def _is_plain(self) -> bool:
        module = self.scale_mask_softmax
        hooked = bool(module._forward_hooks or module._forward_pre_hooks)
        return not self._fused or hooked or self._drops

    @property
    def _drops(self) -> bool:
        return self.training and self.attention_dropout.p > 0

    def _positions(self, queries: int, keys: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Of this rank's queries and of all keys. The queries are the last ones of all, but where ranks share a
        sequence: each then has one piece of its first half and one of the second, as get_batch_on_this_cp_rank cuts."""
        size = self._context.size()
        if size == 1:
            every = torch.arange(keys, device=device)
            return every[keys - queries :] if self._causal else every[:queries], every
        pieces = torch.arange(keys * size, device=device).chunk(2 * size)
        of_rank = [torch.cat([pieces[rank], pieces[-1 - rank]]) for rank in range(size)]
        return of_rank[self._context.rank()], torch.cat(of_rank)

    def _hidden(self, queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
        """True where a key must not be seen, [rows or 1, 1, queries, keys]."""
        if mask is not None and self._context.size() > 1:
            mask = mask[..., keys]
        if not self._causal:
            return mask
        distance = queries[:, None] - keys
        hidden = (distance < 0)[None, None]
        if self._window is not None:
            hidden = hidden | (distance > self._window)
        return hidden if mask is None else hidden | mask

    def _computed_plainly(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        hidden: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """[rows, heads, tokens, width], as megatron-core's local attention computes and draws it."""
        rows, heads = query.size(1), query.size(2)
        queries, keys, values = (tensor.flatten(1, 2).transpose(0, 1) for tensor in (query, key, value))
        scores = torch.baddbmm(
            queries.new_empty(rows * heads, queries.size(1), keys.size(1)),
            queries,
            keys.transpose(1, 2),
            beta=0.0,
            alpha=self._scale,
        ).unflatten(0, (rows, heads))
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        probabilities = self.scale_mask_softmax(scores, hidden)
        if self._drops:
            # Under sequence parallelism the whole layer runs in the fork.
            with nullcontext() if self.config.sequence_parallel else get_cuda_rng_tracker().fork():
                probabilities = self.attention_dropout(probabilities)
        return torch.bmm(probabilities.flatten(0, 1), values).unflatten(0, (rows, heads))


def with_own_attention(spec: ModuleSpec, config: TrainerConfig) -> ModuleSpec:
    """A layer's spec with this attention in all places, where the flags ask for it."""
    if not has_own_attention(config):
        return spec
    model = config.model
    own = partial(Attention, alibi=model.position_embedding_type == "alibi", fused=model.attention_backend != "unfused")
    places = {
        name: _with_core(getattr(spec.submodules, name), own)
        for name in ("self_attention", "cross_attention")
        if isinstance(getattr(spec.submodules, name), ModuleSpec)
    }
    return replace(spec, submodules=replace(spec.submodules, **places))


def _with_core(spec: ModuleSpec, own: Any) -> ModuleSpec:
    return replace(spec, submodules=replace(spec.submodules, core_attention=own))


class MaskedSoftmax(torch.nn.Module):
    """Scores to probabilities, [rows, heads, queries, keys]: a module of its own, so that both can be watched."""

    def forward(self, scores: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
        wide = scores.float()
        if hidden is not None:
            wide = wide.masked_fill(hidden, torch.finfo(wide.dtype).min)
        return wide.softmax(-1).to(scores.dtype)


def alibi_slopes(heads: int) -> list[float]:
    """By how much a head's scores fall per position of distance (Press et al., 2022, arXiv:2108.12409): a geometric
    series for a power of two; for other numbers that of the next smaller one, and every other slope of the next larger.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes + alibi_slopes(2 * power)[::2][: heads - power] if heads > power else slopes


def _rank_slopes(heads: int, tensor: Any) -> torch.Tensor:
    part = heads // tensor.size()
    return torch.tensor(alibi_slopes(heads)[tensor.rank() * part :][:part])


def _alibi(slopes: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[1, heads, queries, keys]."""
    return slopes.to(queries.device)[:, None, None] * (keys - queries[:, None])[None, None]


def _window(config: TransformerConfig, layer_number: int) -> int | None:
    """How far back this layer's tokens see; None: all the way."""
    if not is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number):
        return None
    left = config.window_size[0]
    return None if left < 0 else left


def _gathered(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """All ranks' tokens in the order of ranks; in backward each rank gets the sum of what all found for its own."""
    gathered: torch.Tensor = gather_from_sequence_parallel_region(
        tensor.contiguous(), tensor_parallel_output_grad=True, group=group
    )
    return gathered


def _fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    hidden: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    causal: bool,
) -> torch.Tensor:
    """[rows, heads, tokens, width]."""
    if hidden is not None:
        hidden = hidden & ~hidden.all(-1, keepdim=True)  # padding that sees nothing would be no number
    mask = None if hidden is None else ~hidden
    if bias is not None:
        mask = bias.to(query.dtype) if hidden is None else bias.to(query.dtype).masked_fill(hidden, -math.inf)
    queries, keys, values = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal, scale=scale)
