"""The scenarios that need transformers as it comes: a chat turn in between, and the control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.check.tally import Tally
from scorer.reduction import Reduced, RowRequests, finish, reduce_host
from scorer.shapes import IntArray, Read

if TYPE_CHECKING:
    from scorer.check.subject import Subject

NEW_TOKENS: Final = 16
_PADDED_MOST: Final = 1024
"""The longest prompt of the control, in tokens: its batches are padded to the longest."""

_SHORT: Final = 60
"""Tokens of a short prompt; where dynamic batching is known to move bits on GPUs."""


def chat_turn(subject: Subject, tally: Tally) -> None:
    """A chat turn on the same prefix, generated with a KV cache, between two reads of it."""
    from scorer.check.subject import NotRunError

    plain = subject.reader.model.plain()
    generated = 0
    for victim in subject.victims:
        base = subject.read_in([victim])
        new = min(NEW_TOKENS, subject.max_tokens - len(victim))
        if new < 1:
            continue
        cache, count = _generate(plain, victim.tokens, new)
        generated += count
        where = f"read of {len(victim)} tokens after a turn of {count}"
        tally.reads(base, subject.read_in([victim]), f"{where}, its cache held")
        del cache
        tally.reads(base, subject.read_in([victim]), f"{where}, its cache gone")
    if not generated:
        raise NotRunError("the prompts are as long as the model allows: no room for a turn")
    tally.notes.append(f"{generated} tokens generated with a KV cache")


def _generate(plain: Any, tokens: IntArray, new: int) -> tuple[object, int]:
    """Generate greedily; return the cache, which holds the prefix, and how many tokens came."""
    import torch
    from transformers import GenerationConfig

    ids = torch.from_numpy(tokens.astype(np.int64))[None].to(plain.device)
    output = plain.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=GenerationConfig(
            min_new_tokens=new,  # a turn that ends at once would prove little
            max_new_tokens=new,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
        ),
    )
    cache = output.past_key_values
    if cache.get_seq_length() < len(tokens):
        raise AssertionError("transformers generated without a KV cache of the prefix")
    return cache, output.sequences.shape[1] - len(tokens)


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt of the control: its tokens, and what is asked of its last distribution."""

    tokens: IntArray
    requests: RowRequests


def control(subject: Subject, tally: Tally) -> None:
    """Ordinary dynamic padded batching by transformers on the same prompts.

    Each prompt by itself and in batches of 2, 4, 8 and more, padded on the left to the longest,
    with mask and positions as transformers makes them; the same reduction as ours. Here a
    difference is what is expected.
    """
    plain = subject.reader.model.plain()
    prompts = list(_prompts(subject.victims, _PADDED_MOST))
    shorter = [*_prompts(subject.victims, _SHORT), *_prompts(_more(subject), _SHORT)]
    for name, group in (("", prompts), ("short ", shorter)):
        if len(group) < 2:
            continue
        base = [_batch(subject, plain, [prompt])[0] for prompt in group]
        for size in sorted({min(size, len(group)) for size in (2, 4, 8, 16, 32)}):
            for start in range(0, len(group), size):
                batch = group[start : start + size]
                if len(batch) == 1:
                    continue
                for index, got in enumerate(_batch(subject, plain, batch), start=start):
                    where = f"{name}prompt of {len(group[index].tokens)} tokens in {len(batch)}"
                    _compare(tally, base[index], got, where)
        if tally.mismatches:
            return


def _more(subject: Subject) -> Iterator[Read]:
    """Yield reads of other lengths, so that a single record has partners too."""
    for length in (_SHORT, _SHORT // 2, 9, 10, 17, 33, _SHORT):
        yield subject.material(min(length, subject.max_tokens))


def _prompts(reads: Sequence[Read] | Iterator[Read], most: int) -> Iterator[_Prompt]:
    for read in reads:
        start = int(read.requests.target_offsets[-2])
        last = read.requests.target_ids[start:].tolist()
        requests = RowRequests.of([last], [int(read.requests.top_k[-1])])
        yield _Prompt(read.tokens[-most:], requests)


def _compare(tally: Tally, expected: Reduced, got: Reduced, where: str) -> None:
    """Compare the values of the targets, and of the entries that both list."""
    tally.nats(expected.target_logprob, got.target_logprob, f"{where}, targets")
    _, mine, theirs = np.intersect1d(expected.top_id, got.top_id, return_indices=True)
    tally.nats(expected.top_logprob[mine], got.top_logprob[theirs], f"{where}, entries")


def _batch(subject: Subject, plain: Any, prompts: Sequence[_Prompt]) -> list[Reduced]:
    """Run one padded batch; return the last distribution of each prompt."""
    import torch

    longest = max(len(prompt.tokens) for prompt in prompts)
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.tokens) :] = prompt.tokens
        mask[row, longest - len(prompt.tokens) :] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    with torch.inference_mode():
        logits = plain(
            input_ids=torch.from_numpy(ids).to(plain.device),
            attention_mask=torch.from_numpy(mask).to(plain.device),
            position_ids=torch.from_numpy(positions).to(plain.device),
            use_cache=False,
            logits_to_keep=1,
        ).logits[:, -1]
    rows = logits.float().cpu().numpy()
    return [
        finish(reduce_host(rows[i : i + 1], prompt.requests, subject.reader.n_ids), prompt.requests)
        for i, prompt in enumerate(prompts)
    ]
