"""Score questions from Python: `python examples/api.py [MODEL]`."""

from __future__ import annotations

import sys
from pathlib import Path

from scorer import Scorer

QUESTION = "What is the sentiment of this review?"
REVIEWS = [
    "The soup was cold and the waiter rude.",
    "A wonderful little museum, we loved every room.",
    "The parcel came on Tuesday.",
]


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "demo-model"
    scorer = Scorer(model)
    records = [
        {"question": QUESTION, "state": review, "options": ["positive", "negative", "neutral"]}
        for review in REVIEWS
    ]
    for review, score in zip(REVIEWS, scorer.score(records), strict=True):
        assert score.options
        shares = ", ".join(f"{option.text} {option.probability:.3f}" for option in score.options)
        print(f"{review}\n    {score.answer} ({shares}; label mass {score.label_mass:.3f})")


if __name__ == "__main__":
    main()
