"""The command line: parse, one library call, print, exit code. Nothing is computed here.

Everything slow to import is imported by the command that needs it, so that ``scorer --help``
answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from scorer.cli_options import (
    Device,
    DeviceOption,
    DryRun,
    Dtype,
    DtypeOption,
    ForceNew,
    Input,
    Isolation,
    IsolationOption,
    Labels,
    Limit,
    ManifestPath,
    Model,
    NoSharedPrefix,
    OnError,
    OrdersOption,
    ParseSpecial,
    Prompts,
    QuestionTemplate,
    Quiet,
    Reduction,
    Resume,
    Revision,
    RowsPerForward,
    System,
    TokensPerForward,
    TruncatePrompt,
    at_least_one,
)
from scorer.errors import ScorerError, UsageError
from scorer.job.output import print_out

EXIT_FINDINGS = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_CLOSED_PIPE = 128 + signal.SIGPIPE

_REPORTING = frozenset(
    {
        "rows_from",
        "summary",
        "report",
        "fail_if",
        "seed",
        "pride_fraction",
        "force_new",
        "quiet",
        "json",
    }
)
"""What `scorer compare` takes beside --from."""

app = typer.Typer(
    name="scorer",
    help="Bitwise reproducible classifier scores from Qwen3 models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from scorer import __version__

        typer.echo(f"scorer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def score(
    source: Input,
    model: Model,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Output JSONL file; - for stdout.")
    ] = "-",
    revision: Revision = None,
    device: DeviceOption = Device.auto,
    dtype: DtypeOption = Dtype.auto,
    isolation: IsolationOption = Isolation.packed,
    reduction: Annotated[
        Reduction, typer.Option(help="Where distributions are reduced; the bits are the same.")
    ] = Reduction.auto,
    tokens_per_forward: TokensPerForward = None,
    rows_per_forward: RowsPerForward = None,
    no_shared_prefix: NoSharedPrefix = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Next-token entries for records that don't set it; 0: the chosen only."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="The same at every position of the prompt.")
    ] = None,
    system: System = None,
    question_template: QuestionTemplate = None,
    parse_special: ParseSpecial = False,
    truncate_prompt: TruncatePrompt = False,
    labels: Labels = "letters",
    limit: Limit = None,
    dry_run: DryRun = False,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Only the I-th of N parts of the lines, as in 2/7."),
    ] = None,
    on_error: Annotated[
        OnError,
        typer.Option(
            help="row: write an error row and continue; stop: stop before the first error."
        ),
    ] = OnError.row,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that tokenise and format rows (default: by cores)."),
    ] = None,
    manifest: ManifestPath = None,
    resume: Resume = False,
    force_new: ForceNew = False,
    quiet: Quiet = False,
    json: Annotated[
        bool, typer.Option("--json", help="The closing summary as one JSON line.")
    ] = False,
) -> None:
    """Score every record of a JSONL file, in input order."""
    from scorer.job.job import Job, cache_dir, summary_json
    from scorer.job.shard import Shard
    from scorer.progress import Reporter
    from scorer.records.source import Source
    from scorer.scoring import Scorer

    out = None if output == "-" else Path(output)
    if manifest is None and out is not None:
        manifest = Path(f"{out}.manifest.json")
    with Source(source) as records:
        job = Job(
            records,
            out,
            manifest,
            limit,
            force_new,
            Reporter(quiet),
            resume=resume,
            shard=None if shard is None else Shard.parse(shard),
            on_error=on_error.value,
            workers=workers,
        )
        counts = job.check()
        scorer = Scorer(
            model,
            revision=revision,
            device=device.value,
            dtype=dtype.value,
            isolation=isolation.value,
            reduction=reduction.value,
            tokens_per_forward=tokens_per_forward,
            rows_per_forward=rows_per_forward,
            shared_prefix=not no_shared_prefix,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            system=system,
            question_template=_read_template(question_template),
            parse_special=parse_special,
            truncate_prompt=truncate_prompt,
            labels=labels,
            cache=cache_dir(),
        )
        summary = job.dry_run(scorer, counts) if dry_run else job.run(scorer, counts)
    if json:
        aside = out is None and not dry_run  # the rows are on stdout
        print_out(summary_json(summary), aside=aside)
    if summary.errors:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def compare(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="JSONL file of questions; - for stdin.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder of a Qwen3 checkpoint, or a hub id.")
    ] = None,
    rows_from: Annotated[
        Path | None,
        typer.Option("--from", help="Rows written before: report again, without a model."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Rows, a line a question; - for stdout.")
    ] = "-",
    orders: Annotated[
        OrdersOption, typer.Option(help="given: each record's own list, `orders`.")
    ] = OrdersOption.cyclic,
    max_orders: Annotated[
        int | None,
        typer.Option(callback=at_least_one, help="Ask a sample of N where there are more."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of samples, splits and intervals, with a question's content.")
    ] = 0,
    noise_sample: Annotated[
        int, typer.Option(min=0, help="Questions read twice, to measure the noise floor.")
    ] = 32,
    pride_fraction: Annotated[
        float, typer.Option(help="Share of the questions that PriDe's prior is estimated on.")
    ] = 0.1,
    summary: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as one HTML file.")] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Exit 1 if it holds, as 'flip_rate>0.2'; repeats."),
    ] = None,
    revision: Revision = None,
    device: DeviceOption = Device.auto,
    dtype: DtypeOption = Dtype.auto,
    isolation: IsolationOption = Isolation.packed,
    tokens_per_forward: TokensPerForward = None,
    rows_per_forward: RowsPerForward = None,
    no_shared_prefix: NoSharedPrefix = False,
    system: System = None,
    question_template: QuestionTemplate = None,
    truncate_prompt: TruncatePrompt = False,
    labels: Labels = "letters",
    limit: Limit = None,
    dry_run: DryRun = False,
    manifest: ManifestPath = None,
    force_new: ForceNew = False,
    resume: Resume = False,
    quiet: Quiet = False,
    json: Annotated[bool, typer.Option("--json", help="All figures as one JSON line.")] = False,
) -> None:
    """Ask every question in several orders of its options, and report what the order did."""
    from scorer.compare.job import Outcome, conclude_from, rehearse, run
    from scorer.compare.orderings import Orders
    from scorer.compare.thresholds import Threshold
    from scorer.job.job import Job, cache_dir
    from scorer.progress import Reporter
    from scorer.records.source import Source
    from scorer.scoring import Scorer

    thresholds = [Threshold.parse(text) for text in fail_if or ()]
    outcome = Outcome(
        seed, pride_fraction, thresholds, summary, report, force_new or resume, Reporter(quiet)
    )
    outcome.check()
    if rows_from is not None:
        _only_for_reports(context)
        findings = conclude_from(rows_from, outcome)
    elif source is None or model is None:
        raise UsageError("compare needs INPUT and --model, or --from ROWS")
    else:
        out = None if output == "-" else Path(output)
        if manifest is None and out is not None:
            manifest = Path(f"{out}.manifest.json")
        asked = Orders(orders.value, max_orders, seed)
        with Source(source) as records:
            job = Job(records, out, manifest, limit, force_new, outcome.reporter, resume=resume)
            counts = job.check()
            scorer = Scorer(
                model,
                revision=revision,
                device=device.value,
                dtype=dtype.value,
                isolation=isolation.value,
                tokens_per_forward=tokens_per_forward,
                rows_per_forward=rows_per_forward,
                shared_prefix=not no_shared_prefix,
                system=system,
                question_template=_read_template(question_template),
                truncate_prompt=truncate_prompt,
                labels=labels,
                cache=cache_dir(),
            )
            if dry_run:
                raise typer.Exit(0 if rehearse(job, scorer, asked) else EXIT_FINDINGS)
            findings = run(job, scorer, counts, asked, noise_sample, outcome)
    if json:
        aside = rows_from is None and output == "-"  # the rows are on stdout
        print_out(findings.summary().decode(), end="", aside=aside)
    for failure in findings.failures:
        print(f"scorer: {failure}", file=sys.stderr)
    if not findings.clean:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def check(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[INPUT]", help="JSONL file; - for stdin (default: the examples)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder of a Qwen3 checkpoint, or a hub id.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything.")] = False,
    full: Annotated[bool, typer.Option("--full", help="More of everything; every rung.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this scenario; repeats.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="All but this scenario; repeats.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the scenarios' names.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="SCORES", help="Score these rows' records again and compare instead."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(callback=at_least_one, help="With --against: N rows, chosen by their ids."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write all results as a JSON file.")] = None,
    revision: Revision = None,
    device: DeviceOption = Device.auto,
    dtype: DtypeOption = Dtype.auto,
    isolation: Annotated[
        Isolation | None, typer.Option(help="How reads are kept apart (default: packed).")
    ] = None,
    reduction: Annotated[
        Reduction, typer.Option(help="Where distributions are reduced; the bits are the same.")
    ] = Reduction.auto,
    tokens_per_forward: TokensPerForward = None,
    rows_per_forward: RowsPerForward = None,
    no_shared_prefix: NoSharedPrefix = False,
    system: System = None,
    question_template: QuestionTemplate = None,
    parse_special: ParseSpecial = False,
    truncate_prompt: TruncatePrompt = False,
    labels: Annotated[
        str | None, typer.Option(help="What stands for the options (default: letters).")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(callback=at_least_one, help="The first N records (default: by level)."),
    ] = None,
    force_new: Annotated[
        bool, typer.Option("--force-new", help="Replace a report that exists.")
    ] = False,
    quiet: Quiet = False,
    json: Annotated[bool, typer.Option("--json", help="All results as one JSON line.")] = False,
) -> None:
    """Prove, on this machine with this model, that scores are bitwise reproducible."""
    from scorer.check.run import SCENARIOS, choose

    if list_:
        from scorer.check.report import listing

        print_out(listing(SCENARIOS), end="")
        return
    if model is None:
        raise UsageError("check needs --model: a folder of a Qwen3 checkpoint, or a hub id")
    if quick and full:
        raise UsageError("--quick does less, --full does more: choose one")
    scenarios = choose(only or (), skip or ())
    from scorer.check.against import Earlier
    from scorer.check.job import Report, bundled_examples, check_against
    from scorer.check.job import check as check_records
    from scorer.check.subject import FULL, NORMAL, QUICK
    from scorer.progress import Reporter
    from scorer.records.source import Source
    from scorer.scoring import Scorer

    document = Report(report, force_new, json)
    given: dict[str, Any] = {
        "device": None if device is Device.auto else device.value,
        "dtype": None if dtype is Dtype.auto else dtype.value,
        "isolation": None if isolation is None else isolation.value,
        "reduction": None if reduction is Reduction.auto else reduction.value,
        "tokens_per_forward": tokens_per_forward,
        "rows_per_forward": rows_per_forward,
        "shared_prefix": False if no_shared_prefix else None,
        "system": system,
        "question_template": _read_template(question_template),
        "parse_special": parse_special or None,
        "truncate_prompt": truncate_prompt or None,
        "labels": labels,
    }
    if against is None:
        if sample is not None:
            raise UsageError("--sample needs --against SCORES")
        names = [source] if source is not None else bundled_examples()
        options = {name: value for name, value in given.items() if value is not None}
        scorer = Scorer(model, revision=revision, **options)
        level = QUICK if quick else FULL if full else NORMAL
        code = check_records(names, scorer, scenarios, level, limit, document, Reporter(quiet))
    else:
        if only or skip or quick or full or limit is not None:
            raise UsageError(
                "--against compares rows and runs no scenarios: leave out --only, --skip, "
                "--quick, --full and --limit"
            )
        earlier = Earlier.read(against)
        with Source(source if source is not None else earlier.input_name()) as records:
            from scorer.job.job import cache_dir

            options = earlier.options(given)
            scorer = Scorer(model, revision=revision, cache=cache_dir(), **options)
            code = check_against(records, scorer, earlier, sample, document, Reporter(quiet))
    if code:
        raise typer.Exit(code)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="Rows of scorer score.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Other rows of the same records.")],
    quiet: Quiet = False,
    json: Annotated[bool, typer.Option("--json", help="All results as one JSON line.")] = False,
) -> None:
    """Compare two files of scores bit by bit and record by record, without a model."""
    from scorer.check.diff import diff as compare_files
    from scorer.progress import Reporter

    difference = compare_files(before, after)
    if json:
        from json import dumps

        print_out(dumps(difference.fields()))
    rows = [("verdict", difference.verdict), *difference.table()]
    Reporter(quiet).table(f"{before} and {after}", rows)
    if not difference.equal:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def bench(
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="tiny, 0.6B, 1.7B, 4B, 8B, 14B or 32B with random weights (default: tiny on the "
            "CPU, 0.6B on CUDA).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Folder or hub id: a checkpoint's own weights."),
    ] = None,
    device: DeviceOption = Device.auto,
    dtype: DtypeOption = Dtype.auto,
    prompts: Annotated[
        Prompts,
        typer.Option(
            help="Tokens of every prompt, a lognormal mix of 20 to 1500, or records in orderings."
        ),
    ] = Prompts.all,
    orderings: Annotated[
        int, typer.Option(min=2, help="Reads of a record that begin alike, for orderings.")
    ] = 4,
    prefix: Annotated[int, typer.Option(min=1, help="Tokens that they have in common.")] = 256,
    own: Annotated[int, typer.Option(min=1, help="Tokens of each after those.")] = 48,
    forwards: Annotated[
        int, typer.Option(min=1, help="Real tokens of a timed round, in full forwards.")
    ] = 50,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds in which all take turns; the median counts.")
    ] = 3,
    tokens_per_forward: TokensPerForward = None,
    rows_per_forward: RowsPerForward = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH.svg", help="Draw the rates, as an SVG file.")
    ] = None,
    quiet: Quiet = False,
    json: Annotated[bool, typer.Option("--json", help="All figures as one JSON line.")] = False,
) -> None:
    """Time isolated reads beside plain transformers, side by side in one run; needs no weights."""
    from scorer.bench.report import check_path, draw, show
    from scorer.bench.run import run
    from scorer.bench.workloads import Orderings
    from scorer.progress import Reporter

    if plot is not None:
        check_path(plot)
    report = run(
        shape=shape,
        model=model,
        device=device.value,
        dtype=dtype.value,
        prompts=prompts.value,
        forwards=forwards,
        rounds=rounds,
        orderings=Orderings(orderings, prefix, own),
        tokens_per_forward=tokens_per_forward,
        rows_per_forward=rows_per_forward,
        reporter=Reporter(quiet),
    )
    if json:
        print_out(report.json().decode(), end="")
    else:
        show(report)
    if plot is not None:
        draw(report, plot)


@app.command()
def show(
    source: Input,
    model: Model,
    line: Annotated[int, typer.Option("--line", "-n", help="The physical line, from 1.")] = 1,
    revision: Revision = None,
    system: System = None,
    question_template: QuestionTemplate = None,
    parse_special: ParseSpecial = False,
    truncate_prompt: TruncatePrompt = False,
    labels: Labels = "letters",
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what one record becomes: rendered text, token ids, labels and their ids."""
    from scorer.records.source import Source
    from scorer.scoring import Scorer
    from scorer.show import as_text, describe, show_line

    with Source(source) as records:
        scorer = Scorer(
            model,
            revision=revision,
            system=system,
            question_template=_read_template(question_template),
            parse_special=parse_special,
            truncate_prompt=truncate_prompt,
            labels=labels,
        )
        plan = show_line(scorer, records, line)
    if json:
        from json import dumps

        print_out(dumps(describe(scorer, plan), ensure_ascii=False))
    else:
        print_out(as_text(scorer, plan), end="")


def _only_for_reports(context: typer.Context) -> None:
    """Refuse options that ask questions or write rows, where rows are only reported again."""
    asking = [
        "INPUT" if name == "source" else f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in _REPORTING
        and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if asking:
        raise UsageError(f"--from only re-reports existing rows; remove {', '.join(asking)}")


def _read_template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"--question-template {path}: can't be read: {error.strerror or error}; name a file"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--question-template {path}: can't be read as UTF-8: {error}; save it as UTF-8"
        ) from error
    if not text.strip():
        raise UsageError(
            f"--question-template {path}: holds no text; leave the option out for the default"
        )
    return text


def _keep_streams_apart() -> None:
    """See that no file of ours gets the number of a standard stream that is closed.

    Python, C libraries and signal handlers write to those numbers.
    """
    taken = [os.open(os.devnull, os.O_WRONLY)]
    while taken[-1] <= 2:
        taken.append(os.open(os.devnull, os.O_WRONLY))
    for descriptor in taken:
        if descriptor not in (1, 2):
            os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _write_utf8() -> None:
    """See that stdout is UTF-8, as rows and JSON are, whatever the locale."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def main() -> NoReturn:
    """Run the command line; whatever stops it becomes one line on stderr and an exit code."""
    from scorer.job.stopping import terminate

    _keep_streams_apart()
    _write_utf8()
    code = 0
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)
    try:
        code = _run(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Rich makes an exit of it
            code = EXIT_CLOSED_PIPE
        else:
            why = f"a library ended the process, with {stop.code!r}"
            raise RuntimeError(why) from stop  # noqa: TRY004  (no type is wrong)
    except OSError as error:
        # What is left in the buffer can't be written; keep Python from trying again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            code = EXIT_CLOSED_PIPE
        elif code == 0:
            code = _stopped(f"<stdout>: can't be written: {error.strerror}", UsageError.exit_code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    # Not Typer's own main: it would make a closed pipe exit 1, and frames errors over many lines.
    command = typer.main.get_command(app)
    try:
        with command.make_context("scorer", arguments or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except ScorerError as error:
        return _stopped("; ".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except typer.TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return _stopped(f"{message.rstrip('.')}; see `scorer --help`", error.exit_code)
    except KeyboardInterrupt:
        return _stopped("interrupted", EXIT_INTERRUPTED)
    return 0


def _stopped(message: str, code: int) -> int:
    from scorer.progress import one_line

    print(f"scorer: {one_line(message)}", file=sys.stderr)
    return code
