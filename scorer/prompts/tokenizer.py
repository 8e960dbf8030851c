"""A byte-level BPE tokenizer that treats every text it is given as text.

``tokenizer.json`` is read twice over: its model, normaliser and pre-tokeniser become a
tokenizer *without* added tokens, which encodes plain text only; its added tokens are kept
aside as a table from string to id. What the usual tokenisation does for a text (cut at the
added tokens, then normalise and encode each piece) is put together from these two, so the
caller decides which occurrences of ``<|im_end|>`` are tokens.

Whatever would make the two differ, or would lose text, is refused by name when loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from scorer.errors import ModelError
from scorer.prompts.literal import AddedTokenText


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class _Bpe(msgspec.Struct, frozen=True):
    vocab: dict[str, int]
    type: str = "BPE"
    dropout: float | None = None


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token as people read it: ``raw`` is exact, ``text`` is its UTF-8 reading.

    A token may hold part of a character; in ``text`` that part is U+FFFD. values: of ``raw``, made
    once, as every row with the token has them.
    """

    text: str
    raw: bytes
    values: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.raw))


def _byte_level(*, use_regex: bool, trim_offsets: bool) -> dict[str, Any]:
    step = {"type": "ByteLevel", "add_prefix_space": False}
    return {**step, "trim_offsets": trim_offsets, "use_regex": use_regex}


_QWEN_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPLIT: Final = {
    "type": "Split",
    "pattern": {"Regex": _QWEN_PATTERN},
    "behavior": "Isolated",
    "invert": False,
}
_QWEN: Final = [
    {
        "type": "Sequence",
        "pretokenizers": [_QWEN_SPLIT, _byte_level(use_regex=False, trim_offsets=trim)],
    }
    for trim in (False, True)
]
_GPT2: Final = [_byte_level(use_regex=True, trim_offsets=trim) for trim in (False, True)]
"""Pre-tokenisers for which ``is_closed`` is proven. Qwen's has no branch that goes on from a digit,
or to one: a digit is always apart."""


def is_closed(text: str) -> bool:
    """Whether a space behind ``text`` is always cut off from it, by Qwen's pattern and by GPT-2's.

    It is behind a letter, a digit and other visible ASCII characters: no branch of the patterns
    goes on from one of these to a space, and none of what they match up to there looks at what
    follows. Behind a cut the pattern starts anew. NFC does not reach across it (a space combines
    with nothing before it), nor does BPE: the ids on either side are those of that side alone.
    """
    last = text[-1:]
    return last.isalnum() or "!" <= last <= "~"


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE (the table of GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return alphabet


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """``tokenizer_config.json`` of a model directory; empty if there is none."""
    path = directory / "tokenizer_config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path}: can't be read: {error}") from error
    return config


def special_token_strings(config: dict[str, Any]) -> dict[str, str]:
    """The named special tokens of ``tokenizer_config.json``: ``{"eos_token": "<|im_end|>"}``.

    A token stands there as its string or as an object with ``content``.
    """
    found: dict[str, str] = {}
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        value = config.get(f"{name}_token")
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[f"{name}_token"] = value
    return found


class Tokenizer:
    """The tokenizer of a model directory.

    ``n_ids``: ids are 0 … n_ids - 1, added tokens included. ``added``: string → id of the
    added tokens. ``cuts_at_spaces``: whether ``is_closed`` holds of its pattern. ``cuts_digits``:
    whether each ASCII digit is cut off from digits and from a single space. Raises ``ModelError``
    for a missing or refused ``tokenizer.json``.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ModelError(
                f"{path}: no such file: scorer needs the fast tokenizer's tokenizer.json beside "
                "the model"
            ) from None
        except OSError as error:
            raise ModelError(f"{path}: can't be read: {error}") from error
        try:
            parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            model = msgspec.json.decode(parts.get("model", b"null"), type=_Bpe)
            added = msgspec.json.decode(parts.get("added_tokens", b"[]"), type=list[_AddedToken])
            normalizer = msgspec.json.decode(parts.get("normalizer", b"null"))
            pre_tokenizer = msgspec.json.decode(parts.get("pre_tokenizer", b"null"))
        except msgspec.MsgspecError as error:
            raise ModelError(f"{path}: not a BPE tokenizer.json: {error}") from error

        self._alphabet = _byte_alphabet()
        _check_model(path, model, self._alphabet)
        _check_steps(path, normalizer, pre_tokenizer)
        _check_added(path, added, model.vocab, normalised=normalizer is not None)
        self.added = {token.content: token.id for token in added}
        _check_config(directory, self.added)

        self._tokens: list[str | None] = [None] * (
            max([*model.vocab.values(), *self.added.values()]) + 1
        )
        for content, token_id in model.vocab.items():
            self._tokens[token_id] = content
        self._added_ids = {token_id: content for content, token_id in self.added.items()}
        known = {*model.vocab.values(), *self._added_ids}
        if missing := sorted(set(range(len(self._tokens))) - known):
            raise ModelError(
                f"{path}: no token has id {missing[0]} ({len(missing)} such ids below "
                f"{len(self._tokens)}): tokenizers with gaps in their ids are not supported"
            )
        self.n_ids = len(self._tokens)
        self.added_text = AddedTokenText(list(self.added))
        self._token_text: dict[int, TokenText] = {}

        import tokenizers

        parts["added_tokens"] = msgspec.Raw(b"[]")
        parts["truncation"] = parts["padding"] = msgspec.Raw(b"null")
        try:
            self._plain = tokenizers.Tokenizer.from_str(msgspec.json.encode(parts).decode())
        except Exception as error:  # the library raises nothing narrower
            raise ModelError(f"{path}: can't be loaded: {error}") from error
        self._normalizer = self._plain.normalizer
        self.cuts_at_spaces = pre_tokenizer in (*_QWEN, *_GPT2)
        self.cuts_digits = pre_tokenizer in _QWEN
        if self._plain.num_special_tokens_to_add(False):
            raise ModelError(
                f"{path}: the post-processor adds tokens to every text: not supported, since a "
                "prompt's tokens must be its own and its template's"
            )
        for content, ids in zip(self.added, self.encode(list(self.added)), strict=True):
            if not self._added_ids.keys().isdisjoint(ids):
                raise ModelError(
                    f"{path}: the text {content!r} gives an added token even as ordinary text: "
                    "user text could not be kept literal"
                )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, every character of it taken as text; in the library's own threads."""
        return [e.ids for e in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

    def independent_from(self, text: str) -> int:
        """A place in ``text`` from which on its ids, and those of whatever follows it, don't depend
        on what stands before; the last one easily found, or 0.

        See ``is_closed``.
        """
        if not self.cuts_at_spaces:
            return 0
        place = len(text)
        while (place := text.rfind(" ", 1, place)) > 0:
            if is_closed(text[place - 1]):
                return place
        return 0

    def token_starts(self, text: str) -> list[int]:
        """For each of ``text``'s tokens, the place in ``text`` (characters) where it begins."""
        return [start for start, _ in self._plain.encode(text, add_special_tokens=False).offsets]

    def normalise(self, text: str) -> str:
        """``text`` as the model sees it (NFC, by the tokenizer's own tables)."""
        if self._normalizer is None or text.isascii():
            return text
        normalised: str = self._normalizer.normalize_str(text)
        return normalised

    def is_added(self, token_id: int) -> bool:
        """Whether the id is an added token's."""
        return token_id in self._added_ids

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text that ``ids`` spell out; ``errors`` as in ``bytes.decode``."""
        return b"".join([self._text_of(token_id).raw for token_id in ids]).decode(errors=errors)

    def token_text(self, ids: Iterable[int]) -> list[TokenText]:
        """Text and raw bytes of each id (``0 <= id < n_ids``)."""
        return [self._text_of(int(token_id)) for token_id in ids]

    def _text_of(self, token_id: int) -> TokenText:
        known = self._token_text.get(token_id)
        if known is None:
            content = self._added_ids.get(token_id)
            if content is not None:
                raw = content.encode()
            else:
                alphabet = self._alphabet
                raw = bytes([alphabet[char] for char in self._tokens[token_id] or ""])
            known = TokenText(raw.decode(errors="replace"), raw)
            self._token_text[token_id] = known
        return known


def _check_model(path: Path, model: _Bpe, alphabet: dict[str, int]) -> None:
    if model.type != "BPE":
        raise ModelError(f"{path}: a {model.type} tokenizer: only byte-level BPE is supported")
    if model.dropout:
        raise ModelError(
            f"{path}: BPE dropout is {model.dropout}: the ids of a text would be random"
        )
    if strange := set("".join(model.vocab)) - alphabet.keys():
        raise ModelError(
            f"{path}: the vocabulary holds {min(strange)!r}, which stands for no byte: only "
            "byte-level BPE is supported"
        )
    if missing := [byte for char, byte in alphabet.items() if char not in model.vocab]:
        raise ModelError(
            f"{path}: no token stands for the byte 0x{missing[0]:02x}, so some text would be lost: "
            "train the tokenizer with the whole byte alphabet"
        )


def _check_steps(path: Path, normalizer: Any, pre_tokenizer: Any) -> None:
    if normalizer is not None and normalizer.get("type") != "NFC":
        raise ModelError(
            f"{path}: the normaliser is {normalizer.get('type')}: only NFC or none is supported"
        )
    pre_tokenizer = pre_tokenizer or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    for step in steps:
        kind = step.get("type")
        if kind not in ("Split", "Digits", "ByteLevel") or step.get("behavior") == "Removed":
            raise ModelError(f"{path}: the pre-tokeniser's step {step} is not supported")
        if step.get("add_prefix_space"):
            raise ModelError(
                f"{path}: add_prefix_space is on: not supported, since the ids of a text would not "
                "be those of that text"
            )
    if not any(step.get("type") == "ByteLevel" for step in steps):
        raise ModelError(f"{path}: the pre-tokeniser has no ByteLevel step: not byte-level BPE")


def _check_added(
    path: Path, added: Sequence[_AddedToken], vocab: dict[str, int], *, normalised: bool
) -> None:
    ids = {token_id: content for content, token_id in vocab.items()}
    for token in added:
        flags = [name for name in ("single_word", "lstrip", "rstrip") if getattr(token, name)]
        if token.normalized and normalised:
            flags.append("normalized")
        if flags:
            raise ModelError(
                f"{path}: the added token {token.content!r} is {' and '.join(flags)}: not "
                "supported, since which text it matches would depend on its surroundings"
            )
        if len(token.content) < 2:
            raise ModelError(
                f"{path}: the added token {token.content!r} has fewer than two characters: not "
                "supported, since user text could not be told from it"
            )
        if ids.setdefault(token.id, token.content) != token.content:
            raise ModelError(
                f"{path}: id {token.id} is both {ids[token.id]!r} and {token.content!r}"
            )


def _check_config(directory: Path, added: dict[str, int]) -> None:
    """tokenizer_config.json may add tokens of its own: only those of tokenizer.json are known."""
    path = directory / "tokenizer_config.json"
    config = read_tokenizer_config(directory)
    if config.get("add_bos_token") or config.get("add_eos_token"):
        raise ModelError(f"{path}: add_bos_token and add_eos_token are not supported")
    listed = config.get("added_tokens_decoder") or {}
    wanted: list[tuple[str, int | None]] = [
        (s, None) for s in special_token_strings(config).values()
    ]
    wanted += [(token["content"], int(token_id)) for token_id, token in listed.items()]
    for content, token_id in wanted:
        if content not in added or token_id not in (None, added[content]):
            raise ModelError(
                f"{path}: {content!r} is a special token here, but tokenizer.json does not list it "
                "among its added tokens" + ("" if token_id is None else f" with id {token_id}")
            )
