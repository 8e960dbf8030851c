"""What one record becomes, as text and as JSON."""

from __future__ import annotations

import json

from tests.commands import (
    Bench,
    Done,
    refused,
    run,
    write_lines,
)


def test_show(bench: Bench) -> None:
    text = run("show", bench.records, "-m", bench.model, "--line", "1")
    told = run("show", bench.records, "-m", bench.model, "--json")
    other = run("show", bench.records, "-m", bench.model, "-n", "2", "--json")

    plan = json.loads(told.out)
    assert (text.code, told.code, other.code) == (0, 0, 0)
    assert plan["id"] == "q"
    assert plan["text"].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert plan["text"] in text.out.decode()
    assert "".join(plan["tokens"]) == plan["text"]
    assert [(o["text"], o["label"], o["token_ids"]) for o in plan["options"]] == [
        ("yes", "A", [32]),
        ("no", "B", [33]),
    ]
    assert b"'B' = 'no'  ids 'B':33" in text.out
    assert plan["question_template"] in text.out.decode()
    printed = text.out.decode().partition("(--question-template replaces it)\n")[2]
    template = bench.folder / "printed.jinja"
    template.write_text(printed, encoding="utf-8")
    again = run("show", bench.records, "-m", bench.model, "--json", "--question-template", template)
    assert json.loads(again.out)["token_ids"] == plan["token_ids"]
    assert json.loads(other.out)["question_template"] is None
    assert json.loads(other.out)["targets"] == [{"token_id": 260, "text": " no"}]
    assert bench.score().rows[0]["prompt_tokens"] == len(plan["token_ids"])


def test_show_says_which_spaces_went_to_the_options(bench: Bench) -> None:
    lines = write_lines(bench.folder / "in.jsonl", [{"prompt": "Is it?  ", "options": ["y", "n"]}])
    told = run("show", lines, "-m", bench.model, "--json")
    text = run("show", lines, "-m", bench.model).out.decode()
    assert json.loads(told.out)["moved_spaces"] == 2
    assert json.loads(told.out)["text"] == "Is it?"
    assert "── options (the prompt's last 2 spaces begin each of them)\n'y'  ids ' ':" in text
    assert "── warnings\nthe prompt ends in 2 spaces, which go with its options: " in text


def test_show_refuses_lines_without_a_record(bench: Bench) -> None:
    lines = write_lines(bench.folder / "in.jsonl", [b"", {"prompt": "x"}, {"prompt": ""}, b"{"])

    def show(line: int) -> Done:
        return run("show", lines, "-m", bench.model, "--line", str(line))

    refused(show(1), f"{lines}:1: holds no record")
    refused(show(0), "--line 0")
    refused(show(5), f"--line 5: {lines} has no record at or after it")
    refused(show(3), f"{lines}:3: the prompt has no tokens", code=1)
    refused(show(4), f"{lines}:4: not valid JSON", code=1)
    assert show(2).code == 0
