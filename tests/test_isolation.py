"""The promise: the same option of the same prompt has the same bits, whatever is around it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET

from scorer.errors import IsolationError
from scorer.rows import Score, decode_scores
from scorer.scoring import Scorer
from scorer.shapes import Layout
from tests.conftest import DEMO_MODEL, find_qwen3_tokenizer
from tests.random_model import write_random_checkpoint

WORDS = (
    "the",
    "film",
    "was",
    "slow",
    "and",
    "its",
    "plot",
    "thin",
    "but",
    "nobody",
    "forgets",
    "it",
)


@dataclass(frozen=True)
class Setup:
    """A checkpoint, and the arguments with which it is scored."""

    checkpoint: Path
    device: str
    dtype: str
    tokens: int
    rows: int

    def arguments(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "dtype": self.dtype,
            "tokens_per_forward": self.tokens,
            "rows_per_forward": self.rows,
        }

    def scorer(self, **more: Any) -> Scorer:
        return Scorer(self.checkpoint, **{**self.arguments(), **more})


@pytest.fixture(
    scope="module",
    params=[
        "cpu-float32",
        "cpu-bfloat16",
        pytest.param("cuda-bfloat16", marks=pytest.mark.gpu),
    ],
)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    device, dtype = request.param.split("-")
    folder = tmp_path_factory.mktemp("model")
    if device == "cuda":
        # The real vocabulary's size; the real tokenizer where it is at hand.
        tokenizer = find_qwen3_tokenizer() or DEMO_MODEL
        write_random_checkpoint(folder, tokenizer, shape="0.6B", vocab_size=151936)
        return Setup(folder, device, dtype, tokens=2048, rows=64)
    write_random_checkpoint(folder, DEMO_MODEL, shape="tiny", vocab_size=4160)
    return Setup(folder, device, dtype, tokens=128, rows=8)


def text_of(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def make_records(seed: int, long: int) -> list[dict[str, Any]]:
    """Records of every kind, of 1 to ``long`` words: some fit T, some need 2T and 4T."""
    rng = random.Random(seed)
    records: list[dict[str, Any]] = []
    for number, words in enumerate([1, 2, 7, 16, 33, long // 2, long]):
        body = text_of(rng, words)
        records += [
            {
                "id": f"{seed}-q{number}",
                "question": f"{body}. Is that a good review?",
                "options": ["yes", "no", "can't say"][: 2 + number % 2],
            },
            {
                "id": f"{seed}-p{number}",
                "prompt": f"{body}. I found it",
                "options": [" good", " rather slow and thin", " bad"],
                "targets": [" the", 17],
                "logprobs": 3,
            },
            {
                "id": f"{seed}-m{number}",
                "messages": [{"role": "user", "content": f"{body}. One word?"}],
                "targets": ["A"],
                **({"prompt_logprobs": 2} if words < 40 else {}),
            },
            {"id": f"{seed}-t{number}", "prompt_token_ids": [5, 17, 200 + number], "logprobs": 0},
        ]
    return records


Bits = dict[tuple[Any, ...], str]


def bits_of(rows: Iterable[Score]) -> Bits:
    """Every float of the rows, by the prompt's token ids and what it is the value of."""
    bits: Bits = {}
    for row in rows:
        assert row.error is UNSET, row
        key = row.prompt_sha256
        for option in row.options or ():
            bits[key, "option", option.token_ids] = option.logprob.hex()
        for target in row.targets or ():
            bits[key, "token", target.token_id] = target.logprob.hex()
        if row.logprobs is not UNSET:
            for entry in (row.logprobs.chosen, *row.logprobs.top):
                bits[key, "token", entry.token_id] = entry.logprob.hex()
        for position, place in enumerate(row.prompt_logprobs or ()):
            for entry in () if place is None else (place.token, place.chosen, *place.top):
                bits[key, "at", position, entry.token_id] = entry.logprob.hex()
    return bits


def assert_same(base: Bits, other: Bits, *, least: int) -> None:
    """Compare all that both hold; at least ``least`` values, so that it can't pass on nothing."""
    shared = base.keys() & other.keys()
    assert len(shared) >= least
    assert {key: other[key] for key in shared} == {key: base[key] for key in shared}


@pytest.fixture(scope="module")
def records(setup: Setup) -> list[dict[str, Any]]:
    return make_records(1, long=3 * setup.tokens)


@pytest.fixture(scope="module")
def scorer(setup: Setup) -> Scorer:
    return setup.scorer()


@pytest.fixture(scope="module")
def base(setup: Setup, scorer: Scorer, records: list[dict[str, Any]]) -> Bits:
    bits = bits_of(scorer.score(records))
    assert set(scorer.reader.selftests.outcomes) == {
        setup.tokens,
        2 * setup.tokens,
        4 * setup.tokens,
    }
    assert scorer.reader.counts.forwards < scorer.reader.counts.reads
    return bits


def test_shuffled(scorer: Scorer, records: list[dict[str, Any]], base: Bits) -> None:
    shuffled = random.Random(2).sample(records, len(records))
    assert bits_of(scorer.score(shuffled)) == base


def test_one_by_one(scorer: Scorer, records: list[dict[str, Any]], base: Bits) -> None:
    alone: Bits = {}
    for record in records:
        alone |= bits_of(scorer.score([record]))
    assert alone == base


def test_line_by_line_in_processes_of_their_own(
    setup: Setup, records: list[dict[str, Any]], base: Bits, tmp_path: Path
) -> None:
    program = (
        "import json, sys; from scorer.rows import encode_score; from scorer.scoring import Scorer;"
        "arguments, record = json.loads(sys.argv[1]);"
        "(row,) = Scorer(**arguments).score([record]);"
        "open(sys.argv[2], 'wb').write(encode_score(row))"
    )
    arguments = {"model": str(setup.checkpoint), **setup.arguments()}
    out = tmp_path / "row.jsonl"
    for record in (records[0], records[-3]):
        command = [sys.executable, "-c", program, json.dumps([arguments, record]), str(out)]
        subprocess.run(command, check=True)
        assert_same(base, bits_of(decode_scores(out)), least=1)


def test_other_lines_mixed_in(
    setup: Setup, scorer: Scorer, records: list[dict[str, Any]], base: Bits
) -> None:
    strangers = make_records(3, long=setup.tokens // 2)
    mixed = random.Random(4).sample(records + strangers, len(records) + len(strangers))
    assert_same(base, bits_of(scorer.score(mixed)), least=len(base))


def test_what_else_is_asked(scorer: Scorer, records: list[dict[str, Any]], base: Bits) -> None:
    asked: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        more = {**record, "logprobs": 7, "targets": [*record.get("targets", []), 3, 4, 5]}
        if "prompt" in record:
            more["options"] = [" fine", *record["options"][::-1], " a long way from home"]
        if number % 3 == 0 and number < 16:
            more["prompt_logprobs"] = 1
        asked.append(more)
    assert_same(base, bits_of(scorer.score(asked)), least=len(base) // 2)


def test_alone_is_close_and_repeats(
    setup: Setup, records: list[dict[str, Any]], base: Bits
) -> None:
    few = records[:16]
    first = bits_of(setup.scorer(isolation="alone").score(few))
    assert bits_of(setup.scorer(isolation="alone").score(few[::-1])) == first
    shared = first.keys() & base.keys()  # which tokens are the likeliest may differ
    assert len(shared) > len(first) // 2
    far = [abs(float.fromhex(first[key]) - float.fromhex(base[key])) for key in shared]
    assert max(far) < (1e-3 if setup.dtype == "float32" else 1.0)


def test_a_partner_that_leaks_is_found(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test is worth nothing unless it fails when a read depends on its partners."""
    scorer = setup.scorer()
    honest = scorer.reader.model.hidden_states

    def leaking(layout: Layout, *, rows: int, graph: bool = True) -> torch.Tensor:
        hidden = honest(layout, rows=rows, graph=graph).clone()
        if layout.segments[0, 1] % 2:  # one value's last bit, if the first read's length is odd
            at = hidden.view(torch.int32 if hidden.dtype == torch.float32 else torch.int16)
            at[-1, 0] ^= 1
        return hidden

    monkeypatch.setattr(scorer.reader.model, "hidden_states", leaking)
    with pytest.raises(IsolationError, match="--isolation alone"):
        list(scorer.score([{"prompt": "one two", "logprobs": 0}]))


def test_an_lm_head_whose_rows_depend_on_their_slot_is_found(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = setup.scorer()
    honest = scorer.reader.model.logits

    def leaking(hidden: torch.Tensor) -> torch.Tensor:
        logits = honest(hidden).clone()
        logits.view(torch.int32)[0, 1] ^= 1
        return logits

    monkeypatch.setattr(scorer.reader.model, "logits", leaking)
    with pytest.raises(IsolationError, match="lm_head rows"):
        list(scorer.score([{"prompt": "one two", "logprobs": 0}]))


def test_a_plain_model_in_the_same_process_is_untouched(setup: Setup) -> None:
    from transformers import Qwen3ForCausalLM

    def plain() -> torch.Tensor:
        model = Qwen3ForCausalLM.from_pretrained(
            setup.checkpoint, dtype=getattr(torch, setup.dtype)
        )
        model = model.to(setup.device).eval()
        ids = torch.arange(1, 40, device=setup.device)[None]
        with torch.inference_mode():
            logits: torch.Tensor = model(ids).logits.float().cpu()
        return logits

    before = plain()
    list(setup.scorer().score([{"prompt": "one two", "logprobs": 0}]))
    assert torch.equal(before, plain())


def test_padding_logits_are_never_chosen(scorer: Scorer) -> None:
    n_ids = scorer.prompter.n_ids
    assert n_ids < scorer.checkpoint.vocab_size
    (row,) = scorer.score([{"prompt": "one two", "logprobs": 50}])
    assert row.logprobs is not UNSET
    assert len(row.logprobs.top) == 50
    assert all(entry.token_id < n_ids for entry in row.logprobs.top)
    assert np.all(np.diff([entry.logprob for entry in row.logprobs.top]) <= 0)
