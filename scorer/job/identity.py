"""What a job is: the fields of its manifest, and with what another run must agree to resume it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer import __version__
from scorer.manifest import hash_files, sha256_of, spelled

if TYPE_CHECKING:
    from scorer.job.job import Job
    from scorer.manifest import Json
    from scorer.records.source import Counts
    from scorer.scoring import Scorer


def identity(job: Job, scorer: Scorer, counts: Counts) -> dict[str, Json]:
    """Return what of a manifest is known without the weights; equal for equal runs."""
    shard = None if job.shard is None else str(job.shard)
    return {
        "scorer": __version__,
        "model": model_identity(scorer),
        "settings": {**scorer.settings, "limit": job.limit, "shard": shard},
        "input": {
            "name": spelled(job.source.name),
            "sha256": counts.sha256,
            "bytes": counts.bytes,
            "records": counts.records,
            "blank_lines": counts.blank,
        },
    }


def model_identity(scorer: Scorer) -> dict[str, Json]:
    """Return what of a model and its tokenizer is known without the weights."""
    checkpoint = scorer.checkpoint
    tokenizer = [checkpoint.path / name for name in ("tokenizer.json", "tokenizer_config.json")]
    return {
        "name": spelled(checkpoint.name),
        "revision": checkpoint.revision,
        "config_sha256": sha256_of(checkpoint.config),
        "tokenizer_sha256": hash_files(file for file in tokenizer if file.is_file()),
        "template_sha256": scorer.prompter.template_sha256,
    }


def produced_by(job: Job, scorer: Scorer, counts: Counts) -> dict[str, Json]:
    """Return what produces a job's rows, for its manifest; equal for equal runs."""
    reader = scorer.reader
    known = identity(job, scorer, counts)
    model = known["model"]
    assert isinstance(model, dict)
    return {
        **known,
        "model": {**model, "weights_sha256": reader.numerics["weights_sha256"]},
        "numerics_key": reader.numerics_key,
        "numerics": reader.numerics,
        "selftest": {"comparisons": reader.selftests.comparisons},
    }


def work_done(scorer: Scorer) -> dict[str, int]:
    """Return how many forwards, reads and tokens a scorer has computed."""
    counts = scorer.reader.counts
    return {
        "forwards": counts.forwards,
        "reads": counts.reads,
        "read_tokens": counts.real_tokens + counts.shared_tokens,
        "shared_tokens": counts.shared_tokens,
        "forward_tokens": counts.forward_tokens,
    }
