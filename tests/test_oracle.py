"""Against transformers' own forward: eager attention, one prompt, no padding."""

from __future__ import annotations

import json
import math
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET

from scorer.checkpoint import find_checkpoint
from scorer.model import Qwen3
from scorer.packing import Packer
from scorer.reader import Reader
from scorer.records.mapping import as_records
from scorer.reduction import RowRequests
from scorer.scoring import Scorer
from scorer.shapes import BatchShape, Read
from tests.conftest import DEMO_MODEL
from tests.models import write_model
from tests.random_model import write_random_checkpoint

RECORDS: list[dict[str, Any]] = [
    {"prompt": "The room was", "options": [" clean", " dirty and far too small", " fine"]},
    {"prompt": "We waited an hour for", "options": [" nothing", " a very good dinner"]},
    {"prompt": "x", "options": [" y", "z"], "targets": ["A", 7], "logprobs": 5},
    {"question": "Was the film any good?", "options": ["yes", "no"], "state": "A waste of time."},
    {"question": "Which?", "options": ["one", "two", "three", "four"]},
    {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "How was the food?"},
        ],
        "options": ["Good", "It was not good at all"],
        "prompt_logprobs": 3,
    },
]


def plain_model(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.to(device).eval()


def plain_logprobs(model: Any, ids: list[int]) -> np.ndarray:
    """Return float64 ``[n, vocab]``: the oracle's log-probabilities after each token."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), dim=-1).cpu().numpy()


def test_float32_on_the_cpu_agrees_within_1e_4_nats(demo_model: Path) -> None:
    scorer = Scorer(demo_model, device="cpu", dtype="float32")
    oracle = plain_model(demo_model, torch.float32, "cpu")
    compared = 0
    for record, row in zip(RECORDS, scorer.score(RECORDS), strict=True):
        assert row.error is UNSET
        (plan,) = scorer.prepare(as_records([record]))
        ids = plan.prepared.token_ids.tolist()  # type: ignore[union-attr]
        after_prompt = plain_logprobs(oracle, ids)[-1]
        for option in row.options or ():
            whole = plain_logprobs(oracle, [*ids, *option.token_ids])
            places = range(len(ids) - 1, len(ids) - 1 + len(option.token_ids))
            expected = sum(
                whole[place, token] for place, token in zip(places, option.token_ids, strict=True)
            )
            assert option.logprob == pytest.approx(expected, abs=1e-4)
            greedy = all(
                whole[place].argmax() == token
                for place, token in zip(places, option.token_ids, strict=True)
            )
            assert option.is_greedy == greedy
            compared += 1
        for target in row.targets or ():
            assert target.logprob == pytest.approx(after_prompt[target.token_id], abs=1e-4)
            # Among real ids; each computation may be 1e-4 off, so neighbours may change places.
            real = after_prompt[: scorer.prompter.n_ids]
            value = real[target.token_id]
            surely, perhaps = (real > value + 2e-4).sum(), (real >= value - 2e-4).sum()
            assert 1 + surely <= target.rank <= perhaps
            compared += 1
        if row.logprobs is not UNSET:
            best = np.argsort(-after_prompt[: scorer.prompter.n_ids], kind="stable")[:5]
            assert [entry.token_id for entry in row.logprobs.top] == best.tolist()
            assert row.logprobs.chosen == row.logprobs.top[0]
        if row.prompt_logprobs is not UNSET:
            before = plain_logprobs(oracle, ids)
            assert len(row.prompt_logprobs) == len(ids)
            assert row.prompt_logprobs[0] is None
            for position, entry in enumerate(row.prompt_logprobs[1:], start=1):
                assert entry is not None
                assert entry.token.token_id == ids[position]
                expected = before[position - 1, ids[position]]
                assert entry.token.logprob == pytest.approx(expected, abs=1e-4)
                assert entry.chosen.token_id == before[position - 1].argmax()
                assert len(entry.top) == 3
                compared += 1
    assert compared > 40


@pytest.mark.parametrize("truncate", [False, True])
def test_a_read_may_be_as_long_as_the_limit_and_no_longer(truncate: bool, tmp_path: Path) -> None:
    """What counts is what is read: of an option of several tokens, all but the last."""
    limit = 40
    write_model(tmp_path, max_position_embeddings=limit)
    scorer = Scorer(tmp_path, device="cpu", dtype="float32", truncate_prompt=truncate, cache=None)
    oracle = plain_model(tmp_path, torch.float32, "cpu")
    asked: list[tuple[int, dict[str, Any]]] = [
        (0, {"options": ["x", "y"]}),
        (0, {"logprobs": 0}),
        (0, {"prompt_logprobs": 0}),
        (1, {"options": ["xy", "z"]}),
        (1, {"options": ["xy", "zx"], "prompt_logprobs": 0}),
        (4, {"options": ["xyzxy", "z"], "targets": [5]}),
    ]
    fitting = [{"prompt": "a" * (limit - behind), **own} for behind, own in asked]
    longer = [{**own, "prompt": "b" + own["prompt"]} for own in fitting]
    plans = list(scorer.prepare(as_records(fitting)))
    assert [max(map(len, own.asks)) for own in plans] == [limit] * 6  # type: ignore[union-attr]
    rows = list(scorer.score(fitting))
    for plan, row in zip(plans, rows, strict=True):
        assert row.error is UNSET
        ids = plan.prepared.token_ids.tolist()  # type: ignore[union-attr]
        for option in row.options or ():
            whole = [*ids, *option.token_ids]
            after = plain_logprobs(oracle, whole[:-1])[len(ids) - 1 :]
            expected = sum(map(operator.getitem, after, option.token_ids))
            assert option.logprob == pytest.approx(expected, abs=1e-4)
    for row, cut in zip(rows, scorer.score(longer), strict=True):
        if truncate:  # by the one token that is too many
            assert cut.truncated_tokens == 1
            assert (cut.prompt_sha256, cut.options) == (row.prompt_sha256, row.options)
        else:
            assert cut.error is not UNSET
            assert cut.error.code == "prompt_too_long"


@pytest.mark.parametrize("rope", ["linear", "yarn"])
def test_scaled_rope_agrees_with_transformers(rope: str, tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, DEMO_MODEL, shape="tiny", vocab_size=4160)
    config = json.loads((tmp_path / "config.json").read_text())
    config["max_position_embeddings"] = 512
    config["rope_parameters"] = {"rope_type": rope, "rope_theta": 10_000.0, "factor": 4.0}
    if rope == "yarn":
        config["rope_parameters"]["original_max_position_embeddings"] = 128
    (tmp_path / "config.json").write_text(json.dumps(config))
    record = {"prompt_token_ids": [(7 * i) % 3900 for i in range(300)], "targets": [5, 900]}
    # The read fits neither T nor 2T: the rung must not reach the frequencies.
    scorer = Scorer(tmp_path, device="cpu", dtype="float32", tokens_per_forward=128)
    (row,) = scorer.score([record])
    oracle = plain_model(tmp_path, torch.float32, "cpu")
    expected = plain_logprobs(oracle, record["prompt_token_ids"])[-1]
    assert row.targets is not UNSET
    for target in row.targets:
        assert target.logprob == pytest.approx(expected[target.token_id], abs=1e-4)


@pytest.mark.gpu
def test_bfloat16_on_cuda_is_no_further_from_float32_than_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """500 reads of 20 to 400 random tokens, 64 random targets each, 0.6B shape."""
    vocabulary = 151_936
    write_random_checkpoint(tmp_path, DEMO_MODEL, shape="0.6B", vocab_size=vocabulary)
    rng = np.random.default_rng(5)
    prompts = [
        rng.integers(0, vocabulary, size=rng.integers(20, 400), dtype=np.int32) for _ in range(500)
    ]
    targets = rng.integers(0, vocabulary, size=(len(prompts), 64))
    shape = BatchShape(8192, 128)
    reader = Reader(
        Qwen3.load(find_checkpoint(str(tmp_path)), torch.device("cuda", 0), torch.bfloat16),
        shape,
        alone=False,
        n_ids=vocabulary,
        numerics={},
        cache=None,
    )
    packer = Packer(shape, alone=False, window=1, share=False)
    for key, (prompt, wanted) in enumerate(zip(prompts, targets, strict=True)):
        last = np.array([len(prompt) - 1], dtype=np.int32)
        packer.add([key], [Read(prompt, last, RowRequests.of([wanted.tolist()], [0]))])
    ours = np.empty(targets.shape)
    while len(packer):
        batch = packer.pop()
        for key, reduced in zip(batch.keys, reader.collect(reader.launch(batch)), strict=True):
            ours[key] = reduced.target_logprob
    del reader

    def theirs(dtype: torch.dtype) -> np.ndarray:
        model = plain_model(tmp_path, dtype, "cuda")
        rows = []
        for prompt, wanted in zip(prompts, targets, strict=True):
            ids = torch.from_numpy(prompt.astype(np.int64)).to("cuda")[None]
            with torch.inference_mode():
                logits = model(ids, use_cache=False, logits_to_keep=1).logits[0, 0]
            logprobs = torch.log_softmax(logits.double(), dim=-1)
            rows.append(logprobs[torch.from_numpy(wanted).to("cuda")].cpu().numpy())
        return np.stack(rows)

    exact, plain = theirs(torch.float32), theirs(torch.bfloat16)
    deviations = {
        "scorer": np.abs(ours - exact),
        "transformers": np.abs(plain - exact),
    }
    with capsys.disabled():
        for name, far in deviations.items():
            rms = math.sqrt(np.mean(far**2))
            print(f"\n  {name} bfloat16 against float32: rms {rms:.2e}, max {far.max():.2e} nats")
    assert np.mean(deviations["scorer"] ** 2) <= np.mean(deviations["transformers"] ** 2)
    assert deviations["scorer"].max() <= 1.1 * deviations["transformers"].max()
