"""Load a Qwen3 checkpoint and run it in packed forwards of a fixed shape.

transformers loads the weights. On the CPU it runs the layers too, with an attention over segments
that is registered under a name of its own and an activation that knows no places; on CUDA
``Forward`` runs them. A plain transformers model in the same process is untouched by either. The
lm_head gives float32 logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from scorer.checkpoint import Checkpoint
from scorer.cuda import tiles
from scorer.cuda.device import MINIMUM_CAPABILITY
from scorer.errors import DeviceError, ModelError, UsageError
from scorer.pieces import InPieces
from scorer.processor import cpu_flags
from scorer.shapes import BatchShape, Layout, max_segments

if TYPE_CHECKING:
    from scorer.cuda.forward import Forward

ATTENTION = "scorer_packed"
DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "bfloat16", "float16", "float32"]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: Sequence[int],
    scale: float,
) -> torch.Tensor:
    """Causal attention, one call a segment: ``[1, heads, T, d]`` to ``[1, T, heads, d]``."""
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            is_causal=True,
            scale=scale,
            enable_gqa=True,
        )
        for start, end in pairwise(offsets)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2)


def _packed_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    scaling: float,
    offsets: Sequence[int],
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The attention that transformers calls by the name ``scorer_packed``, on the CPU."""
    return _attend(query, key, value, offsets, scaling), None


class Qwen3:
    """A loaded checkpoint that computes packed forwards and float32 logits.

    Owns the weights; changes nothing outside its own instance but for the registered attention.
    attention: what computes it.
    """

    def __init__(
        self, model: Any, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        with _fitting(model, device, dtype):
            self._model = model.to(device).eval()
        weight: torch.Tensor = self._model.lm_head.weight.detach()
        self.attention = "sdpa by segment"
        self._forward: Forward | None = None
        # On CPU a bfloat16 product would round the logits to bfloat16; CUDA can keep float32.
        self._head = weight
        if device.type == "cpu":
            self._head = weight.to(torch.float32)
            for layer in self._model.model.layers:
                layer.mlp.act_fn = InPieces(layer.mlp.act_fn)
        else:
            self.attention = tiles.NAME
            with _fitting(model, device, dtype):
                self._forward = _forward_of(self._model, checkpoint)

    @property
    def shares(self) -> bool:
        """Whether reads of one record can share their prefix; SDPA's bits depend on lengths."""
        return self._forward is not None

    @property
    def rotation_sha256(self) -> str:
        """Hex SHA-256 over the rotation's frequencies, which the CPU computes for any device."""
        rotary = self._model.model.rotary_emb
        scaling = float(rotary.attention_scaling)
        frequencies = rotary.inv_freq.to("cpu", torch.float32).numpy()
        return hashlib.sha256(frequencies.tobytes() + scaling.hex().encode()).hexdigest()

    @classmethod
    def load(cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Qwen3:
        """Load a checkpoint's weights. Raises ModelError, DeviceError."""
        loaded = cls(_load(checkpoint, dtype), checkpoint, device, dtype)
        loaded.check_finite()
        return loaded

    @torch.inference_mode()
    def check_finite(self) -> None:
        """Look at every weight, on the device. Raises ModelError for NaN and infinite ones."""
        named = self._model.named_parameters()
        with _fitting(self._model, self.device, self.dtype):
            bad = [name for name, weight in named if not bool(weight.isfinite().all())]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise ModelError(
                f"{self.checkpoint.path}: {bad[0]}{more} holds NaN or infinite weights in "
                f"{self.dtype}; fetch the checkpoint again, or use another --dtype"
            )

    @classmethod
    def random(
        cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, *, seed: int
    ) -> Qwen3:
        """Draw weights for a checkpoint's config, on the device: for timing, without meaning."""
        return cls(_draw(checkpoint, device, dtype, seed), checkpoint, device, dtype)

    @torch.inference_mode()
    def hidden_states(self, layout: Layout, *, rows: int, graph: bool = True) -> torch.Tensor:
        """Run one forward of T packed tokens; on CUDA, start it.

        layout: shares nothing where ``shares`` is false. rows: R, which with T bounds the number of
        segments. graph: on CUDA, replay the graph of forwards of as many tokens; else launch one by
        one, the bits are the same. Returns ``[T, width]`` in the model's dtype, rows to be given to
        ``logits``: the hidden states after the final norm; on CUDA what they are computed from,
        see ``Forward.run``, and from a graph, it holds until the next forward.
        """
        if self._forward is not None:
            most = max_segments(len(layout.input_ids), rows)
            return self._forward.run(layout, segments=most, graph=graph)
        output = self._model.model(
            input_ids=torch.from_numpy(layout.input_ids.astype(np.int64))[None],
            position_ids=torch.from_numpy(layout.position_ids.astype(np.int64))[None],
            # Offsets carry the mask; a dict keeps transformers from building one of [T, T].
            attention_mask={"full_attention": None},
            use_cache=False,
            offsets=layout.offsets,
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def forward_bytes(self, tokens: int, rows: int) -> int:
        """Return about what a forward takes on the device beside the weights, lm_head included."""
        activations = 0 if self._forward is None else self._forward.activation_bytes(tokens)
        return activations + 2 * 4 * rows * self.checkpoint.vocab_size  # two batches' logits

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return float32 ``[R, vocab]`` from R rows of ``hidden_states``.

        R must be the shape's rows always. out: on CUDA, where to write them; it is returned.
        """
        if self._forward is not None:
            hidden = self._forward.finish(hidden)
            return torch.mm(hidden, self._head.t(), out_dtype=torch.float32, out=out)
        return torch.mm(hidden.to(torch.float32), self._head.t())

    def plain(self) -> Any:
        """Return a transformers model as it comes, over the same weights.

        Its own modules and configuration, nothing of ours in it; the tensors are shared, so it
        takes no memory of its own. For what is compared with: chat turns, padded batches.
        """
        from transformers import Qwen3Config, Qwen3ForCausalLM
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

        config = Qwen3Config(**self.checkpoint.config)
        with torch.device("meta"):
            plain = Qwen3ForCausalLM._from_config(
                config, dtype=self.dtype, attn_implementation="sdpa"
            )
        plain.load_state_dict(self._model.state_dict(), assign=True)
        # Frequencies are no weights: on the meta device they were never computed.
        plain.model.rotary_emb = Qwen3RotaryEmbedding(plain.config).to(self.device)
        return plain.eval()


def _forward_of(model: Any, checkpoint: Checkpoint) -> Forward:
    capability = torch.cuda.get_device_capability(model.device)
    if capability < MINIMUM_CAPABILITY:
        raise DeviceError(
            f"{torch.cuda.get_device_name(model.device)} has compute capability "
            f"{capability[0]}.{capability[1]}, the kernels need {MINIMUM_CAPABILITY[0]}."
            f"{MINIMUM_CAPABILITY[1]}; use --device cpu"
        )
    try:
        from scorer.cuda.forward import Forward
    except ImportError as error:
        raise DeviceError(
            f"CUDA needs Triton, which comes with PyTorch's CUDA builds on Linux ({error}): "
            "install it, or use --device cpu"
        ) from error
    return Forward(model, positions=checkpoint.max_tokens)


def choose_device(name: DeviceName) -> torch.device:
    """Resolve ``auto`` to CUDA when there is a device, else the CPU. Raises UsageError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no CUDA device; use --device cpu")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def choose_shape(device: torch.device, tokens: int | None, rows: int | None) -> BatchShape:
    """Resolve T and R: None is the device's default; measured, see docs/measurements.md.

    Raises UsageError for numbers that are no shape.
    """
    default = BatchShape(8192, 256) if device.type == "cuda" else BatchShape(512, 16)
    return BatchShape(
        default.tokens if tokens is None else tokens, default.rows if rows is None else rows
    )


def choose_dtype(name: DtypeName, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """Resolve ``auto``: the checkpoint's own 16-bit type on CUDA; on the CPU float32, but bfloat16
    for a checkpoint of bfloat16 where the CPU multiplies its matrices in hardware.

    Raises UsageError for a dtype that the device's path doesn't serve.
    """
    stored = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    if name == "auto":
        if device.type == "cuda":
            name = "float16" if stored == "float16" else "bfloat16"
        else:
            # Of CPUs that only have its vector instructions (AVX-512), float32 is the faster type.
            fast = stored == "bfloat16" and "amx_bf16" in cpu_flags()
            name = "bfloat16" if fast else "float32"
    if device.type == "cuda" and name == "float32":
        raise UsageError(
            "--dtype float32 is not served on CUDA: the attention there takes bfloat16 and float16 "
            "only; use --dtype bfloat16 or --device cpu"
        )
    if device.type == "cpu" and name == "float16":
        raise UsageError("--dtype float16 is served on CUDA only; use float32 or bfloat16")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _load(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AttentionInterface, Qwen3ForCausalLM
    from transformers.utils import logging

    AttentionInterface.register(ATTENTION, _packed_attention)
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what it would warn of is checked below and refused
    try:
        model, report = Qwen3ForCausalLM.from_pretrained(
            checkpoint.path,
            dtype=dtype,
            attn_implementation=ATTENTION,
            use_safetensors=True,
            use_kernels=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # listed in the report, and refused below
            output_loading_info=True,
        )
    except (
        OSError,
        ValueError,
        RuntimeError,
        SafetensorError,
        StrictDataclassError,  # a value in config.json of a wrong type
        KeyError,  # one that names nothing, or one that is missing
        TypeError,
    ) as error:
        raise ModelError(
            f"{checkpoint.path}: can't be loaded ({type(error).__name__}: {error}); "
            "fetch the checkpoint again"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys", "error_msgs"):
        if found := report.get(problem):
            names = ", ".join(sorted(str(item) for item in found)[:5])
            raise ModelError(
                f"{checkpoint.path}: the weights don't fit config.json "
                f"({problem.replace('_', ' ')}: {names}); fetch the checkpoint again"
            )
    tied = checkpoint.config.get("tie_word_embeddings")
    if tied and model.lm_head.weight is not model.model.embed_tokens.weight:
        raise ModelError(
            f"{checkpoint.path}: config.json ties lm_head.weight to the embedding, but the weights "
            "hold two that differ; set tie_word_embeddings to false if the head is meant"
        )
    return model


def _draw(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, seed: int) -> Any:
    from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

    AttentionInterface.register(ATTENTION, _packed_attention)
    config = Qwen3Config(**checkpoint.config)
    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen3ForCausalLM._from_config(config, attn_implementation=ATTENTION)
    finally:
        torch.set_default_dtype(default)


@contextmanager
def _fitting(model: Any, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Turn a lack of memory for a model's weights into DeviceError."""
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    except torch.OutOfMemoryError as error:
        size = sum(parameter.nbytes for parameter in model.parameters())
        raise DeviceError(
            f"the weights ({size / 2**30:.1f} GiB in {dtype}) don't fit on {device} with what is "
            "made of them; use a smaller model or --device cpu"
        ) from error
