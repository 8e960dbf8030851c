"""Reads of one record that share their prefix have the bits of reads apart, or it is said.

On the CPU nothing is shared: these run with an attention of their own, which is exact and slow.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scorer.compare.orderings import Orders, reordered
from scorer.errors import IsolationError
from scorer.records.record import Record
from scorer.records.record_line import parse_line
from scorer.rows import encode_score
from scorer.scoring import Scorer
from scorer.shapes import BatchShape
from tests.commands import Bench, Done, run, write_lines
from tests.sharing import one_bit, share_on_cpu

RECORDS: list[dict[str, object]] = [
    {"prompt": "The sky is", "options": [" blue", " dark grey", " yes"], "prompt_logprobs": 2},
    {"prompt": "One two", "options": [" three", " four"], "logprobs": 3},
    {"prompt": "No options", "logprobs": 1},
    {"prompt": "x" * 200, "options": ["y" * 90, "z" * 20, " yes"]},  # too long for T = 256
    {"question": "Is it?", "options": ["yes", "no"]},
]


def scorer_of(model: Path, **options: int) -> Scorer:
    small = {"tokens_per_forward": 256, "rows_per_forward": 8}
    return Scorer(model, device="cpu", **{**small, **options})  # type: ignore[arg-type]


def rows_of(scorer: Scorer) -> list[bytes]:
    return [encode_score(row) for row in scorer.score(RECORDS)]


@pytest.mark.parametrize("rows", [8, 2])
def test_rows_are_the_same_bytes_shared_or_not(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    share_on_cpu(monkeypatch)
    apart = scorer_of(tiny_model, rows_per_forward=rows, shared_prefix=False)
    shared = scorer_of(tiny_model, rows_per_forward=rows)
    assert rows_of(apart) == rows_of(shared)
    counts, whole = shared.reader.counts, apart.reader.counts
    assert whole.shared_tokens == 0
    assert counts.shared_tokens > 0
    assert counts.reads == whole.reads
    assert counts.shared_tokens + counts.real_tokens == whole.real_tokens
    assert shared.reader.numerics_key == apart.reader.numerics_key


def test_on_the_cpu_nothing_is_shared(tiny_model: Path) -> None:
    scorer = scorer_of(tiny_model)
    rows_of(scorer)
    assert not scorer.reader.share
    assert scorer.reader.counts.shared_tokens == 0


def test_records_of_one_line_share_only_together(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    records = [
        Record(line=line, id=line, prompt=f"A prompt that begins alike {end}", logprobs=1)
        for line, end in ((1, "a"), (1, "b"), (2, "c"), (3, "d"), (3, "e"), (3, "f"))
    ]
    apart, together = scorer_of(tiny_model), scorer_of(tiny_model)
    rows = [encode_score(row) for row in apart.score(records)]
    assert [encode_score(row) for row in together.score(records, together=True)] == rows
    assert apart.reader.counts.shared_tokens == 0
    assert together.reader.counts.shared_tokens == 3 * len("A prompt that begins alike ")


def test_alone_shares_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_on_cpu(monkeypatch)
    scorer = Scorer(tiny_model, device="cpu", isolation="alone")
    rows_of(scorer)
    assert scorer.reader.counts.shared_tokens == 0


SMALL = ("--tokens-per-forward", "256", "--rows-per-forward", "8")


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{path}.manifest.json").read_text())
    return found


def test_score_says_what_was_asked_and_what_was_saved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    shared, apart = bench.folder / "shared.jsonl", bench.folder / "apart.jsonl"
    source = write_lines(bench.folder / "records.jsonl", RECORDS)
    bench = replace(bench, records=source)
    first = bench.score("-o", shared, *SMALL)
    second = bench.score("-o", apart, *SMALL, "--no-shared-prefix")

    assert first.code == second.code == 0, first.err + second.err
    assert shared.read_bytes() == apart.read_bytes()
    ours, theirs = manifest(shared), manifest(apart)
    assert ours["numerics_key"] == theirs["numerics_key"]
    assert ours["rows_sha256"] == theirs["rows_sha256"]
    assert ours["settings"]["shared_prefix"] is True
    assert theirs["settings"]["shared_prefix"] is False
    saved = ours["counts"]["shared_tokens"]
    assert saved > 0
    assert theirs["counts"]["shared_tokens"] == 0
    assert ours["counts"]["read_tokens"] == theirs["counts"]["read_tokens"]
    total = theirs["counts"]["read_tokens"]
    assert (
        f"shared prefixes  {saved:,} of {total:,} tokens were shared instead of recomputed"
        in first.err
    )
    assert "shared" not in second.err


def test_a_job_goes_on_with_sharing_or_without(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    source = write_lines(bench.folder / "records.jsonl", RECORDS)
    bench = replace(bench, records=source)
    whole, resumed = bench.folder / "whole.jsonl", bench.folder / "resumed.jsonl"
    assert bench.score("-o", whole, *SMALL).code == 0
    assert bench.score("-o", resumed, *SMALL, "--limit", "1").code == 0
    done = bench.score("-o", resumed, *SMALL, "--no-shared-prefix", "--resume")
    assert done.code == 0, done.err
    assert resumed.read_bytes() == whole.read_bytes()
    assert 0 < manifest(resumed)["counts"]["shared_tokens"]


def test_the_orderings_of_a_question_share_what_stands_before_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    questions = write_lines(
        bench.folder / "questions.jsonl",
        [
            {"id": 1, "question": "Which one?", "options": ["red", "green", "blue"]},
            {"id": 2, "question": "Or these?", "options": ["up", "down"]},
            {"id": 3, "prompt": "no question"},
        ],
    )

    def compare(name: str, *options: str) -> tuple[Done, Path]:
        rows = bench.folder / name
        where = ("--model", bench.model, "--device", "cpu", "-o", rows)
        shape = ("--tokens-per-forward", "4096", "--noise-sample", "0")
        return run("compare", questions, *where, *shape, *options), rows

    first, shared = compare("shared.jsonl")
    second, apart = compare("apart.jsonl", "--no-shared-prefix")
    assert first.code == second.code == 1, "a record is no question"
    assert shared.read_bytes() == apart.read_bytes()
    counts = manifest(shared)["counts"]
    scorer, saved = scorer_of(bench.model), 0
    for line in questions.read_bytes().splitlines()[:2]:
        record = parse_line(line, 1)
        assert isinstance(record, Record)
        plans = map(scorer.plan_one, (reordered(record, order) for order in Orders().of(record)))
        ids = [plan.reads[0].tokens.tolist() for plan in plans]
        different = [len(set(column)) > 1 for column in zip(*ids, strict=False)]
        saved += (len(ids) - 1) * different.index(True)
    assert counts["shared_tokens"] == saved > 50
    assert f"shared prefixes: {counts['shared_tokens']:,} of" in first.err
    assert manifest(apart)["counts"]["shared_tokens"] == 0


def test_sharing_that_is_not_exact_is_found_before_the_first_score(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch, one_bit)
    with pytest.raises(IsolationError, match=r"share a prefix .*use --no-shared-prefix"):
        rows_of(scorer_of(tiny_model))


def test_the_self_test_compares_more_where_the_reader_shares(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def comparisons(cache: Path) -> tuple[int, bool]:
        scorer = scorer_of(tiny_model)
        reader = scorer.reader
        tests = type(reader.selftests)(
            reader.numerics_key,
            reader.n_ids,
            alone=False,
            max_tokens=scorer.checkpoint.max_tokens,
            cache=cache,
            share=reader.share,
        )
        tests.require(reader.model, reader.shape, reader.shape.tokens)
        return tests.comparisons, tests.remembered

    cache = tiny_model.parent / "selftest-cache"
    apart, _ = comparisons(cache)
    share_on_cpu(monkeypatch)
    shared, remembered = comparisons(cache)
    assert not remembered, "a pass without sharing is none of sharing"
    assert shared > apart
    assert comparisons(cache) == (shared, True)


@pytest.mark.parametrize("tokens", [2, 3, 20, 64, 300])
def test_wherever_two_reads_fit_sharing_is_proven(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    from scorer.probes import shared

    share_on_cpu(monkeypatch)
    reader = scorer_of(tiny_model).reader
    outcome = shared(reader.model, BatchShape(tokens, 4), reader.n_ids, 512)
    assert outcome.comparisons > 0
    assert shared(reader.model, BatchShape(tokens, 1), reader.n_ids, 512).comparisons == 0


def test_the_double_is_exact_and_breaks_where_told() -> None:
    hidden = torch.ones(3, 2)
    one_bit(hidden, 0)
    assert (hidden == 1).all()
    one_bit(hidden, 5)
    assert ((hidden - 1).abs() == torch.finfo(torch.float32).eps).all()
