"""Pieces of whole lines against a whole input that is looked at in one go."""

from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.records import lines as lines_module
from scorer.records.lines import BOM, Lines, pieces

inputs = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bc", b" ", b"\t", b"{}", b"\x0b", BOM]),
    max_size=30,
).map(b"".join)


def cut(data: bytes, piece: int, size: int | None = None) -> list[Lines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "PIECE", piece)
        return list(pieces(io.BufferedReader(io.BytesIO(data), 16), size))


def records(data: bytes) -> list[tuple[int, bytes]]:
    split = data.removeprefix(BOM).split(b"\n")
    return [(n, line.strip(b" \t\r")) for n, line in enumerate(split, 1) if line.strip(b" \t\r")]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@settings(max_examples=300, deadline=None)
@given(inputs, st.integers(1, 20), st.none() | st.integers(0, 40))
def test_pieces_are_the_input(data: bytes, piece: int, size: int | None) -> None:
    seen = data[:size]
    got = cut(data, piece, size)
    assert b"".join(lines.data for lines in got) == seen
    assert [pair for lines in got for pair in lines.contents()] == records(seen)
    assert sum(lines.count for lines in got) == len(io.BytesIO(seen).readlines())
    at = 0
    for lines in got:
        assert lines.first == 1 + seen[:at].count(b"\n")
        assert lines.records == len(list(lines.contents()))
        assert (lines.before.bytes, lines.before.sha256.hexdigest()) == (at, sha256(seen[:at]))
        at += len(lines.data)
        assert lines.data.endswith(b"\n") or at == len(seen)
        assert (lines.after.bytes, lines.after.sha256.hexdigest()) == (at, sha256(seen[:at]))


@settings(max_examples=300, deadline=None)
@given(inputs, st.integers(1, 20))
def test_where_a_line_ends(data: bytes, piece: int) -> None:
    whole = data.split(b"\n")
    for lines in cut(data, piece):
        for number, _ in lines.contents():
            end = lines.end_of(number)
            upto = b"\n".join(whole[:number]) + b"\n" * (number < len(whole))
            assert (end.line, end.bytes, end.sha256) == (number, len(upto), sha256(upto))


@settings(max_examples=300, deadline=None)
@given(inputs, st.integers(1, 20), st.integers(0, 5), st.integers(1, 5))
def test_some_records_of_a_piece(data: bytes, piece: int, start: int, count: int) -> None:
    for lines in cut(data, piece):
        all_of_them = list(lines.contents())
        if start >= len(all_of_them):
            continue
        some = lines.cut(start, start + count)
        assert list(some.contents()) == all_of_them[start : start + count]
        before = data[: some.before.bytes]
        assert some.before.sha256.hexdigest() == sha256(before)
        assert some.first == 1 + before.count(b"\n")
        last = all_of_them[start : start + count][-1][0]
        assert some.end_of(last) == lines.end_of(last)
        assert some.after.bytes == some.end_of(last).bytes


@settings(max_examples=300, deadline=None)
@given(inputs, st.integers(1, 20))
def test_where_a_prefix_may_end(data: bytes, piece: int) -> None:
    ends = set()
    at = 0
    for line in data.split(b"\n"):
        ends |= {at + len(line.rstrip(b"\r")), at + len(line) + 1}
        at += len(line) + 1
    for lines in cut(data, piece):
        for size in range(max(1, lines.before.bytes + 1), lines.after.bytes + 1):
            known = size in ends or size == len(data)
            assert lines.prefix_sha256(size) == (sha256(data[:size]) if known else None)


def test_a_line_that_is_too_long_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 20)
    data = b"a\n" + b"x" * 19 + b"\n" + b"y" * 20 + b"\n" + b"z" * 50 + b"\nb\n" + b"w" * 21
    got = cut(data, 8)
    too_long = [(lines.first, lines.after.bytes) for lines in got if lines.too_long]
    assert too_long == [(3, 43), (4, 94), (6, len(data))]
    assert [number for lines in got for number, _ in lines.contents()] == [1, 2, 5]
    longest = [pair for lines in cut(data[:-1], 8) for pair in lines.contents()]
    assert longest[-1] == (6, b"w" * 20)
    for lines in got:
        assert lines.after.sha256.hexdigest() == sha256(data[: lines.after.bytes])
        if lines.too_long:
            assert (lines.count, lines.records, lines.data) == (1, 1, b"")
            assert lines.cut(0, 1) is lines
            assert lines.end_of(lines.first).bytes == lines.after.bytes
            assert lines.prefix_sha256(lines.after.bytes - 1) is None
            assert lines.prefix_sha256(lines.after.bytes) == lines.after.sha256.hexdigest()


class Breaking(io.RawIOBase):
    """Bytes, then an error."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._data.readinto(buffer)
        if not count:
            raise EOFError("cut short")
        return count


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 100])
def test_whole_lines_come_before_the_error(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "PIECE", piece)
    got: list[tuple[int, bytes]] = []
    broken = pieces(io.BufferedReader(Breaking(b"a\nbb\nccc"), 4))
    with pytest.raises(EOFError, match="cut short"):
        got.extend(pair for lines in broken for pair in lines.contents())
    assert got == [(1, b"a"), (2, b"bb")]
