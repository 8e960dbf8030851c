"""Every file in ``examples/`` does what its README says, with the bundled model."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.commands import REPO, read_rows, run

EXAMPLES = REPO / "examples"


def _records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text("utf-8").splitlines()]


def _score(name: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    out = folder / name
    done = run("score", EXAMPLES / name, "--model", model, "--device", "cpu", "-o", out)
    assert done.code == 0, done.err
    rows = read_rows(out)
    assert [row["id"] for row in rows] == [record["id"] for record in _records(name)]
    assert [row["id"] for row in rows if "error" in row] == []
    return rows


def _gold_index(record: dict[str, Any]) -> int:
    label = record["label"]
    return label if isinstance(label, int) else record["options"].index(label)


def _majority(records: list[dict[str, Any]]) -> float:
    """Accuracy of the best answer that is the same for every record."""
    golds = Counter(_gold_index(record) for record in records)
    return golds.most_common(1)[0][1] / len(records)


def test_sentiment(demo_model: Path, tmp_path: Path) -> None:
    records = _records("sentiment.jsonl")
    rows = _score("sentiment.jsonl", demo_model, tmp_path)

    assert len(rows) >= 200
    for record, row in zip(records, rows, strict=True):
        assert row["answer"] in record["options"]
        assert row["gold_index"] == _gold_index(record)
        assert row["correct"] == (row["answer"] == record["label"])
        assert row["label_mass"] > 0.9, row["id"]
        assert row["extra"] == {"topic": record["topic"]}
    accuracy = sum(row["correct"] for row in rows) / len(rows)
    assert accuracy >= 0.8 > _majority(records) + 0.4


@pytest.mark.parametrize("name", ["continuations.jsonl", "chat.jsonl"])
def test_plain_prompts_and_chats(name: str, demo_model: Path, tmp_path: Path) -> None:
    records = _records(name)
    rows = _score(name, demo_model, tmp_path)

    for record, row in zip(records, rows, strict=True):
        wanted = record.get("options", [])
        assert [option["text"] for option in row.get("options", [])] == wanted
        assert ("answer" in row) == bool(wanted)
        targets = [target["text"] for target in row.get("targets", [])]
        assert targets == record.get("targets", [])
        assert ("logprobs" in row) == ("logprobs" in record)
        if "logprobs" in record:
            assert len(row["logprobs"]["top"]) == record["logprobs"]
        if "prompt_logprobs" in record:
            assert len(row["prompt_logprobs"]) == row["prompt_tokens"]
        if wanted:
            assert row["answer"] in wanted
            # Options of several tokens have no label mass: they may begin alike.
            assert row["label_mass"] is None or row["label_mass"] > 0.9, row["id"]
    golds = [record for record in records if "label" in record]
    right = [row["correct"] for row in rows if "correct" in row]
    assert len(right) == len(golds)
    assert sum(right) / len(right) > _majority(golds) + 0.2


def test_a_space_moves_to_the_options(demo_model: Path, tmp_path: Path) -> None:
    rows = {row["id"]: row for row in _score("continuations.jsonl", demo_model, tmp_path)}

    plain = {option["text"]: option for option in rows["choir"]["options"]}
    for option in rows["choir-space"]["options"]:
        same = plain[f" {option['text']}"]
        assert option["token_ids"] == same["token_ids"]
        assert option["logprob"] == same["logprob"]


def test_python_api(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["api.py", str(demo_model)])

    runpy.run_path(str(EXAMPLES / "api.py"), run_name="__main__")

    answers = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1::2]]
    assert answers == ["negative", "positive", "neutral"]
