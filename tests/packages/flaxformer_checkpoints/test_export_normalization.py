"""Tests that SentencePiece alone gives a run's ids with an exported model."""

import random
import sys
import unicodedata

import pytest
import sentencepiece

from experiments.data.tokenizers.sentencepiece import SentencePiece
from flaxformer_checkpoints.exports import normalization
from parallel_grammar.source import Grammar

TOKENIZERS = {
    # Bytes tell all characters apart, where unknown ones have one id.
    'bytes': SentencePiece(vocab_size=400, byte_fallback=True),
    'bpe': SentencePiece(vocab_size=120),
    'unigram': SentencePiece(vocab_size=120, model_type='unigram'),
    'symbols': SentencePiece(vocab_size=120, user_defined_symbols=['<2de>', 'low']),
}
TEXTS = [
    'one  two   three',
    ' at the start',
    'at the end ',
    'no\u00a0break',
    'a\ttab\t\tand another',
    'a final return\r',
    'a\r\nline',
    ' \t\u3000\x1c',
    '',
    unicodedata.normalize('NFD', 'déjà ậ ǖ ᾧ 한국어 Ǻ'),
    'a\u0302\u0323 e\u0323\u0302 \u1eb9\u0302 o\u0302\u0301 A\u030a\u0301',
    'e\u0323\u0301 x\u0301 \u0958 \u212b \u2126 \uf900',
    '<2de>  \u2581low\u2581line \u2581',
    '</s> <s> <pad> <unk> <0x41>',
    '日本 \U0001f600',
]


@pytest.fixture(scope='module', params=TOKENIZERS)
def both(request):
    tokenizer = TOKENIZERS[request.param]
    texts = [text for pair in Grammar(pairs=100).train() for text in pair]
    trained = tokenizer.opened(tokenizer.train([*texts, 'déjà ệ </s> <s> <pad> <unk>']))
    model = normalization.self_normalizing(trained.model)
    return trained, sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.ci
def test_exported_model_gives_the_ids_of_the_run(both):
    ours, theirs = both
    assert theirs.encode(TEXTS) == ours.encode(TEXTS)
    assert theirs.decode(theirs.encode(TEXTS)) == ours.decode(ours.encode(TEXTS))


@pytest.mark.parametrize('both', ['bytes'], indirect=True)
def test_every_character_has_the_ids_of_the_run(both):
    ours, theirs = both
    characters = [chr(i) for i in range(1, sys.maxunicode + 1)]
    decomposed = [unicodedata.normalize('NFD', x) for x in characters]
    texts = [new for old, new in zip(characters, decomposed, strict=True) if old != new]
    texts += [x for x in characters if x.isspace()]
    sample = random.Random(0).sample(characters, 2000)
    texts += [x for x in sample if not '\ud800' <= x <= '\udfff']
    texts = [f'{text} b{text} ' for text in texts]
    assert theirs.encode(texts) == ours.encode(texts)
