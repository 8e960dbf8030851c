"""The forward on CUDA: attention, what is fused, graphs; against float64 and bit against bit."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scorer.asks import Ask
from scorer.checkpoint import find_checkpoint
from scorer.cuda.tiles import Heads, tile_slots, tiles
from scorer.errors import DeviceError, ModelError
from scorer.model import Qwen3
from scorer.packing import Packer
from scorer.reader import InFlight, Reader
from scorer.reduction import Reduced, RowRequests
from scorer.shapes import Batch, BatchShape, IntArray, Read, last_read, max_segments
from scorer.tables import ReadResult
from tests.attention_reference import attend_reference
from tests.conftest import DEMO_MODEL
from tests.models import write_model
from tests.random_model import write_random_checkpoint

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)

HEADS = {
    "4B": Heads(32, 8, 128),
    "0.6B": Heads(16, 8, 128),
    "14B": Heads(40, 8, 128),
    "32B": Heads(64, 8, 128),
    "demo": Heads(4, 2, 64),
    "three": Heads(3, 1, 32),
    "one each": Heads(4, 4, 128),
    "sixteen": Heads(16, 1, 64),
}
PREFIXES = (1, 63, 64, 65, 127, 128, 129, 255, 257, 1000)
OWN = (1, 17, 48, 64, 130)


def apart(lengths: Sequence[int]) -> IntArray:
    """Segments end to end that share nothing."""
    starts = np.cumsum([0, *lengths[:-1]])
    nothing = np.zeros(len(lengths), dtype=np.int64)
    return np.stack([starts, lengths, nothing, nothing], axis=1).astype(np.int32)


def attended(qkv: torch.Tensor, segments: IntArray, heads: Heads, spare: int = 7) -> torch.Tensor:
    """Run the kernel, into memory that held NaN; spare: slots that stay empty."""
    from scorer.cuda.attention import attend

    tokens = len(qkv)
    slots = tile_slots(tokens, len(segments) + spare, heads)
    table = torch.from_numpy(tiles(segments, slots, heads)).to(CUDA)
    out = qkv.new_full((tokens, heads.query * heads.size), float("nan"))
    attend(qkv, table, heads, heads.size**-0.5, out)
    return out.view(tokens, heads.query, heads.size)


def random_qkv(tokens: int, heads: Heads, seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(CUDA).manual_seed(seed)
    shape = (tokens, heads.columns)
    return torch.randn(shape, generator=generator, device=CUDA).mul_(1.5).to(dtype)


def split(qkv: torch.Tensor, heads: Heads) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sizes = [heads.query * heads.size, heads.key * heads.size, heads.key * heads.size]
    parts = torch.split(qkv, sizes, dim=1)
    q, k, v = (part.view(len(qkv), -1, heads.size) for part in parts)
    return q, k, v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_attention_is_as_near_to_float64_as_flash_attention(name: str, dtype: torch.dtype) -> None:
    from torch.nn.attention.varlen import varlen_attn

    heads = HEADS[name]
    segments = apart([60, 170, 1, 2, 17, 63, 64, 65, 129, 513, 300, 1100])
    tokens = int(segments[-1, 0] + segments[-1, 1])
    qkv = random_qkv(tokens, heads, 1, dtype)
    q, k, v = split(qkv, heads)
    exact = attend_reference(q.double(), k.double(), v.double(), segments, heads.size**-0.5)
    offsets = torch.tensor([*segments[:, 0], tokens], dtype=torch.int32, device=CUDA)
    flash = varlen_attn(
        q, k, v, offsets, offsets, tokens, tokens, scale=heads.size**-0.5, window_size=(-1, 0)
    )
    assert isinstance(flash, torch.Tensor)

    def far(out: torch.Tensor) -> float:
        return float((out.double() - exact).norm() / exact.norm())

    ours = far(attended(qkv, segments, heads))
    assert ours < {torch.bfloat16: 3e-3, torch.float16: 4e-4}[dtype]
    assert ours <= 1.01 * far(flash)


@pytest.mark.parametrize("name", HEADS)
def test_attention_over_a_shared_prefix_is_near_to_float64(name: str) -> None:
    heads = HEADS[name]
    segments = np.array(
        [[0, 64, 0, 0], [64, 130, 0, 64], [194, 1, 0, 64], [195, 700, 0, 0], [895, 90, 195, 700]],
        dtype=np.int32,
    )
    qkv = random_qkv(985, heads, 2, torch.bfloat16)
    q, k, v = (part.double() for part in split(qkv, heads))
    exact = attend_reference(q, k, v, segments, heads.size**-0.5)
    error = attended(qkv, segments, heads).double() - exact
    assert float(error.norm() / exact.norm()) < 3e-3


@pytest.mark.parametrize("name", HEADS)
def test_a_shared_prefix_moves_no_bit_of_attention(name: str) -> None:
    """Every row of prefix and of three reads behind it, against each read laid out whole."""
    heads = HEADS[name]
    compared = 0
    for prefix, own in itertools.product(PREFIXES, OWN):
        first = 1 + own % 20  # the record does not begin the forward
        rows = random_qkv(first + prefix + 3 * own, heads, prefix * own, torch.bfloat16)
        starts = [first + prefix + place * own for place in range(3)]
        segments = [(0, first, 0, 0), (first, prefix, 0, 0)]
        segments += [(start, own, first, prefix) for start in starts]
        together = attended(rows, np.array(segments, dtype=np.int32), heads)
        before = random_qkv(37, heads, own, torch.bfloat16)
        for start in starts:
            shared = rows[first : first + prefix]
            whole = torch.cat([before, shared, rows[start : start + own]])
            alone = attended(whole, apart([37, prefix + own]), heads, spare=own % 5)
            assert torch.equal(alone[37 : 37 + prefix], together[first : first + prefix])
            assert torch.equal(alone[37 + prefix :], together[start : start + own])
            compared += alone[37:].numel()
    assert compared > 1_000_000


def test_what_is_not_a_number_stays_in_its_own_segment() -> None:
    heads = HEADS["4B"]
    lengths = [70, 33, 129]
    qkv = random_qkv(sum(lengths), heads, 3, torch.bfloat16)
    clean = attended(qkv, apart(lengths), heads)
    qkv[70:103] = float("nan")
    dirty = attended(qkv, apart(lengths), heads)
    assert torch.equal(clean[:70], dirty[:70])
    assert torch.equal(clean[103:], dirty[103:])
    assert bool(dirty[70:103].isnan().all())


# -- what is fused


def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * weight.double()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(CUDA).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=CUDA).bfloat16()


def close_to(out: torch.Tensor, exact: torch.Tensor) -> None:
    """One rounding to bfloat16, 2⁻⁸ relative at most, and what float32 adds to it."""
    assert not bool(out.isnan().any())
    excess = (out.double() - exact).abs() - exact.abs() * 2.0**-8
    assert float(excess.max()) < 1e-5


@pytest.mark.parametrize("size", [96, 1024, 2560, 5120])
def test_norms(size: int) -> None:
    from scorer.cuda.fused import add_rms_norm, rms_norm

    x, residual, weight = random(77, size), random(77, size, seed=1), random(size, seed=2)
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-6, out)
    close_to(out, normalised(x, weight))

    total = (x.float() + residual.float()).bfloat16()
    add_rms_norm(x, residual, weight, 1e-6, x)  # in place
    assert torch.equal(residual, total)
    close_to(x, normalised(total, weight))


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_normalised_and_rotated(name: str) -> None:
    from scorer.cuda.fused import norm_rotate

    heads = HEADS[name]
    qkv, weights = (
        random(90, heads.columns),
        (random(heads.size, seed=1), random(heads.size, seed=2)),
    )
    positions = torch.arange(90, dtype=torch.int32, device=CUDA).flip(0).contiguous()
    angles = torch.rand(200, heads.size // 2, device=CUDA) * 6
    turns = torch.cat([angles.cos(), angles.sin()], dim=1).contiguous()
    q, k, v = (part.clone() for part in split(qkv, heads))
    norm_rotate(qkv, weights, 1e-6, positions, turns, (heads.query, heads.key))
    got_q, got_k, got_v = split(qkv, heads)
    assert torch.equal(got_v, v)
    cosines, sines = turns[positions.long()].double()[:, None].chunk(2, dim=-1)
    for before, after, weight in ((q, got_q, weights[0]), (k, got_k, weights[1])):
        low, high = normalised(before, weight).chunk(2, dim=-1)
        exact = torch.cat([low * cosines - high * sines, high * cosines + low * sines], dim=-1)
        close_to(after, exact)


def test_swiglu() -> None:
    from scorer.cuda.fused import swiglu

    gate, up = random(33, 9728).mul_(6), random(33, 9728, seed=1)
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    swiglu(gate, up, gate)  # in place
    close_to(gate, exact)


# -- the whole


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_random_checkpoint(folder, DEMO_MODEL, shape="0.6B", vocab_size=5000)
    return folder


def load(folder: Path) -> Qwen3:
    return Qwen3.load(find_checkpoint(str(folder)), CUDA, torch.bfloat16)


def batch_of(lengths: Sequence[int], tokens: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    reads = [last_read(rng.integers(0, 5000, size=n, dtype=np.int32)) for n in lengths]
    return Batch.apart(reads, tokens)


def test_a_graph_gives_the_bits_of_eager_launches(checkpoint: Path) -> None:
    model = load(checkpoint)
    for seed, lengths in enumerate(([60, 170, 513], [2, 900], [33] * 20, [2048])):
        layout = batch_of(lengths, 2048, seed).layout()
        replayed = model.hidden_states(layout, rows=32).clone()
        assert torch.equal(replayed, model.hidden_states(layout, rows=32, graph=False))


def test_forwards_of_other_sizes_share_the_memory_of_their_graphs(checkpoint: Path) -> None:
    model = load(checkpoint)
    small, large = batch_of([60, 170], 512, 1).layout(), batch_of([1500], 2048, 2).layout()
    first = model.hidden_states(small, rows=32).clone()
    long = model.hidden_states(large, rows=32).clone()
    assert torch.equal(model.hidden_states(small, rows=32), first)
    assert torch.equal(model.hidden_states(large, rows=32), long)


def plain_logits(model: Any) -> torch.Tensor:
    ids = torch.arange(40, device=CUDA)[None]
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.clone()


def test_a_plain_model_is_bitwise_what_it_is_without_us(checkpoint: Path) -> None:
    from transformers import Qwen3ForCausalLM

    def fresh() -> Any:
        return Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).to(CUDA).eval()

    before = plain_logits(fresh())
    model = load(checkpoint)
    model.hidden_states(batch_of([60, 170], 512, 1).layout(), rows=32)
    assert torch.equal(plain_logits(fresh()), before)
    assert torch.equal(plain_logits(model.plain()), before)  # over weights that were joined


def test_joined_weights_take_no_memory_twice(checkpoint: Path) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.memory_allocated()
    model = load(checkpoint)
    taken = torch.cuda.memory_allocated() - free
    weights = sum(weight.nbytes for weight in model.plain().parameters())
    table = 4 * model.checkpoint.max_tokens * 128
    assert weights <= taken < 1.05 * weights + table


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not served on CUDA"),
        ({"head_dim": 80}, "head_dim must be 32, 64 or 128 on CUDA, got 80"),
    ],
)
def test_layers_that_are_not_served_are_named(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(write_model(tmp_path / "model", **config))


def test_biases_are_added(tmp_path: Path) -> None:
    """Qwen3 allows them, though no published checkpoint has any."""
    folder = write_model(tmp_path / "model", attention_bias=True)
    weights = load_file(folder / "model.safetensors")
    biases = [name for name in weights if name.endswith("bias")]
    assert len(biases) == 2 * 4
    for name in biases:
        weights[name] = torch.randn_like(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = load(folder)
    plain = model.plain()
    read = np.arange(90, dtype=np.int32)
    layout = Batch.apart([last_read(read)], 128).layout()
    with torch.inference_mode():
        ids = torch.from_numpy(read.astype(np.int64)).to(CUDA)[None]
        expected = plain.model(input_ids=ids, use_cache=False).last_hidden_state[0].double()
    assert model._forward is not None
    got = model._forward.finish(model.hidden_states(layout, rows=8)[:90]).double()
    assert float((got - expected).norm() / expected.norm()) < 2e-2


def test_scores_that_are_left_or_mixed_meet_no_others(checkpoint: Path) -> None:
    """Batches that are launched and never asked for again, and those of two calls in turn."""
    from scorer.rows import encode_score
    from scorer.scoring import Scorer

    scorer = Scorer(checkpoint, device="cuda", tokens_per_forward=256, rows_per_forward=8)
    rng = np.random.default_rng(7)
    records = [
        {"prompt_token_ids": rng.integers(0, 4000, size=n).tolist(), "targets": [5, 17]}
        for n in rng.integers(1, 90, size=400)
    ]
    others = [{**record, "logprobs": 3} for record in records[::-1]]
    whole = [encode_score(row) for row in scorer.score(records)]
    backwards = [encode_score(row) for row in scorer.score(others)]
    assert len(set(whole)) == len(records)

    left = scorer.score(records)
    assert encode_score(next(left)) == whole[0]
    left.close()  # type: ignore[attr-defined]
    assert [encode_score(row) for row in scorer.score(records)] == whole
    both = list(zip(scorer.score(records), scorer.score(others), strict=True))
    assert [encode_score(row) for row, _ in both] == whole
    assert [encode_score(row) for _, row in both] == backwards


def reader_of(model: Qwen3, *, share: bool = False, graphs: bool = True) -> Reader:
    return Reader(
        model,
        BatchShape(512, 32),
        alone=False,
        n_ids=5000,
        numerics={},
        cache=None,
        reduction="device",
        share=share,
        graphs=graphs,
    )


def test_more_batches_in_flight_than_planned_keep_their_own_results(checkpoint: Path) -> None:
    model = load(checkpoint)
    reader = reader_of(model)
    rng = np.random.default_rng(5)

    def asking(length: int, rows: int, targets: int, k: int) -> Read:
        """A read that asks at its last ``rows`` places."""
        ids = rng.integers(0, 5000, size=(rows, targets)).tolist()
        return Read(
            rng.integers(0, 5000, size=length, dtype=np.int32),
            np.arange(length - rows, length, dtype=np.int32),
            RowRequests.of(ids, [k] * rows),
        )

    batches = [
        batch_of([60, 170, 33], 512, 1),
        Batch.apart([asking(60, 1, 2, 20), asking(200, 1, 3000, 0)], 512),  # outgrows buffers
        batch_of([60, 170, 33], 512, 2),
        Batch.apart([asking(400, 100, 3, 5)], 512),  # several pieces
        Batch.apart([asking(800, 2, 1, 2)], 1024),  # another rung
        Batch.apart([asking(90, 1, 1, 3000), asking(90, 1, 1, 4)], 512),  # one row on the host
        batch_of([60, 170, 33], 512, 3),
        Batch.apart([asking(300, 70, 40, 300)], 512),
    ]

    def tables(flight: InFlight) -> list[list[bytes]]:
        names = [field.name for field in fields(Reduced)]
        return [
            [getattr(read, name).tobytes() for name in names] for read in reader.collect(flight)
        ]

    expected = [tables(reader.launch(batch)) for batch in batches]
    for order in (batches, batches[::-1]):
        flights = [reader.launch(batch) for batch in order]
        got = [tables(flight) for flight in flights]
        assert got == (expected if order is batches else expected[::-1])


def test_what_is_no_number_is_the_same_error_shared_and_apart(checkpoint: Path) -> None:
    """An overflow reaches rows before it in its tile, and tiles lie otherwise behind a prefix."""
    model = load(checkpoint)
    # Graphs would keep the embedding that they were recorded with.
    reader = reader_of(model, share=True, graphs=False)
    reader.results(reader.launch(batch_of([60, 170], 512, 1)))  # the self-test, while all is well
    bad = 4999
    assert model._forward is not None
    model._forward._embedding = model._forward._embedding.clone()  # it is the lm_head, too
    model._forward._embedding[bad] = float("inf")
    prompt = list(range(100, 170))
    options = ([5, 6], [5, 7], [5, bad], [bad, 5], [5, 6, 9], [5, bad, 9], [5, 7, bad], [8] * 40)
    reads = [Ask(array("i", prompt + option).tobytes(), len(option)).read() for option in options]

    def results(share: bool) -> list[tuple[bool, list[float]]]:
        packer = Packer(reader.shape, alone=False, window=1, share=share)
        packer.add(range(len(reads)), reads)
        found: dict[int, ReadResult] = {}
        shared = 0
        while len(packer):
            batch = packer.pop()
            shared += batch.read_tokens - batch.real_tokens
            found.update(zip(batch.keys, reader.results(reader.launch(batch)), strict=True))
        assert (shared > 0) == share
        return [
            (bool(found[key].nonfinite), [] if found[key].nonfinite else found[key].target_logprob)
            for key in range(len(reads))
        ]

    apart = results(False)
    assert [wrong for wrong, _ in apart] == [bad in option[:-1] for option in options]
    assert results(True) == apart


def test_out_of_memory_names_the_shape_the_need_and_the_remedy(checkpoint: Path) -> None:
    from scorer.scoring import Scorer

    tokens = 2**18
    scorer = Scorer(checkpoint, device="cuda", tokens_per_forward=tokens, rows_per_forward=8)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(4e9 / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(
            DeviceError,
            match=rf"forward of {tokens} tokens and 8 lm_head rows, "
            r"which needs about 4\.5 GiB beside the weights; lower --tokens-per-forward",
        ):
            list(scorer.score([{"prompt": "x", "targets": [5]}]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_table_of_segments_is_of_one_size(checkpoint: Path) -> None:
    model = load(checkpoint)
    forward = model._forward
    assert forward is not None
    for lengths in ([512], [1] * 32, [100, 3]):
        model.hidden_states(batch_of(lengths, 512, 1).layout(), rows=32)
    assert list(forward._shapes) == [(512, tile_slots(512, max_segments(512, 32), forward.heads))]
