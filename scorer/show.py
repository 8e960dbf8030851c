"""What one record becomes before any model sees it: rendered text, token ids, labels, targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.answers import Plan
from scorer.errors import RowError, UsageError
from scorer.progress import printable
from scorer.records.source import Source, at_line

if TYPE_CHECKING:
    from scorer.manifest import Json
    from scorer.scoring import Scorer


def show_line(scorer: Scorer, source: Source, line: int) -> Plan:
    """Return the plan of the record on a physical line.

    Raises UsageError when no record is there, RowError when it can't be scored.
    """
    for record in source.records():
        if record.line >= line:
            break
    else:
        raise UsageError(f"--line {line}: {source.name} has no record at or after it")
    if record.line > line:
        raise UsageError(f"--line {line}: {at_line(source.name, line, 'holds no record')}")
    try:
        return scorer.plan_one(record)
    except RowError as error:
        message = at_line(source.name, line, str(error))
        raise RowError(error.code, message) from error


def describe(scorer: Scorer, plan: Plan) -> dict[str, Json]:
    """Return a plan as JSON."""
    prepared = plan.prepared
    token_text = scorer.prompter.token_text
    options: list[Json] = [
        {
            "text": option.text,
            "label": option.label,
            "token_ids": list(option.token_ids),
            "tokens": [token.text for token in token_text(option.token_ids)],
            "seam_changed": option.seam_changed,
        }
        for option in prepared.options
    ]
    return {
        "line": prepared.record.line,
        "id": prepared.record.id,
        "text": prepared.text,
        "token_ids": prepared.token_ids.tolist(),
        "tokens": [token.text for token in token_text(prepared.token_ids.tolist())],
        "moved_spaces": prepared.moved_spaces,
        "options": options,
        "targets": [
            {"token_id": target.token_id, "text": target.text} for target in prepared.targets
        ],
        "reads": [len(read) for read in plan.reads],
        "warnings": list(prepared.warnings),
        "truncated_tokens": prepared.truncated_tokens,
        "question_template": (
            scorer.question_template if prepared.record.question is not None else None
        ),
    }


def as_text(scorer: Scorer, plan: Plan) -> str:
    """Return a plan for a person to read; control characters are escaped."""
    prepared = plan.prepared
    token_text = scorer.prompter.token_text
    lines = [f"── record {prepared.record.id!r}, line {prepared.record.line}", prepared.text]
    lines.append(f"── {len(prepared.token_ids)} prompt tokens")
    ids = prepared.token_ids.tolist()
    lines.append(
        " ".join(
            f"{token.text!r}:{token_id}"
            for token, token_id in zip(token_text(ids), ids, strict=True)
        )
    )
    if prepared.options:
        moved = prepared.moved_spaces
        spaces = "space begins" if moved == 1 else f"{moved} spaces begin"
        of_prompt = f" (the prompt's last {spaces} each of them)" if moved else ""
        lines.append(f"── options{of_prompt}")
    for option in prepared.options:
        name = "" if option.label is None else f"{option.label!r} = "
        pieces = zip(token_text(option.token_ids), option.token_ids, strict=True)
        tokens = " ".join(f"{token.text!r}:{token_id}" for token, token_id in pieces)
        lines.append(f"{name}{option.text!r}  ids {tokens}")
    if prepared.targets:
        lines.append("── targets")
        lines += [f"{target.text!r}:{target.token_id}" for target in prepared.targets]
    lines.append("── reads")
    lines.append(", ".join(f"{len(read)} tokens" for read in plan.reads) or "none")
    if prepared.warnings:
        lines.append("── warnings")
        lines += prepared.warnings
    if prepared.record.question is not None:
        lines.append("── question template (--question-template replaces it)")
        lines.append(scorer.question_template.removesuffix("\n"))  # one is added below
    return "\n".join(map(printable, lines)) + "\n"
