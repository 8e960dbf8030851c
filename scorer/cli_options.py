"""Options that several commands take: their values, help and checks. Nothing slow is imported."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Dtype(StrEnum):
    """The type of weights and activations."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class OrdersOption(StrEnum):
    """Which orders of its options a question is asked in."""

    cyclic = "cyclic"
    all = "all"
    balanced = "balanced"
    given = "given"


class Prompts(StrEnum):
    """What a benchmark's prompts are like: tokens each, a mix of lengths, several orderings."""

    sixty = "60"
    long = "170"
    mix = "mix"
    orderings = "orderings"
    all = "all"


class Reduction(StrEnum):
    """Where distributions are reduced."""

    auto = "auto"
    host = "host"
    device = "device"


class OnError(StrEnum):
    """What a record that can't be scored does."""

    row = "row"
    stop = "stop"


class Isolation(StrEnum):
    """How reads are kept apart."""

    packed = "packed"
    alone = "alone"


Input = Annotated[
    str, typer.Argument(metavar="INPUT", help="JSONL file, one record a line; - for stdin.")
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="Folder of a Qwen3 checkpoint, or a hub id.")
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a hub id; the commit is recorded.")
]
System = Annotated[
    str | None, typer.Option(help="System message for every chat that has none of its own.")
]
QuestionTemplate = Annotated[
    Path | None,
    typer.Option(help="Jinja file that renders a question; `scorer show` prints the default."),
]
ParseSpecial = Annotated[
    bool,
    typer.Option(
        "--parse-special", help="Read special tokens in `prompt` strings rendered beforehand."
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        help="What stands for the options: letters, digits, or words as in yes,no; a token each."
    ),
]
TruncatePrompt = Annotated[
    bool,
    typer.Option(
        "--truncate-prompt",
        help="Shorten prompts that are too long: a question or its state at the end, chats and raw "
        "prompts at the beginning.",
    ),
]


def at_least_one(value: int | None) -> int | None:
    """Pass a number on. Raises typer.BadParameter for one below 1."""
    if value is not None and value < 1:
        raise typer.BadParameter(f"must be at least 1, got {value}.")
    return value


DeviceOption = Annotated[Device, typer.Option(help="Where the model runs.")]
DtypeOption = Annotated[
    Dtype, typer.Option(help="auto: 16 bits on CUDA and on CPUs with AMX, float32 on others.")
]
IsolationOption = Annotated[
    Isolation, typer.Option(help="packed: many reads a forward, proven apart; alone: one, slow.")
]
TokensPerForward = Annotated[
    int | None,
    typer.Option(callback=at_least_one, help="Tokens of every forward (default: by device)."),
]
RowsPerForward = Annotated[
    int | None,
    typer.Option(callback=at_least_one, help="Rows of every lm_head call (default: by device)."),
]
NoSharedPrefix = Annotated[
    bool,
    typer.Option(
        "--no-shared-prefix", help="Compute a record's common prefix for each read; same bits."
    ),
]
Limit = Annotated[int | None, typer.Option(help="Only the first N records.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Count, tokenise and check; no model, no output.")
]
ManifestPath = Annotated[
    Path | None, typer.Option(help="Where to write the manifest (default: beside the output).")
]
ForceNew = Annotated[bool, typer.Option("--force-new", help="Replace an output that exists.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue after the rows that an interrupted job wrote.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors on stderr.")]
