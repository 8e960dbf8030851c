"""The demonstration model's tokenizer, and a fast encoder for its training text."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from demo_training.data import LETTERS, Example, Writer, neutral_words, polarity_words, split_words

BPE_SIZE: Final = 4000
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN: Final = ("<think>", "</think>")  # added, but not special
VOCAB_ROWS: Final = 4032  # the next multiple of 64: rows above the tokenizer's ids stay unused

# Qwen3's rule: contractions, words with the character before them, single digits, the rest.
PRE_TOKEN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same rule for the ASCII text that this file generates.
PRE_TOKEN_ASCII: Final = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKERS: Final = re.compile("(" + "|".join(map(re.escape, SPECIAL + PLAIN)) + ")")

CHAT_TEMPLATE: Final = """\
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('role must be system, user or assistant, got ' + message.role) }}
    {%- endif %}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def _corpus() -> Iterable[str]:
    """What the merges are learnt from: training sentences and the training words, nothing else."""
    writer = Writer(seed=1, split="train")
    for _ in range(30_000):
        example = writer.example()
        yield "\n".join(text for _, text in example.messages) + example.prompt + example.answer
    where = split_words(polarity_words())
    for word in polarity_words():
        if where[word.text] == "train":
            yield f" {word.text}" * 20
            yield f" {word.text.capitalize()}" * 2
    for text in neutral_words():
        yield f" {text}" * 12
    for letter in LETTERS:  # every letter, bare (an initial piece) and after a space, is one token
        yield f" {letter}." * 20_000


def train_tokenizer(out: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``; the same bytes on every run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=BPE_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in PLAIN])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """The chat template with the generation prompt and thinking off, without Jinja (for speed)."""
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    return f"{turns}<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Encoder:
    """Text to ids, a word at a time through a cache; now and then a word in smaller pieces.

    Smaller pieces (BPE dropout, arXiv 1910.13267) let the model meet the pieces that a word it
    never saw is made of. They come from a seeded generator, so the data is the same on every run.

    Beside the ids stand *hints*, targets of a training head that is thrown away afterwards: a
    polarity word's sign at its last token (0, 1), an option's class at its line's end (2 to 5), the
    text's class at the prompt's last token (6 to 9), and -100 everywhere else. Without them the
    model has to find words, options and letters at once from the answer alone, and stalls.
    """

    def __init__(self, directory: Path, seed: int, dropout: float) -> None:
        spec = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._vocab: dict[str, int] = spec["model"]["vocab"]
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(spec["model"]["merges"])}
        self._cache: dict[str, list[int]] = {}
        self._rng = Random(seed)
        self._dropout = dropout
        where = split_words(polarity_words())
        self._signs = {
            word.text: int(word.valence < 0)
            for word in polarity_words()
            if where[word.text] == "train"
        }

    def _in_pieces(self, word: str) -> list[int]:
        parts = list(word.replace(" ", "\u0120"))
        while True:
            pairs = [
                (self._ranks[pair], i)
                for i, pair in enumerate(itertools.pairwise(parts))
                if pair in self._ranks and self._rng.random() >= 0.25
            ]
            if not pairs:
                return [self._vocab[part] for part in parts]
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, markers and all."""
        return self.encode_prompt(text, -1, ())[0]

    def encode_prompt(
        self, text: str, text_class: int, option_classes: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Ids and hints of a prompt, of equal length."""
        ids: list[int] = []
        hints: list[int] = []
        pieces: list[str] = []
        for stretch in MARKERS.split(text):
            pieces += [stretch] if MARKERS.fullmatch(stretch) else PRE_TOKEN_ASCII.findall(stretch)
        option = -1
        for index, piece in enumerate(pieces):
            if len(piece) > 4 and piece[1:].isalpha() and self._rng.random() < self._dropout:
                own = self._in_pieces(piece)
            else:
                cached = self._cache.get(piece)
                if cached is None:
                    cached = self._cache[piece] = self._tokenizer.encode(piece).ids
                own = cached
            ids += own
            hint = self._signs.get(piece.strip().lower(), -100)
            if option_classes and "\n" in piece and option >= 0:
                hint, option = 2 + option_classes[option], -1
            elif option_classes and piece in LETTERS and pieces[index + 1] == ".":
                option = LETTERS.index(piece)
            hints += [-100] * (len(own) - 1) + [hint]
        if text_class >= 0:
            hints[-1] = 6 + text_class
        return ids, hints


def render_prompt(example: Example) -> str:
    """The text before the answer, template and all."""
    return render_chat(example.messages) if example.messages else example.prompt
