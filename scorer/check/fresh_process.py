"""The scenario of a fresh process: the same records by a new interpreter with empty caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scorer.check.diff import changed_fields
from scorer.check.row_values import compare_values, values_of
from scorer.check.tally import Tally
from scorer.progress import one_line
from scorer.records.record import Record
from scorer.rows import decode_scores

if TYPE_CHECKING:
    from scorer.check.subject import Subject

_PROGRAM: Final = (sys.executable, "-P", "-c", "from scorer.cli import main; main()")
"""-P: nothing of the current folder is imported, as with the installed command."""
_CACHES: Final = (
    *("XDG_CACHE_HOME", "CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("CUDA_CACHE_PATH", "TORCH_EXTENSIONS_DIR"),
)
"""Variables that name folders in which something compiled or proven is kept."""


def fresh_process(subject: Subject, tally: Tally) -> None:
    """`scorer score` in a new interpreter with empty compile caches, against this process."""
    expected = [values_of(row) for row in subject.scorer.score(subject.records)]
    with tempfile.TemporaryDirectory(prefix="scorer-check-") as name:
        folder = Path(name)
        source, out = folder / "records.jsonl", folder / "rows.jsonl"
        source.write_bytes(
            b"".join(
                record_line(record, number) for number, record in enumerate(subject.records, 1)
            )
        )
        command = [
            *(subject.program or _PROGRAM),
            *("score", str(source), "--output", str(out), "--quiet"),
            *_options(subject, folder),
        ]
        done = subprocess.run(
            command, env=_environment(folder), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = one_line(done.stderr)[-500:]
            tally.failure = f"the new process ended with exit code {done.returncode}: {said}"
            return
        manifest = json.loads(Path(f"{out}.manifest.json").read_text(encoding="utf-8"))
        changed = changed_fields(subject.reader.numerics, manifest["numerics"])
        if changed:
            tally.failure = f"the new process has another numerics key: {', '.join(changed)}"
        rows = decode_scores(out)
        for number, (values, row) in enumerate(zip(expected, rows, strict=True), start=1):
            compare_values(tally, values, values_of(row), f"record {number}")


def record_line(record: Record, number: int) -> bytes:
    """Return a record as a line of input, its number for its id."""
    keys = (
        *("prompt", "messages", "prompt_token_ids", "question", "state", "options", "label"),
        *("logprobs", "prompt_logprobs"),
    )
    fields = {key: value for key in keys if (value := getattr(record, key)) is not None}
    if record.targets:
        fields["targets"] = record.targets
    return msgspec.json.encode({"id": number, **fields}) + b"\n"


def _options(subject: Subject, folder: Path) -> list[str]:
    """Return the options under which ``scorer score`` does what this scorer does."""
    scorer, reader = subject.scorer, subject.reader
    options = {
        "model": str(scorer.checkpoint.path),
        "device": reader.model.device.type,
        "dtype": str(reader.numerics["dtype"]),
        "reduction": str(reader.numerics["reduction"]),
        "tokens-per-forward": str(reader.shape.tokens),
        "rows-per-forward": str(reader.shape.rows),
    }
    for name in ("isolation", "logprobs", "prompt_logprobs", "system", "labels"):
        if scorer.settings[name] is not None:
            options[name.replace("_", "-")] = str(scorer.settings[name])
    if scorer.settings["question_template"] is not None:
        template = folder / "question.jinja"
        template.write_text(str(scorer.settings["question_template"]), encoding="utf-8")
        options["question-template"] = str(template)
    flags = [
        f"--{name.replace('_', '-')}"
        for name in ("parse_special", "truncate_prompt")
        if scorer.settings[name]
    ]
    if not scorer.settings["shared_prefix"]:
        flags.append("--no-shared-prefix")
    # One word each, so that a value that begins with a dash is a value.
    return [*(f"--{name}={value}" for name, value in options.items()), *flags]


def _environment(folder: Path) -> dict[str, str]:
    """Return this process's variables, every cache a new empty folder, the package in reach."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for name in _CACHES:
        path = folder / name.lower()
        path.mkdir()
        environment[name] = str(path)
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment
