from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from scorer.errors import ErrorCode, InputError
from scorer.records.jsonline import MAX_DEPTH
from scorer.records.record import Record
from scorer.records.record_line import parse_line
from scorer.rows import (
    Failure,
    OptionScore,
    PositionLogprobs,
    ReadLogprobs,
    RowDigest,
    Score,
    TokenScore,
    decode_scores,
    encode_score,
    encode_scores,
)

YES = TokenScore(token_id=9834, text=" yes", bytes=(32, 121, 101, 115), logprob=-0.25, rank=1)
HALF = TokenScore(token_id=146, text="\ufffd", bytes=(0xE2, 0x98), logprob=-7.5, rank=2)
FULL = Score(
    id="q1",
    line=3,
    prompt_tokens=12,
    prompt_sha256="ab" * 32,
    answer="yes",
    answer_index=0,
    answer_per_token=None,
    answer_per_byte="yes",
    label_mass=None,
    margin=0.5,
    gold_index=1,
    correct=False,
    options=(
        OptionScore(
            text="yes",
            label="A",
            token_ids=(32, 9834),
            logprob=-0.25,
            probability=0.75,
            rank=1,
            is_greedy=True,
            logprob_per_token=-0.125,
            logprob_per_byte=-0.0625,
            seam_changed=True,
        ),
        OptionScore(
            text="no",
            token_ids=(33,),
            logprob=-0.75,
            probability=0.25,
            rank=2,
            is_greedy=False,
        ),
    ),
    targets=(YES,),
    logprobs=ReadLogprobs(chosen=YES, top=(YES, HALF)),
    prompt_logprobs=(None, PositionLogprobs(token=HALF, chosen=YES, top=())),
    warnings=("label mass is low",),
    truncated_tokens=4,
    extra={"note": msgspec.Raw(b'{"a": [1.50,1E5]}')},
)


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def test_a_full_row_as_it_is_written() -> None:
    assert encode_score(FULL).decode() == (
        '{"id":"q1","line":3,"prompt_tokens":12,"prompt_sha256":"' + "ab" * 32 + '",'
        '"answer":"yes","answer_index":0,"answer_per_token":null,"answer_per_byte":"yes",'
        '"label_mass":null,"margin":0.5,"gold_index":1,"correct":false,'
        '"options":[{"text":"yes","label":"A","token_ids":[32,9834],"logprob":-0.25,'
        '"probability":0.75,"rank":1,"is_greedy":true,"logprob_per_token":-0.125,'
        '"logprob_per_byte":-0.0625,"seam_changed":true},'
        '{"text":"no","token_ids":[33],"logprob":-0.75,"probability":0.25,"rank":2,'
        '"is_greedy":false}],'
        '"targets":[{"token_id":9834,"text":" yes","bytes":[32,121,101,115],"logprob":-0.25,'
        '"rank":1}],'
        '"logprobs":{"chosen":{"token_id":9834,"text":" yes","bytes":[32,121,101,115],'
        '"logprob":-0.25,"rank":1},"top":[{"token_id":9834,"text":" yes",'
        '"bytes":[32,121,101,115],"logprob":-0.25,"rank":1},{"token_id":146,"text":"\ufffd",'
        '"bytes":[226,152],"logprob":-7.5,"rank":2}]},'
        '"prompt_logprobs":[null,{"token":{"token_id":146,"text":"\ufffd","bytes":[226,152],'
        '"logprob":-7.5,"rank":2},"chosen":{"token_id":9834,"text":" yes",'
        '"bytes":[32,121,101,115],"logprob":-0.25,"rank":1},"top":[]}],'
        '"warnings":["label mass is low"],"truncated_tokens":4,'
        '"extra":{"note":{"a": [1.50,1E5]}}}\n'
    )


def test_an_error_row_as_it_is_written() -> None:
    failure = Failure(code=ErrorCode.INVALID_JSON, message="not valid JSON; write one object")
    assert encode_score(Score(id=None, line=9, error=failure)) == (
        b'{"id":null,"line":9,"error":{"code":"invalid_json",'
        b'"message":"not valid JSON; write one object"}}\n'
    )


def test_a_tie_as_it_is_written() -> None:
    row = Score(id=5, line=5, answer=None, answer_index=None, tied=(0, 2), margin=0.0)
    assert encode_score(row) == (
        b'{"id":5,"line":5,"answer":null,"answer_index":null,"tied":[0,2],"margin":0.0}\n'
    )


def significant(number: str) -> str:
    return number.partition("e")[0].replace(".", "").strip("-0")


@pytest.mark.parametrize(
    "value",
    [
        *(0.0, -0.0, 1.0, 0.1, 1e-300, 5e-324, -5e-324, 2.2250738585072014e-308, 1e22, 1e23),
        *(1e16, 1e17, 123456789012345680.0, 1.7976931348623157e308, 2.0**-1022, 1 / 3),
        *(math.nextafter(1, 0), math.nextafter(-20.25, 0), 9007199254740993.0, 1e-5, 1e-7),
    ],
)
def test_float_bits(value: float) -> None:
    line = encode_score(Score(id=1, line=1, margin=value))
    assert bits(json.loads(line)["margin"]) == bits(value)
    digits = line.removeprefix(b'{"id":1,"line":1,"margin":').removesuffix(b"}\n").decode()
    assert bits(float(digits)) == bits(value)
    assert significant(digits) == significant(repr(value)), "not the shortest digits"


@settings(max_examples=500, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_reads_back_to_the_same_bits(value: float) -> None:
    line = encode_score(Score(id=1, line=1, margin=value, targets=(token(value),)))
    row = json.loads(line)
    assert bits(row["margin"]) == bits(value), line
    assert bits(row["targets"][0]["logprob"]) == bits(value)
    again = msgspec.json.decode(line, type=Score)
    assert isinstance(again.margin, float)
    assert bits(again.margin) == bits(value)


def token(logprob: float) -> TokenScore:
    return TokenScore(token_id=1, text="a", bytes=(97,), logprob=logprob, rank=1)


def option(logprob: float = -1.0, probability: float = 1.0) -> OptionScore:
    return OptionScore(
        text="a",
        token_ids=(1,),
        logprob=logprob,
        probability=probability,
        rank=1,
        is_greedy=True,
    )


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_json_has_no_word_for_is_refused(value: float) -> None:
    places: dict[str, Score] = {
        "$.label_mass": Score(id=1, line=4, label_mass=value),
        "$.margin": Score(id=1, line=4, margin=value),
        "$.options[1].logprob": Score(id=1, line=4, options=(option(), option(value))),
        "$.options[0].probability": Score(id=1, line=4, options=(option(-1.0, value),)),
        "$.options[0].logprob_per_token": Score(
            id=1, line=4, options=(msgspec.structs.replace(option(), logprob_per_token=value),)
        ),
        "$.targets[0].logprob": Score(id=1, line=4, targets=(token(value),)),
        "$.logprobs.chosen.logprob": Score(
            id=1, line=4, logprobs=ReadLogprobs(chosen=token(value), top=())
        ),
        "$.logprobs.top[1].logprob": Score(
            id=1, line=4, logprobs=ReadLogprobs(chosen=YES, top=(YES, token(value)))
        ),
        "$.prompt_logprobs[1].token.logprob": Score(
            id=1,
            line=4,
            prompt_logprobs=(None, PositionLogprobs(token=token(value), chosen=YES, top=())),
        ),
    }
    for where, score in places.items():
        with pytest.raises(
            ValueError, match="the row of line 4 can't be written as JSON"
        ) as caught:
            encode_score(score)
        assert f"{where} is {value};" in str(caught.value)


def test_values_of_another_type_are_refused() -> None:
    wrong = msgspec.structs.replace(FULL, warnings=["a list"])
    with pytest.raises(ValueError, match=r"line 3 .* a type that its field does not have"):
        encode_score(wrong)
    with pytest.raises(ValueError, match="a type that its field does not have"):
        encode_score(msgspec.structs.replace(FULL, prompt_tokens="12"))


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        encode_score(Score(id="\ud800", line=1))


def test_text_stays_on_its_line() -> None:
    text = 'a\nb\r\u2028\u0085\x00\x7f\\"é\U0001f600'
    line = encode_score(Score(id=text, line=1, answer=text))
    assert line.count(b"\n") == 1
    assert json.loads(line)["answer"] == text


finite = st.floats(allow_nan=False, allow_infinity=False)
small = st.integers(0, 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
tokens = st.builds(
    TokenScore,
    token_id=small,
    text=text,
    bytes=st.binary(max_size=4).map(tuple),
    logprob=finite,
    rank=small,
)
options = st.builds(
    OptionScore,
    text=text,
    label=text | st.just(UNSET),
    token_ids=st.lists(small, max_size=3).map(tuple),
    logprob=finite,
    probability=finite,
    rank=small,
    is_greedy=st.booleans(),
    logprob_per_token=finite | st.just(UNSET),
    logprob_per_byte=finite | st.just(UNSET),
    seam_changed=st.just(True) | st.just(UNSET),
)
top = st.lists(tokens, max_size=2).map(tuple)
scores = st.builds(
    Score,
    id=text | st.integers(-(2**63), 2**64 - 1) | st.none(),
    line=small,
    prompt_tokens=small | st.just(UNSET),
    answer=text | st.none() | st.just(UNSET),
    tied=st.lists(small, max_size=2).map(tuple) | st.just(UNSET),
    label_mass=finite | st.none() | st.just(UNSET),
    margin=finite | st.none() | st.just(UNSET),
    correct=st.booleans() | st.just(UNSET),
    options=st.lists(options, max_size=2).map(tuple) | st.just(UNSET),
    targets=top | st.just(UNSET),
    logprobs=st.builds(ReadLogprobs, chosen=tokens, top=top) | st.just(UNSET),
    prompt_logprobs=st.lists(
        st.none() | st.builds(PositionLogprobs, token=tokens, chosen=tokens, top=top), max_size=2
    ).map(tuple)
    | st.just(UNSET),
    extra=st.dictionaries(text, st.sampled_from([b"1e999", b"[1, 2]", b'"x"', b"null"])).map(
        lambda values: {key: msgspec.Raw(raw) for key, raw in values.items()}
    )
    | st.just(UNSET),
    error=st.builds(Failure, code=st.sampled_from(ErrorCode), message=text) | st.just(UNSET),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(scores, max_size=3))
def test_any_rows_come_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Score]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "out.jsonl"
    lines = [encode_score(row) for row in rows]
    path.write_bytes(b"".join(lines))
    again = list(decode_scores(path))
    assert again == rows
    assert [encode_score(row) for row in again] == lines


def test_decode_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    line = encode_score(FULL)
    for bad, reason in (
        (b"{}\n", "missing required field `id`"),
        (b"\n", "truncated"),
        (b'{"id":1,"prompt":"x"}\n', "unknown field `prompt`"),
        (b'{"id":1,"line":1,"margin":"0.5"}\n', "got `str` - at `$.margin`"),
        (b'{"id":1,"line":1,"answer":"\xff"}\n', "UTF-8"),
        (line[:-1], "a row ends with a newline, got a part of one"),
        (line[:50], "a row ends with a newline, got a part of one"),
        (b"[]\n", "got `array`"),
        (b'{"id":1,"line":1,"extra":{"a":"\xff"}}\n', "a line is UTF-8, got 0xff"),
        (b'{"id":1,"line":1,"extra":{"a":' + b"[" * 100_000 + b"\n", "nest at most 129 deep"),
    ):
        path.write_bytes(line + line + bad)
        rows = decode_scores(path)
        assert [next(rows), next(rows)] == [FULL, FULL]
        with pytest.raises(InputError) as caught:
            next(rows)
        assert str(caught.value).startswith(f"{path}:3: ")
        assert reason in str(caught.value)


def test_the_deepest_value_of_a_record_comes_back(tmp_path: Path) -> None:
    deepest = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    record = parse_line(f'{{"prompt":"x","note":{deepest}}}'.encode(), 1)
    assert isinstance(record, Record)
    path = tmp_path / "out.jsonl"
    path.write_bytes(encode_score(Score(id=record.id, line=1, extra=record.extra)))
    (row,) = decode_scores(path)
    assert row.extra == record.extra


def test_decode_of_what_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.jsonl: can't be read: No such file"):
        list(decode_scores(tmp_path / "missing.jsonl"))
    with pytest.raises(InputError, match="can't be read: Is a directory"):
        list(decode_scores(tmp_path))
    (tmp_path / "empty.jsonl").touch()
    assert list(decode_scores(tmp_path / "empty.jsonl")) == []


def test_digest_of_the_rows() -> None:
    digest = RowDigest()
    assert digest.hexdigest() == hashlib.sha256(b"").hexdigest()
    lines = [encode_score(FULL), encode_score(Score(id=None, line=2))]
    for line in lines:
        digest.update(line)
    assert digest.rows == 2
    assert digest.hexdigest() == hashlib.sha256(b"".join(lines)).hexdigest()


def test_many_rows_are_the_rows_one_by_one() -> None:
    finite = [Score(id=n, line=n, margin=n / 7) for n in range(5)]
    nulls = [*finite, FULL, Score(id=None, line=2), Score(id="null", line=3)]
    for rows in ([], finite, nulls):
        assert encode_scores(rows) == b"".join(map(encode_score, rows))
    with pytest.raises(ValueError, match="line 9 can't be written as JSON"):
        encode_scores([*finite, Score(id=1, line=9, margin=math.nan)])
