"""Files as they come: odd but good, damaged, compressed, anything at all. Never a traceback."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.errors import InputError
from scorer.records import lines
from scorer.records.record import BadLine, Record
from scorer.records.source import Counts, Source
from tests.commands import REPO, Bench, run

DATA = REPO / "tests" / "data"
HAS_ZSTD = sys.version_info >= (3, 14) or (
    importlib.util.find_spec("backports") is not None
    and importlib.util.find_spec("backports.zstd") is not None
)
needs_zstd = pytest.mark.skipif(
    not HAS_ZSTD, reason="no zstd in this Python: pip install 'scorer[zstd]'"
)


def zstd_compress(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    checksum: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}  # as the zstd program
    compressed: bytes = zstd.compress(data, options=checksum)
    return compressed


def read(path: Path) -> tuple[Counts, list[Record | BadLine]]:
    with Source(path) as source:
        return source.check_ids(), list(source.records())


# -- the corpus


def test_odd_lines_are_good_and_mean_what_they_say(bench: Bench) -> None:
    odd = DATA / "odd-lines.jsonl"
    plain = bench.folder / "plain.jsonl"
    prompts = ["one", "a\u2028b\u2029c\u0085d", "🙂", "a\0b", *["one"] * 6]
    plain.write_text(
        "".join(json.dumps({"prompt": prompt, "logprobs": 0}) + "\n" for prompt in prompts)
    )

    done = run("score", odd, "-m", bench.model, "--device", "cpu")
    expected = run("score", plain, "-m", bench.model, "--device", "cpu").rows

    assert done.code == 0
    ids = [row["id"] for row in done.rows]
    assert ids == [
        "bom", "separators", "pair", "nul", "twice", "huge", 2**64 - 1, "deep", 11, "no newline",
    ]  # fmt: skip
    assert [row["line"] for row in done.rows] == [1, 2, 4, 5, 7, 8, 9, 10, 11, 12]
    for row, other in zip(done.rows, expected, strict=True):
        assert row["logprobs"] == other["logprobs"]
        assert row["prompt_sha256"] == other["prompt_sha256"]
    assert b'"n":123456789012345678901234567890,"x":1e-400' in done.out


def test_every_bad_line_has_its_place_and_a_reason_and_moves_nothing(bench: Bench) -> None:
    bad = (DATA / "bad-lines.jsonl").read_bytes().splitlines(keepends=True)
    good = b'{"id": "good %d", "prompt": "Is it?", "logprobs": 1}\n'
    mixed = bench.folder / "mixed.jsonl"
    mixed.write_bytes(b"".join(line.rstrip(b"\n") + b"\n" + good % n for n, line in enumerate(bad)))
    alone = bench.folder / "alone.jsonl"
    alone.write_bytes(b"".join(good % n for n in range(len(bad))))

    done = run("score", mixed, "-m", bench.model, "--device", "cpu", "-q")
    clean = run("score", alone, "-m", bench.model, "--device", "cpu", "-q")

    failed = [row for row in done.rows if "error" in row]
    assert done.code == 1
    assert len(failed) > 40
    assert all(row["line"] % 2 == 1 and len(row["error"]["message"]) > 20 for row in failed)
    kept = [row for row in done.rows if str(row["id"]).startswith("good ")]
    for row, other in zip(kept, clean.rows, strict=True):
        assert {**row, "line": 0} == {**other, "line": 0}
    # and each can be the one that stops a job, named with its place
    stop = run("score", mixed, "-m", bench.model, "--device", "cpu", "-q", "--on-error", "stop")
    assert stop.code == 1
    assert re.fullmatch(rf"scorer: {re.escape(str(mixed))}:1: [^\n]+\n", stop.err)


# -- anything at all


pieces = st.sampled_from(
    [b'{"prompt": "x"}', b'{"id": 1, "prompt": "y"}', b"\n", b"\r\n", b"\xef\xbb\xbf", b"{", b"}",
     b"[", b"]", b'"', b"\\", b",", b":", b"NaN", b"1e999", b"9" * 400, b"\\ud800", b"\xff", b"\0",
     b"\xc2\x85", b"\xe2\x80\xa8", b"null", b"true", b" ", b"[" * 200, b'{"options": ["a", "b"]}']
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(pieces | st.binary(max_size=8), max_size=12).map(b"".join))
def test_whatever_the_bytes_every_line_is_a_record_or_says_why_not(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(data)
        refusal = ""
        counts, found = Counts(0, 0, 0, 0, ""), list[Record | BadLine]()
        try:
            counts, found = read(path)
        except InputError as error:
            refusal = str(error)
        if refusal:
            assert re.match(rf"{re.escape(str(path))}:\d+: ids are unique", refusal)
            return
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        content = [number for number, line in enumerate(lines, 1) if line.strip(b" \t\r\n")]
        assert [row.line for row in found] == content
        assert counts.records == len(found)
        for row in found:
            if isinstance(row, BadLine):
                assert row.error.code
                assert len(str(row.error)) > 10
                assert "\n" not in str(row.error)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([".gz", ".zst"]))
def test_whatever_the_bytes_of_a_compressed_file(data: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"in.jsonl{suffix}"
        path.write_bytes(data)
        refusal = str(path)
        try:
            read(path)
        except InputError as error:
            refusal = str(error)
        assert str(path) in refusal


# -- compressed


@pytest.mark.parametrize("suffix", [".gz", pytest.param(".zst", marks=needs_zstd)])
def test_a_compressed_file_is_the_file(tmp_path: Path, suffix: str) -> None:
    data = b"".join(b'{"id": "r%d", "prompt": "x"}\n\n' % n for n in range(5000))
    plain, packed = tmp_path / "in.jsonl", tmp_path / f"in.jsonl{suffix}"
    plain.write_bytes(data)
    compress = gzip.compress if suffix == ".gz" else zstd_compress
    half = data.index(b"\n", len(data) // 2) - 3
    packed.write_bytes(compress(data[:half]) + compress(data[half:]))  # as two files put together

    assert read(packed) == read(plain)

    whole = packed.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 20):
        packed.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"in\.jsonl\.\w+:\d+: can't be decompressed: "):
            read(packed)
    packed.write_bytes(whole[:100] + bytes([whole[100] ^ 255]) + whole[101:])
    with pytest.raises(InputError, match="can't be decompressed: "):
        read(packed)
    packed.write_bytes(data)
    with pytest.raises(InputError, match="or drop the suffix if it isn't one"):
        read(packed)


def test_zstd_that_is_missing_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(b"")
    monkeypatch.setattr("scorer.records.compression._zstd", lambda: None)
    with pytest.raises(InputError, match=r"pip install 'scorer\[zstd\]', or decompress the file"):
        read(path)


def test_a_line_that_is_longer_than_any_record_is_never_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    monkeypatch.setattr(lines, "PIECE", 64)
    fits = b'{"id": "fits", "prompt": "%s"}\n' % (b"x" * 971)
    long = b'{"id": "long", "prompt": "%s"}\n' % (b"x" * 5000)
    path = tmp_path / "in.jsonl"
    path.write_bytes(fits + long + b'{"id": "after", "prompt": "x"}\n' + long.rstrip(b"\n"))
    assert len(fits) == 1000

    counts, (first, second, third, fourth) = read(path)

    assert (first.id, third.id, third.line) == ("fits", "after", 3)
    assert counts.bytes == path.stat().st_size
    for row in (second, fourth):
        assert isinstance(row, BadLine)
        assert (row.id, row.error.code) == (None, "line_too_long")
    assert (counts.records, counts.unparsable) == (4, 2)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_fifo(tmp_path: Path, suffix: str) -> None:
    fifo = tmp_path / f"pipe{suffix}"
    os.mkfifo(fifo)
    data = b'{"id": 1, "prompt": "x"}\n'
    sent = gzip.compress(data) if suffix else data
    writer = threading.Thread(target=fifo.write_bytes, args=(sent,))
    writer.start()
    counts, (row,) = read(fifo)
    writer.join()
    assert (counts.records, row.id) == (1, 1)


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        read(tmp_path)
