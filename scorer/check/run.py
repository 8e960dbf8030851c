"""``scorer check``: is a read's score a function of the read alone, on this machine? With proof.

The scenarios, in the order in which they run, and what a run of them comes to. A scenario that
compared nothing has failed: it proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from scorer.check import fresh_process, plain, scenarios, sharing
from scorer.check.subject import NotRunError, Subject
from scorer.check.tally import Tally
from scorer.errors import DeviceError, InterruptError, ScorerError, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Kind(StrEnum):
    """What a scenario is for.

    proof: a difference fails the check. report: a difference is told and fails nothing. control:
    a difference is what is expected, and shows that the check can fail.
    """

    proof = "proof"
    report = "report"
    control = "control"


class Status(StrEnum):
    """What a scenario came to."""

    passed = "passed"
    failed = "failed"
    reported = "reported"
    shown = "shown"
    not_shown = "not shown"
    not_run = "not run"
    interrupted = "interrupted"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of the things a check tries; ``name`` is stable."""

    name: str
    kind: Kind
    run: Callable[[Subject, Tally], None]

    @property
    def about(self) -> str:
        """Say in a sentence what is compared."""
        return (self.run.__doc__ or "").partition("\n")[0].rstrip(".")


SCENARIOS: Final = (
    Scenario("repeat", Kind.proof, scenarios.repeat),
    Scenario("company", Kind.proof, scenarios.company),
    Scenario("position", Kind.proof, scenarios.position),
    Scenario("contents", Kind.proof, scenarios.contents),
    Scenario("partner-lengths", Kind.proof, scenarios.partner_lengths),
    Scenario("lengths", Kind.proof, scenarios.lengths),
    Scenario("shuffled", Kind.proof, scenarios.shuffled),
    Scenario("requests", Kind.proof, scenarios.requests),
    Scenario("chat-turn", Kind.proof, plain.chat_turn),
    Scenario("fresh-process", Kind.proof, fresh_process.fresh_process),
    Scenario("shared-prefix", Kind.proof, sharing.shared_prefix),
    Scenario("hidden-states", Kind.proof, scenarios.hidden_states),
    Scenario("reduction", Kind.proof, scenarios.reduction),
    Scenario("graph", Kind.proof, scenarios.graph),
    Scenario("alone", Kind.report, scenarios.alone),
    Scenario("control", Kind.control, plain.control),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one scenario came to. reason: why it was not run, or what failed; "" otherwise."""

    scenario: Scenario
    status: Status
    tally: Tally
    seconds: float
    reason: str = ""


@dataclass(slots=True)
class Outcome:
    """The results so far. stopped: what ended the run before its end, None if nothing did."""

    results: list[Result] = field(default_factory=list)
    stopped: BaseException | None = None

    def of(self, *statuses: Status) -> list[Result]:
        """Return the results that have one of these."""
        return [result for result in self.results if result.status in statuses]

    @property
    def proven(self) -> Tally:
        """All comparisons of the proofs that were run."""
        total = Tally()
        for result in self.results:
            if result.scenario.kind is Kind.proof:
                total.comparisons += result.tally.comparisons
                total.mismatches += result.tally.mismatches
                total.largest = max(total.largest, result.tally.largest)
        return total

    @property
    def control(self) -> Result | None:
        """The negative control, None where it was not chosen."""
        return next((r for r in self.results if r.scenario.kind is Kind.control), None)

    @property
    def passed(self) -> bool:
        """Whether the run came to its end, a proof compared something, and nothing has failed."""
        compared = self.proven.comparisons > 0
        return self.stopped is None and compared and not self.of(Status.failed)


def choose(only: Sequence[str], skip: Sequence[str]) -> tuple[Scenario, ...]:
    """Return the scenarios of these names, in their own order. Raises UsageError."""
    known = [scenario.name for scenario in SCENARIOS]
    for name in (*only, *skip):
        if name not in known:
            raise UsageError(f"no scenario {name!r}; there are {', '.join(known)}")
    chosen = tuple(
        scenario
        for scenario in SCENARIOS
        if (not only or scenario.name in only) and scenario.name not in skip
    )
    if not chosen:
        raise UsageError("--only and --skip leave no scenario to run")
    return chosen


def run(
    subject: Subject,
    scenarios: Sequence[Scenario],
    doing: Callable[[Scenario], AbstractContextManager[None]],
) -> Iterator[Outcome]:
    """Run scenarios; yield what there is after each of them.

    doing: entered while a scenario runs. What stops the run (an interruption, a device that
    fails) is in the last outcome, with the scenarios that were left as not run.
    """
    outcome = Outcome()
    for number, scenario in enumerate(scenarios):
        result, stopped = _one(subject, scenario, doing)
        outcome.results.append(result)
        if stopped is not None:
            outcome.stopped = stopped
            outcome.results += [
                Result(left, Status.not_run, Tally(), 0.0, "the check was stopped before")
                for left in scenarios[number + 1 :]
            ]
        yield outcome
        if stopped is not None:
            return


def _one(
    subject: Subject,
    scenario: Scenario,
    doing: Callable[[Scenario], AbstractContextManager[None]],
) -> tuple[Result, BaseException | None]:
    import torch

    tally = Tally()
    started = time.perf_counter()

    def result(status: Status, reason: str = "") -> Result:
        return Result(scenario, status, tally, time.perf_counter() - started, reason)

    try:
        with doing(scenario):
            scenario.run(subject, tally)
    except NotRunError as reason:
        return result(Status.not_run, str(reason)), None
    except (KeyboardInterrupt, InterruptError) as stop:
        return result(Status.interrupted, "interrupted"), stop
    except (DeviceError, torch.OutOfMemoryError, torch.AcceleratorError) as fault:
        error = fault if isinstance(fault, DeviceError) else DeviceError(_fault(fault))
        return result(Status.failed, str(error)), error
    except ScorerError as error:
        return result(Status.failed, str(error)), None
    return result(*_judged(scenario.kind, tally)), None


def _fault(error: Exception) -> str:
    return f"the device failed in a check: {error}; a smaller --tokens-per-forward needs less"


def _judged(kind: Kind, tally: Tally) -> tuple[Status, str]:
    if tally.failure:
        return Status.failed, tally.failure
    if tally.comparisons == 0:
        return Status.failed, "nothing was compared, so nothing is proven"
    if kind is Kind.report:
        return Status.reported, ""
    if kind is Kind.control:
        return (Status.shown, "") if tally.mismatches else (Status.not_shown, "")
    if tally.mismatches:
        return Status.failed, f"{tally.mismatches:,} of {tally.comparisons:,} values moved"
    return Status.passed, ""
