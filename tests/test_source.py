from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.errors import ErrorCode, InputError
from scorer.records import source as source_module
from scorer.records.record import BadLine, Record
from scorer.records.source import Counts, Source, at_line


def written(folder: Path, data: bytes) -> Path:
    path = folder / "in.jsonl"
    path.write_bytes(data)
    return path


def rows(path: Path, limit: int | None = None) -> list[Record | BadLine]:
    with Source(path) as source:
        source.check_ids()
        return list(source.records(limit))


def prompts(path: Path) -> list[tuple[int, str | None]]:
    return [(row.line, row.prompt) for row in rows(path) if isinstance(row, Record)]


def refused(path: Path) -> str:
    with Source(path) as source, pytest.raises(InputError) as caught:
        source.check_ids()
    return str(caught.value)


# -- lines


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":"a"}\n{"prompt":"b"}\n',
        b'{"prompt":"a"}\n{"prompt":"b"}',  # no newline at the end
        b'{"prompt":"a"}\r\n{"prompt":"b"}\r\n',
        b'{"prompt":"a"}\n{"prompt":"b"}\r\n',
        b'\xef\xbb\xbf{"prompt":"a"}\n{"prompt":"b"}\n',
        b'\xef\xbb\xbf{"prompt":"a"}\r\n \t{"prompt":"b"} ',
    ],
)
def test_line_endings_and_byte_order_mark(tmp_path: Path, data: bytes) -> None:
    assert prompts(written(tmp_path, data)) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\u001c", "\u000b", "\u000c"])
def test_only_newlines_separate(tmp_path: Path, separator: str) -> None:
    text = f"a{separator}b"
    data = f'{{"prompt":"{text}"}}'.encode()
    if separator < " ":  # a control character: the line is bad JSON, but it is one line
        (row,) = rows(written(tmp_path, data))
        assert isinstance(row, BadLine)
        assert row.error.code is ErrorCode.INVALID_JSON
    else:
        assert prompts(written(tmp_path, data)) == [(1, text)]


def test_a_carriage_return_alone_does_not_separate(tmp_path: Path) -> None:
    (row,) = rows(written(tmp_path, b'{"prompt":\r"a"}\r{"prompt":"b"}'))
    assert isinstance(row, BadLine)
    assert "trailing characters" in str(row.error)


def test_blank_lines_are_skipped_counted_and_numbered(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf\n\r\n{"prompt":"a"}\n \t \n{"prompt":"b"}\n\n\x0b\n{"prompt":\n'
    path = written(tmp_path, data)
    with Source(path) as source:
        counts = source.check_ids()
        found = list(source.records())
    assert counts == Counts(
        records=4,
        unparsable=2,
        blank=4,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    assert [(row.line, row.id, type(row)) for row in found] == [
        (3, 3, Record),
        (5, 5, Record),
        (7, None, BadLine),  # a vertical tab is no white space of JSON
        (8, None, BadLine),
    ]


def test_a_byte_order_mark_belongs_at_the_start(tmp_path: Path) -> None:
    first, second = rows(
        written(tmp_path, b'\xef\xbb\xbf{"prompt":"a"}\n\xef\xbb\xbf{"prompt":"b"}')
    )
    assert isinstance(first, Record)
    assert isinstance(second, BadLine)
    (doubled,) = rows(written(tmp_path, b'\xef\xbb\xbf\xef\xbb\xbf{"prompt":"a"}'))
    assert isinstance(doubled, BadLine)


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n\n"])
def test_no_records_is_no_error(tmp_path: Path, data: bytes) -> None:
    with Source(written(tmp_path, data)) as source:
        counts = source.check_ids()
        assert (counts.records, counts.blank) == (0, len(data.splitlines()))
        assert list(source.records()) == []


def test_limit_counts_bad_lines_but_not_blank_ones(tmp_path: Path) -> None:
    path = written(tmp_path, b'\n{"prompt":"a"}\n\nnope\n{"prompt":"b"}\n{"prompt":"c"}\n')
    assert [row.line for row in rows(path, 0)] == []
    assert [row.line for row in rows(path, 2)] == [2, 4]
    assert [row.line for row in rows(path, 3)] == [2, 4, 5]
    assert [row.line for row in rows(path, 99)] == [2, 4, 5, 6]


def test_a_line_of_50_mb(tmp_path: Path) -> None:
    long = "x" * 50_000_000
    ids = ",".join(["151643"] * 500_000)
    data = f'{{"prompt":"{long}"}}\n{{"prompt_token_ids":[{ids}]}}\n{{"prompt":"{long}"\n'.encode()
    first, second, third = rows(written(tmp_path, data))
    assert isinstance(first, Record)
    assert first.prompt == long
    assert isinstance(second, Record)
    assert second.prompt_token_ids == (151643,) * 500_000
    assert isinstance(third, BadLine)
    assert len(str(third.error)) < 400


def test_records_come_in_file_order_twice(tmp_path: Path) -> None:
    path = written(tmp_path, b"".join(b'{"id":"r%d","prompt":"x"}\n' % i for i in range(5000)))
    with Source(path) as source:
        source.check_ids()
        one, two = source.records(), source.records()
        pairs = list(zip(one, two, strict=True))  # two passes do not disturb each other
    assert [row.id for row, _ in pairs] == [f"r{i}" for i in range(5000)]
    assert all(a == b for a, b in pairs)


def test_records_without_a_first_pass(tmp_path: Path) -> None:
    with Source(written(tmp_path, b'{"id":1,"prompt":"a"}\n{"id":1,"prompt":"b"}\n')) as source:
        assert [row.id for row in source.records()] == [1, 1]


# -- ids


@pytest.mark.parametrize(
    ("data", "second", "first", "shown"),
    [
        (b'{"id":"a","prompt":"x"}\n{"id":"a","prompt":"y"}\n', 2, 1, "'a'"),
        (b'{"id":3,"prompt":"x"}\n\n{"id":"3","prompt":"y"}\n', 3, 1, "'3'"),
        (b'{"id":"2","prompt":"x"}\n{"prompt":"y"}\n', 2, 1, "'2'"),  # a default collides
        (b'{"id":3,"prompt":"x"}\n{"prompt":"x"}\n{"id":null,"prompt":"y"}\n', 3, 1, "'3'"),
        (b'{"id":"","prompt":"x"}\n{"id":"","prompt":"y"}', 2, 1, "''"),
        (b'{"id":0,"prompt":"x"}\n{"id":-0,"prompt":"y"}', 2, 1, "'0'"),
        (b'{"id":"\\u00e9","prompt":"x"}\n{"id":"\xc3\xa9","prompt":"y"}', 2, 1, "'é'"),
        (b'{"id":"a","promt":"x"}\n{"id":"a","prompt":"y"}', 2, 1, "'a'"),  # bad, but has an id
        (b'{"id":"a","prompt":"x"}\n' * 5, 2, 1, "'a'"),
    ],
)
def test_duplicate(tmp_path: Path, data: bytes, second: int, first: int, shown: str) -> None:
    path = written(tmp_path, data)
    message = refused(path)
    assert message.startswith(f"{path}:{second}: ids are unique, got {shown} again ")
    assert f"first at {path}:{first};" in message
    assert message.endswith("give each record its own id")


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"3","prompt":"x"}\n{"id":"03","prompt":"x"}\n{"id":"3 ","prompt":"x"}\n',
        b'{"id":"2","prompt":"x"}\n\n{"prompt":"x"}\n',  # the default is the physical line
        b'{"id":"2","prompt":"x"}\nnot json\n',  # what can't be parsed takes no id
        b'{"id":"a","prompt":"x"}\n{"id":"a",\n[1]\nnull\n{"id":"\xff"}\n{"id":"\\ud800"}\n',
        b'{"id":true,"prompt":"x"}\n{"id":"True","prompt":"x"}\n{"id":"true","prompt":"x"}\n',
        b'{"id":1.5,"prompt":"x"}\n{"id":"1.5","prompt":"x"}\n{"id":"1","prompt":"x"}\n',
        '{"id":"é","prompt":"x"}\n{"id":"e\u0301","prompt":"x"}\n'.encode(),
    ],
)
def test_no_duplicate(tmp_path: Path, data: bytes) -> None:
    with Source(written(tmp_path, data)) as source:
        assert source.check_ids().records == len(data.strip().splitlines()) - data.count(b"\n\n")


def test_a_long_id_is_cut_in_the_message(tmp_path: Path) -> None:
    data = b'{"id":"%s","prompt":"x"}\n' % (b"a" * 10**6)
    assert len(refused(written(tmp_path, data * 2))) < 1000


id_values = st.integers(-2, 6) | st.sampled_from(["1", "2", "3", "a", "b", "", "-1"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | id_values, max_size=8), st.sampled_from([1, 2, 64]), st.integers(1, 3))
def test_duplicates_are_found_whatever_the_hash(
    ids: list[str | int | None], bits: int, at_once: int
) -> None:
    """With a hash of few bits nearly all ids collide: none may be reported for that, none hid."""
    lines = [json.dumps({"prompt": "x"} if i is None else {"id": i, "prompt": "x"}) for i in ids]
    names = [str(number if i is None else i) for number, i in enumerate(ids, 1)]
    real = source_module._id_hash
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "_id_hash", lambda id_: real(id_) % 2**bits)
        patch.setattr(source_module, "_COMPARED_AT_ONCE", at_once)
        path = written(Path(folder), "\n".join(lines).encode())
        if len(set(names)) == len(names):
            with Source(path) as source:
                assert source.check_ids().records == len(ids)
            return
        message = refused(path)
    where, _, rest = message.partition(": ids are unique, got ")
    second = int(where.rpartition(":")[2])
    first = int(rest.partition(f"first at {path}:")[2].partition(";")[0])
    assert first < second
    assert names[first - 1] == names[second - 1]
    assert names.index(names[second - 1]) == first - 1


def test_the_first_of_few_duplicates_is_reported(tmp_path: Path) -> None:
    lines = [b'{"id":"r%d","prompt":"x"}\n' % i for i in range(3000)]
    path = written(tmp_path, b"".join(lines + lines))
    assert refused(path).startswith(f"{path}:3001: ids are unique, got 'r0' again (first at")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc/self/status")
@pytest.mark.parametrize("copies", [1, 2])
def test_memory_of_the_first_pass(tmp_path: Path, copies: int) -> None:
    """At most 32 bytes of real memory a record at the peak, whether ids repeat or not."""
    count = 300_000
    lines = [b'{"id":"record-%d","prompt":"x"}\n' % i for i in range(count // copies)]
    path = written(tmp_path, b"".join(lines * copies))
    first = tmp_path / "first.jsonl"
    first.write_bytes(lines[0])
    program = (
        "import sys; from pathlib import Path\n"
        "from scorer.records.source import InputError, Source\n"
        "def memory(key):\n"
        "    status = Path('/proc/self/status').read_text().partition(key + ':')[2]\n"
        "    return int(status.split()[0]) * 1024\n"
        "with Source(sys.argv[1]) as source: source.check_ids()\n"
        "before = memory('VmRSS')\n"
        "try:\n"
        "    with Source(sys.argv[2]) as source: found = source.check_ids().records\n"
        "except InputError as error: found = 'again' in str(error)\n"
        "print(found, memory('VmHWM') - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, first, path], capture_output=True, check=True, text=True
    )
    found, grown = done.stdout.split()
    assert found == (str(count) if copies == 1 else "True")
    assert 8 * count < int(grown) <= 32 * count


def test_memory_of_the_second_pass_does_not_grow(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"prompt":"%s"}\n' % (b"x" * 1000) * 20_000)
    with Source(path) as source:
        stream = source.records()
        next(stream)
        tracemalloc.start()
        try:
            assert sum(1 for _ in stream) == 19_999
            assert tracemalloc.get_traced_memory()[1] < 4_000_000  # of 20 MB
        finally:
            tracemalloc.stop()


# -- where the bytes come from


@pytest.fixture
def spool_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.BytesIO]:
    stream = io.BytesIO(b'{"prompt":"a"}\n\n{"id":1,"prompt":"b"}\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    yield stream
    assert not stream.closed, "stdin is not ours to close"


@pytest.mark.usefixtures("stdin")
def test_stdin_is_spooled_and_leaves_nothing(spool_folder: Path) -> None:
    with Source("-") as source:
        assert source.name == "<stdin>"
        with pytest.raises(InputError, match=r"^<stdin>:3: .* '1' .*first at <stdin>:1;"):
            source.check_ids()
        assert [row.line for row in source.records()] == [1, 3]
        assert [row.line for row in source.records()] == [1, 3]
    assert list(spool_folder.iterdir()) == []


def test_a_fifo_is_read_twice(tmp_path: Path, spool_folder: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    data = b"".join(b'{"id":"r%d","prompt":"x"}\n' % i for i in range(20_000))
    writer = threading.Thread(target=fifo.write_bytes, args=(data,))
    writer.start()
    with Source(fifo) as source:
        writer.join()
        counts = source.check_ids()
        assert counts.sha256 == hashlib.sha256(data).hexdigest()
        assert [row.id for row in source.records()] == [f"r{i}" for i in range(20_000)]
    assert list(spool_folder.iterdir()) == []


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize("redirected", [False, True])
def test_stdin_of_a_process(tmp_path: Path, name: str, redirected: bool) -> None:
    program = (
        "import sys; from scorer.records.source import Source\n"
        "with Source(sys.argv[1]) as source:\n"
        "    print(source.check_ids().records, [row.id for row in source.records()])\n"
    )
    data = b'{"prompt":"a"}\n{"id":"b","prompt":"b"}\n'
    path = written(tmp_path, data)
    command = [sys.executable, "-W", "error", "-c", program, name]
    if redirected:
        with path.open("rb") as file:
            done = subprocess.run(command, stdin=file, capture_output=True, check=False)
    else:
        done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"2 [1, 'b']\n")


def test_closed_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match=r"^<stdin>: is closed; give a file"):
        Source("-")


@pytest.mark.usefixtures("stdin")
def test_nowhere_to_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InputError, match=r"^<stdin>: can't be copied to .*/missing: .* set TMPDIR"):
        Source("-")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.jsonl", "No such file or directory"),
        ("", "Is a directory"),
        ("in.jsonl/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_unreadable(tmp_path: Path, name: str, reason: str) -> None:
    written(tmp_path, b"")
    path = tmp_path / name
    with pytest.raises(InputError) as caught:
        Source(path)
    assert str(caught.value) == (
        f"{path}: can't be read: {reason}; give a readable JSONL file, or - for stdin"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_forbidden(tmp_path: Path) -> None:
    path = written(tmp_path, b"")
    path.chmod(0)
    with pytest.raises(InputError, match="can't be read: Permission denied"):
        Source(path)


def test_what_is_appended_later_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"prompt":"a"}\n{"prompt":"b"}')
    with Source(path) as source:
        source.check_ids()
        with path.open("ab") as file:
            file.write(b'   \n{"id":1,"prompt":"c"}\n')
        assert [row.id for row in source.records()] == [1, 2]


@pytest.mark.parametrize("data", [b'{"prompt":"a"}\n{"prompt":"B"}\n', b'{"prompt":"a"}\n', b""])
def test_a_change_between_the_passes_is_said(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, b'{"prompt":"a"}\n{"prompt":"b"}\n')
    with Source(path) as source:
        source.check_ids()
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"in\.jsonl: changed while it was read \(sha256 was"):
            list(source.records())


def test_a_replaced_file_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"prompt":"old"}\n')
    with Source(path) as source:
        source.check_ids()
        (tmp_path / "new").write_bytes(b'{"prompt":"new"}\n')
        (tmp_path / "new").replace(path)
        (row,) = source.records()
    assert isinstance(row, Record)
    assert row.prompt == "old"


def test_at_line() -> None:
    assert at_line("a b.jsonl", 12, "no") == "a b.jsonl:12: no"
