"""The layers of Qwen3 on CUDA: matrix products by cuBLAS, everything between them fused.

Reads the weights out of a transformers model and computes what its layers compute, without calling
them, so nothing of that model or of transformers is patched. A forward is a fixed sequence of
launches on buffers that stay where they are: captured in a CUDA graph once for each number of
tokens, then replayed. Everything a forward depends on is read from device memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from scorer.cuda.attention import attend
from scorer.cuda.fused import add_rms_norm, norm_rotate, rms_norm, swiglu
from scorer.cuda.graphs import capturing
from scorer.cuda.tiles import TILE_FIELDS, Heads, tile_slots, tiles
from scorer.errors import ModelError
from scorer.shapes import FILLER_SEGMENT

if TYPE_CHECKING:
    from scorer.shapes import Layout

_STAGES: Final = 2
"""Pinned buffers of a shape: one is filled while the other may still be on its way."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The weights of one layer; queries, keys and values come of one product.

    Gate and up stay two: joined, their product was slower (docs/measurements.md).
    """

    before_attention: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor]
    out: torch.Tensor
    out_bias: torch.Tensor | None
    before_mlp: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class Forward:
    """Computes forwards of packed tokens with the weights of a transformers Qwen3 on one GPU.

    model: a ``Qwen3ForCausalLM`` on a CUDA device, bfloat16 or float16; its projections become
    views of joined weights, their values stay. positions: the most that a read can be long.

    Raises ModelError for a layer that isn't served.
    """

    def __init__(self, model: Any, *, positions: int) -> None:
        config = model.config
        self.device: torch.device = model.device
        if config.hidden_act != "silu":
            raise ModelError(
                f"hidden_act {config.hidden_act!r} is not served on CUDA, only 'silu' is; use "
                "--device cpu"
            )
        self.heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self._epsilon = float(config.rms_norm_eps)
        self._scale = float(config.head_dim) ** -0.5
        self._embedding: torch.Tensor = model.model.embed_tokens.weight.detach()
        self._last_norm: torch.Tensor = model.model.norm.weight.detach()
        self._layers = [_read_layer(layer) for layer in model.model.layers]
        self._turns = _turns(model.model.rotary_emb, max(positions, FILLER_SEGMENT), self.heads)
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._recording = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def run(self, layout: Layout, *, segments: int, graph: bool) -> torch.Tensor:
        """Start one forward on torch's current stream; return states that ``finish`` takes.

        They end with the last layer's attention, the last place where a row sees others: what it
        gave and the residual, ``[T, query heads × head size + n]``. What follows is computed only
        of the rows that are asked for.

        segments: the most that a layout of this many tokens can have. graph: replay a captured
        graph; the result is then overwritten by the next forward, of however many tokens.
        """
        tokens = len(layout.input_ids)
        slots = tile_slots(tokens, segments, self.heads)
        words = np.concatenate(
            [
                layout.input_ids,
                layout.position_ids,
                tiles(layout.segments, slots, self.heads).reshape(-1),
            ]
        )
        if not graph:
            return self._launch(torch.from_numpy(words).to(self.device), tokens)
        shape = self._shapes.get((tokens, slots))
        if shape is None:
            shape = self._shapes[tokens, slots] = _Shape(len(words), self.device)
        shape.stage(words)
        if shape.graph is None:
            self._capture(shape, tokens)
        assert shape.graph is not None
        shape.graph.replay()
        return shape.states

    @torch.inference_mode()
    def finish(self, states: torch.Tensor) -> torch.Tensor:
        """Return ``[R, n]`` after the last norm, of R rows of what ``run`` returned.

        The products see R rows: the bits of a row are its own where R is always the same.
        """
        sizes = [self.heads.query * self.heads.size, states.shape[1]]
        sizes[1] -= sizes[0]
        # Copies: the residual is added to in place, and of one row a part would be a view.
        attended, residual = (part.clone() for part in torch.split(states, sizes, dim=1))
        return self._end_layer(self._layers[-1], attended, residual, self._last_norm)

    def activation_bytes(self, tokens: int) -> int:
        """Return about how much memory a forward takes beside the weights, at its peak."""
        layer = self._layers[0]
        columns = 3 * self._embedding.shape[1] + 2 * layer.down.shape[1]
        return tokens * columns * self._embedding.element_size()

    def _capture(self, shape: _Shape, tokens: int) -> None:
        """Record the launches of a forward. They run once before: what is compiled, is then."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            self._launch(shape.words, tokens)
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._recording, self._pool):
            shape.states = self._launch(shape.words, tokens)
        shape.graph = graph

    def _launch(self, words: torch.Tensor, tokens: int) -> torch.Tensor:
        ids, positions = words[:tokens], words[tokens : 2 * tokens]
        tile_table = words[2 * tokens :].view(-1, TILE_FIELDS)
        heads, epsilon = self.heads, self._epsilon
        residual = functional.embedding(ids, self._embedding)
        x = torch.empty_like(residual)
        rms_norm(residual, self._layers[0].before_attention, epsilon, x)
        attended = x.new_empty(tokens, heads.query * heads.size)
        for layer, following in zip(self._layers, [*self._layers[1:], None], strict=True):
            qkv = functional.linear(x, layer.qkv, layer.qkv_bias)
            norm_rotate(
                qkv, layer.head_norms, epsilon, positions, self._turns, (heads.query, heads.key)
            )
            attend(qkv, tile_table, heads, self._scale, attended)
            del qkv
            if following is not None:
                x = self._end_layer(layer, attended, residual, following.before_attention)
        return torch.cat([attended, residual], dim=1)

    def _end_layer(
        self,
        layer: _Layer,
        attended: torch.Tensor,
        residual: torch.Tensor,
        next_norm: torch.Tensor,
    ) -> torch.Tensor:
        """Compute what follows attention, row by row, up to and with the norm of the next layer."""
        x = functional.linear(attended, layer.out, layer.out_bias)
        add_rms_norm(x, residual, layer.before_mlp, self._epsilon, x)
        gate, up = functional.linear(x, layer.gate), functional.linear(x, layer.up)
        swiglu(gate, up, gate)
        x = functional.linear(gate, layer.down)
        add_rms_norm(x, residual, next_norm, self._epsilon, x)
        return x


class _Shape:
    """The buffers and the graph of forwards of one size. Inputs are int32 words."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.words = torch.empty(size, dtype=torch.int32, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.states = torch.empty(0, device=device)
        self._pinned = [
            torch.empty(size, dtype=torch.int32, pin_memory=True) for _ in range(_STAGES)
        ]
        self._copied = [
            torch.cuda.Event()  # type: ignore[no-untyped-call]
            for _ in range(_STAGES)
        ]
        self._next = 0

    def stage(self, words: npt.NDArray[np.int32]) -> None:
        """Send a forward's inputs behind whatever the stream still has to do."""
        place = self._next
        self._next = (place + 1) % _STAGES
        self._copied[place].synchronize()
        self._pinned[place].numpy()[:] = words
        self.words.copy_(self._pinned[place], non_blocking=True)
        self._copied[place].record(torch.cuda.current_stream(self.words.device))


def _read_layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = _join([attention.q_proj, attention.k_proj, attention.v_proj])
    torch.cuda.empty_cache()  # what was joined is there twice until then
    return _Layer(
        before_attention=layer.input_layernorm.weight.detach(),
        qkv=qkv,
        qkv_bias=qkv_bias,
        head_norms=(attention.q_norm.weight.detach(), attention.k_norm.weight.detach()),
        out=attention.o_proj.weight.detach(),
        out_bias=_bias(attention.o_proj),
        before_mlp=layer.post_attention_layernorm.weight.detach(),
        gate=mlp.gate_proj.weight.detach(),
        up=mlp.up_proj.weight.detach(),
        down=mlp.down_proj.weight.detach(),
    )


def _join(linears: Sequence[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Put the weights of several layers end to end and make them views of the whole."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [bias for linear in linears if (bias := _bias(linear)) is not None]
    start = 0
    for linear in linears:
        end = start + linear.weight.shape[0]
        linear.weight.data = weight[start:end]
        start = end
    return weight, torch.cat(biases) if biases else None


def _bias(linear: Any) -> torch.Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


def _turns(rotary: Any, positions: int, heads: Heads) -> torch.Tensor:
    """Return float32 ``[positions, d]``: cosines, then sines, of each position's d/2 angles.

    As transformers' module gives them, but of products of its frequencies that no setting makes
    less exact. Raises ModelError for frequencies that are not those of whole heads.
    """
    frequencies: torch.Tensor = rotary.inv_freq.to(torch.float32)
    if 2 * len(frequencies) != heads.size:
        raise ModelError(
            f"rotation of {2 * len(frequencies)} of {heads.size} elements of a head is not served"
        )
    at = torch.arange(positions, dtype=torch.float32, device=frequencies.device)
    angles = at[:, None] * frequencies
    turns = torch.cat([angles.cos(), angles.sin()], dim=1)
    return turns * float(rotary.attention_scaling)
