"""Tests of attributions between words, and of the words of pieces."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import published_tokenizers
import pytest
import tiny
from test_gold_scores import gold_pairs, is_chance

from experiments.data import tokenizers
from experiments.data.tokenizers.base import Tokenizer
from experiments.data.tokenizers.bytes import Bytes
from experiments.errors import UserError
from flaxformer_explain.attributions import Attributor, word_of_piece
from flaxformer_explain.gold_scores import Measured, sentence_counts, total
from flaxformer_lite import intervene
from flaxformer_lite.config import builder
from flaxformer_lite.training.batch import make_batch


class Pieces(Tokenizer):
    """A tokenizer of pieces of a list, in which _ is a space."""

    def __init__(self, *pieces):
        self.known = ('', '', '', '', *pieces)

    def decode(self, ids):
        return [''.join(self.known[i] for i in row).replace('_', ' ') for row in ids]


def test_a_piece_belongs_to_the_word_of_its_letters():
    tokenizer = Pieces('Er', '_ruft', '_', 'an', ',', "_Anna's")
    # A word boundary may be a separate piece. 1 is the end, 0 padding.
    ids = [4, 5, 6, 7, 8, 9, 1, 0]
    assert word_of_piece(tokenizer, ids) == [0, 1, -1, 2, -1, 3, -1, -1]


def trained_tokenizer(spec, texts=()):
    tokenizer = tokenizers.make(spec)
    return tokenizer.opened(tokenizer.train(iter(texts)))


class SilentBytes(Bytes):
    """Leaves out incomplete letters, as ByT5 does, and special tokens."""

    def decode(self, ids):
        rows = [bytes(i - 4 for i in row if i > 3) for row in ids]
        return [row.decode(errors='ignore') for row in rows]


@pytest.mark.parametrize(
    'tokenizer', [trained_tokenizer('bytes'), SilentBytes()], ids=repr
)
@pytest.mark.parametrize('text', ['Gute Größe!', 'γάτα ¿κοκ?', '日本 ok', 'हिन्दी 😀️ é'])
def test_a_byte_belongs_to_the_word_of_its_letter(tokenizer, text):
    expected = [-1]
    for i, character in enumerate(text):
        is_of_word = character not in ' !¿?😀\ufe0f'
        word = text[:i].count(' ') if is_of_word else -1
        expected += [word] * len(character.encode())
    special = 2  # such as a language, before the text
    ids = [special, *tokenizer.encode([text])[0], 1, 0]
    assert word_of_piece(tokenizer, ids) == [*expected, -1, -1]


def test_byte_fallback_pieces_belong_to_the_word_of_their_letter():
    spec = 'sentencepiece(vocab_size=300, byte_fallback=True)'
    tokenizer = trained_tokenizer(spec, ['Die Katze isst', 'Die Katzen essen'] * 9)
    (ids,) = tokenizer.encode(['γDie Kätze, γά'])
    pieces = tokenizer.pieces(ids)
    expected = []
    word = -1
    for piece in pieces:
        word += piece.startswith('▁')
        expected.append(-1 if piece in ('▁', '<0x2C>') else word)
    assert sum(piece.startswith('<0x') for piece in pieces) == 9
    assert word_of_piece(tokenizer, ids) == expected


def test_bytes_of_a_published_tokenizer_belong_to_words(tmp_path):
    pytest.importorskip('transformers')
    tokenizer = published_tokenizers.read('bart', tmp_path / 'bart').tokenizer
    (ids,) = tokenizer.encode(['Größe 東京, é'])
    word_of_id = word_of_piece(tokenizer, tokenizer.with_end(ids))
    words = [word for word in word_of_id if word >= 0]
    assert set(words) == {0, 1, 2} and words == sorted(words)
    # The start, two spaces, a comma and the end.
    assert len(word_of_id) - len(words) <= 5


class Words(Tokenizer):
    """A tokenizer of words, split at spaces."""

    def __init__(self, sentences):
        words = {word for text in sentences for word in text.split()}
        self.known = ['', '', '', '', *sorted(words)]

    def encode(self, texts):
        return [[self.known.index(word) for word in text.split()] for text in texts]

    def decode(self, ids):
        return [' '.join(self.known[i] for i in row if i > 3) for row in ids]


def run_of(pairs, **config: Any) -> Any:
    """Returns a run with random parameters, and a word as each token."""
    tokenizer = Words(text for pair in pairs for text in pair)
    model = builder.build(tiny.config(dropout=0.0, **config), len(tokenizer.known))

    def batch(pairs, length=None):
        source = [tokenizer.with_end(tokenizer.encode([s])[0]) for s, _ in pairs]
        target = [[*tokenizer.encode([t])[0], 1] for _, t in pairs]
        return make_batch(source, target, length=length)

    return SimpleNamespace(
        path='runs/tiny',
        tokenizer=tokenizer,
        model=model,
        variables=tiny.all_variables(model),
        batch=batch,
    )


def alignment_scores(run, pairs, golds) -> dict[str, Any]:
    """Returns the precision of the alignment of each method."""
    explain = Attributor(run)
    counts: dict[str, list] = {}
    for pair, gold in zip(pairs, golds, strict=True):
        for method, maps in explain(pair).items():
            counts.setdefault(method, []).append(sentence_counts(gold, maps))
    key = Measured('source', 'alignment', 'p@1')
    return {method: total(found)[key] for method, found in counts.items()}


def short_pairs(count: int, is_chosen=lambda gold: True):
    """Returns short pairs, whose programs have one shape, and their gold."""
    short = [
        (pair, gold)
        for pair, gold in gold_pairs()
        if len(gold.target) <= 8 and is_chosen(gold)
    ]
    return zip(*short[:count], strict=True)


@pytest.mark.slow
def test_a_random_model_scores_chance():
    pairs, golds = short_pairs(30)
    for method, score in alignment_scores(run_of(pairs), pairs, golds).items():
        assert is_chance(score), method


@pytest.mark.slow
def test_all_methods_find_attention_that_copies_word_for_word():
    """In one layer, the source reaches a target word only through the copied word."""

    def is_word_for_word(gold):
        return gold.possible == {(i, i) for i in range(len(gold.target))}

    pairs, golds = short_pairs(8, is_word_for_word)
    run = run_of(pairs, num_layers=1)

    def copy(value, where):
        eye = np.eye(*value.shape[-2:], dtype=np.float32)
        return np.broadcast_to(eye, value.shape) * where.mask_BT.any()

    names = ['encoder/*/self_attention/pattern', 'decoder/*/cross_attention/pattern']
    with intervene(dict.fromkeys(names, copy)):
        scores = alignment_scores(run, pairs, golds)
    assert len(scores) == 7
    for method, score in scores.items():
        assert score.value == 1, method


@pytest.mark.ci
def test_models_without_stored_cross_attention_are_rejected():
    ((pair,), _) = short_pairs(1)
    with pytest.raises(UserError, match='not an encoder-decoder'):
        Attributor(run_of([pair], architecture='decoder_only'))
    explain = Attributor(run_of([pair], attention='blockwise'))
    with pytest.raises(UserError, match='does not store weights'):
        explain(pair)
