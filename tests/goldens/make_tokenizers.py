"""Makes the tokenizers in `tokenizers/`, and what Transformers does with them.

    python tests/goldens/make_tokenizers.py [NAME …]

Each folder has the files of a tokenizer, trained on a few words, with as many pieces as
a checkpoint in `families/` has rows, or a few less. `golden.json` has the name of that
checkpoint; the languages; texts as sources and as targets with their tokens; tokens
with their texts; and what the checkpoint makes of the texts by greedy search. PyTorch
and Transformers are needed to make them, and not to test with them.

Transformers 5 reads SentencePiece models by a program of its own, which does not
normalise for mBART and takes a blank for a piece in most families: those texts are left
out there.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import tokenizers
import torch
import transformers

HERE = Path(__file__).parent
EXTRA_LENGTH = 3  # tokens that a translation may have more than its source
WORDS = 'abba cab a bac ab caba bab'.split()
# With an unknown letter, white space of several kinds, and a letter to be normalised.
TEXTS = ['cab abba', ' a  bac\tab', 'Ab zab', 'xa', '', ' ', 'abacabba bac']
BART_ROWS = 280
BART_TEXTS = (
    "It's a cat's hat, isn't it? I'll say: THE CAT'S.",
    'Die Katze schläft über dem Bären, 1234 Öl  und 3½ Brötchen.',
    '  zwei  Leerzeichen, 😀👩‍🚀 und 東京\tא \u3000 e\u0301 \x00\x1c\x7f\u00ad ',
    'madeupword0000 </ s>',
)
SETTINGS = dict(character_coverage=1.0, minloglevel=2, num_threads=1)


def train(path: Path, words: list[str], **settings) -> None:
    """A model that has a for A, and a space for a tab, by rules of its own."""
    with contextlib.chdir(path.parent):  # the model holds the names of files
        Path('rules').write_text('41\t61\n9\t20\n', encoding='utf-8')
        train_plainly(path, words, normalization_rule_tsv='rules', **settings)
        Path('rules').unlink()


def train_plainly(path: Path, words: list[str], **settings) -> None:
    """A model of pairs of words."""
    model = io.BytesIO()
    lines = [f'{one} {other}' for one in words for other in words]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, **SETTINGS, **settings
    )
    path.write_bytes(model.getvalue())


def make_t5(folder: Path, vocab_size: int = 14) -> None:
    """Pieces to token 13; 14 and 15 are extra, and 16 is a row that none has."""
    train(
        folder / 'spiece.model',
        WORDS,
        vocab_size=vocab_size,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        model_type='unigram',
    )


def make_marian(folder: Path) -> None:
    """A vocabulary of both, in an order of its own; some pieces it does not have."""
    sizes = dict(vocab_size=13, model_type='bpe', unk_id=0, bos_id=1, eos_id=2)
    train(folder / 'source.spm', WORDS, **sizes)
    train(folder / 'target.spm', ['cbb', 'bcbb', *WORDS[:3]], **sizes)
    pieces = set()
    for name in ('source.spm', 'target.spm'):
        model = sentencepiece.SentencePieceProcessor(str(folder / name))
        pieces |= {model.id_to_piece(i) for i in range(3, model.vocab_size())}
    chosen = sorted(pieces)[:13]
    names = ['</s>', '<unk>', *reversed(chosen), '>>abc<<', '<pad>']
    assert len(names) == 17, chosen
    numbers = {piece: i for i, piece in enumerate(names)}
    text = json.dumps(numbers, ensure_ascii=False)
    (folder / 'vocab.json').write_text(text + '\n', encoding='utf-8')


FAIRSEQ_MODEL = 'sentencepiece.bpe.model'


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + '\n', encoding='utf-8')


def make_pegasus(folder: Path) -> None:
    """12 pieces, of which those from token 2 on are 5 further, and not 103."""
    make_t5(folder, vocab_size=12)
    config = {'tokenizer_class': 'PegasusTokenizer', 'offset': 5}
    write_json(folder / 'tokenizer_config.json', config)


def make_mbart(folder: Path) -> None:
    """Pieces to token 12, then all languages, of which four have rows."""
    make_of_fairseq(folder, vocab_size=12, model_type='unigram')
    from transformers.models.mbart import tokenization_mbart

    codes = tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
    listed = {'additional_special_tokens': codes}
    write_json(folder / 'special_tokens_map.json', listed)


def make_of_fairseq(folder: Path, **settings) -> None:
    path = folder / FAIRSEQ_MODEL
    train(path, WORDS, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, **settings)


def make_mbart50(folder: Path) -> None:
    """The same; the languages have their numbers in a file."""
    make_of_fairseq(folder, vocab_size=12, model_type='unigram')
    from transformers.models.mbart50 import tokenization_mbart50

    codes = tokenization_mbart50.FAIRSEQ_LANGUAGE_CODES
    about = dict(lstrip=False, normalized=False, rstrip=False, special=True)
    added = {13 + i: {'content': code, **about} for i, code in enumerate(codes)}
    config = {'tokenizer_class': 'MBart50Tokenizer', 'added_tokens_decoder': added}
    write_json(folder / 'tokenizer_config.json', config)


def make_nllb(folder: Path) -> None:
    """Pieces to token 11, four languages, and the mask."""
    make_of_fairseq(folder, vocab_size=11, model_type='bpe')
    languages = ['ace_Arab', 'eng_Latn', 'fra_Latn', 'zho_Hans']
    numbers = {token: 12 + i for i, token in enumerate([*languages, '<mask>'])}
    write_json(folder / 'added_tokens.json', numbers)
    config = {
        'tokenizer_class': 'NllbTokenizer',
        'additional_special_tokens': languages,
    }
    write_json(folder / 'tokenizer_config.json', config)


def make_m2m100(folder: Path) -> None:
    """9 pieces in an order of their own, then the eight languages of WMT 21."""
    make_of_fairseq(folder, vocab_size=13, model_type='bpe')
    model = sentencepiece.SentencePieceProcessor(str(folder / FAIRSEQ_MODEL))
    pieces = [model.id_to_piece(i) for i in range(4, model.vocab_size())]
    names = ['<s>', '<pad>', '</s>', '<unk>', *sorted(pieces)[:5]]
    write_json(folder / 'vocab.json', {piece: i for i, piece in enumerate(names)})
    from transformers.models.m2m_100 import tokenization_m2m_100

    codes = tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES['wmt21']
    tokens = [f'__{code}__' for code in codes]
    write_json(
        folder / 'special_tokens_map.json', {'additional_special_tokens': tokens}
    )
    config = {'tokenizer_class': 'M2M100Tokenizer', 'language_codes': 'wmt21'}
    write_json(folder / 'tokenizer_config.json', config)


def make_t5gemma(folder: Path) -> None:
    """Text as it is, with pieces for two spaces and for a turn of a conversation."""
    train_plainly(
        folder / 'tokenizer.model',
        WORDS,
        vocab_size=17,
        model_type='bpe',
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece='<pad>',
        eos_piece='<eos>',
        bos_piece='<bos>',
        user_defined_symbols=['<turn>', '▁▁'],
        normalization_rule_name='identity',
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
    )
    config = {'tokenizer_class': 'GemmaTokenizer', 'add_bos_token': True}
    write_json(folder / 'tokenizer_config.json', config)


def make_bart(folder: Path) -> None:
    """All bytes and a few words; the mask has no row, as in bart-large-cnn.

    The checkpoint is its own, with a row for each piece and two more.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=BART_ROWS - 2,
        special_tokens=['<s>', '<pad>', '</s>', '<unk>'],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(BART_TEXTS, trainer)
    model = json.loads(tokenizer.to_str())['model']
    write_json(folder / 'vocab.json', model['vocab'] | {'<mask>': BART_ROWS})
    merges = ''.join(f'{left} {right}\n' for left, right in model['merges'])
    (folder / 'merges.txt').write_text('#version: 0.2\n' + merges, encoding='utf-8')
    import make_families  # beside this script

    changes = dict(
        vocab_size=BART_ROWS, max_position_embeddings=90, scale_embedding=False
    )
    make_families.random_model('bart', 3, changes).save_pretrained(folder)


class Kind(NamedTuple):
    """How a tokenizer is made, and what of Transformers reads it.

    Attributes:
      maker: writes its files.
      tokenizer, model: the classes.
      family: the checkpoint.
      settings: of the tokenizer.
      more: texts of this one alone.
      otherwise: texts that Transformers 5 reads otherwise than SentencePiece.
      first: the token that targets begin with, where it is no language.
    """

    maker: Callable[[Path], None]
    tokenizer: str
    model: str
    family: str
    settings: dict[str, Any] = {}
    more: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    first: int | None = None


def languages(source: str, target: str) -> dict[str, Any]:
    return dict(src_lang=source, tgt_lang=target)


KINDS = {
    't5': Kind(
        make_t5, 'T5Tokenizer', 'T5ForConditionalGeneration', 't5', dict(extra_ids=2)
    ),
    'marian': Kind(
        make_marian,
        'MarianTokenizer',
        'MarianMTModel',
        'marian',
        more=('>>abc<< cab', '>>xyz cab'),
    ),
    'pegasus': Kind(
        make_pegasus,
        'PegasusTokenizer',
        'PegasusForConditionalGeneration',
        'pegasus',
        otherwise=(' ',),
    ),
    'mbart': Kind(
        make_mbart,
        'MBartTokenizer',
        'MBartForConditionalGeneration',
        'mbart',
        languages('cs_CZ', 'en_XX'),
        otherwise=('Ab zab',),
    ),
    'mbart50': Kind(
        make_mbart50,
        'MBart50Tokenizer',
        'MBartForConditionalGeneration',
        'mbart',
        languages('cs_CZ', 'ar_AR'),
        otherwise=(' ',),
    ),
    'nllb': Kind(
        make_nllb,
        'NllbTokenizer',
        'M2M100ForConditionalGeneration',
        'm2m100',
        languages('eng_Latn', 'ace_Arab'),
        otherwise=(' ',),
    ),
    'm2m100': Kind(
        make_m2m100,
        'M2M100Tokenizer',
        'M2M100ForConditionalGeneration',
        'm2m100',
        languages('en', 'ha'),
    ),
    't5gemma': Kind(
        make_t5gemma,
        'GemmaTokenizer',
        'T5GemmaForConditionalGeneration',
        't5gemma',
        more=('cab<turn>ab',),
        otherwise=(' ',),
    ),
    'bart': Kind(
        make_bart,
        'BartTokenizer',
        'BartForConditionalGeneration',
        'bart',
        more=BART_TEXTS,
        first=0,
    ),
}


def make(name: str) -> None:
    folder = HERE / 'tokenizers' / name
    folder.mkdir(parents=True, exist_ok=True)
    kind = KINDS[name]
    kind.maker(folder)
    tokenizer = getattr(transformers, kind.tokenizer).from_pretrained(
        folder, **kind.settings
    )
    texts = [text for text in TEXTS if text not in kind.otherwise] + [*kind.more]
    rows = [[i, 3, i] for i in range(3, 14)] + [[5, 2, 8], [4, 14, 7]]
    model_class = getattr(transformers, kind.model)
    own = (folder / 'config.json').exists()
    checkpoint = folder if own else HERE / 'families' / kind.family
    model = model_class.from_pretrained(checkpoint).double().eval()
    golden = {
        'family': kind.family,
        'languages': [kind.settings.get(x, '') for x in ('src_lang', 'tgt_lang')],
        'texts': texts,
        'source': [tokenizer(text).input_ids for text in texts],
        'target': [tokenizer(text_target=text).input_ids for text in texts],
        'rows': rows,
        'decoded': [tokenizer.decode(row, skip_special_tokens=True) for row in rows],
        'greedy': [translated(model, tokenizer, name, text) for text in texts],
    }
    entries = [f'"{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in golden.items()]
    text = '{\n' + ',\n'.join(entries) + '\n}\n'
    (folder / 'golden.json').write_text(text, encoding='utf-8')
    print(text)


def translated(model, tokenizer, name: str, text: str) -> str:
    """By greedy search; '' of a blank text, as here."""
    if not text.strip():
        return ''
    source = tokenizer(text, return_tensors='pt')
    length = source.input_ids.shape[1]
    config = model.config
    start, first = config.decoder_start_token_id, KINDS[name].first
    if KINDS[name].settings.get('tgt_lang'):
        first = tokenizer(text_target='').input_ids[0]
    if name == 'mbart':
        start, first = tokenizer(text_target='').input_ids[-1], None
    never = {config.pad_token_id, start} - {config.eos_token_id}
    with torch.no_grad():
        out = model.generate(
            **source,
            # Without the end token, which is not chosen at the limit but given.
            max_new_tokens=length - 1 + EXTRA_LENGTH - 1,
            do_sample=False,
            num_beams=1,
            decoder_start_token_id=start,
            forced_bos_token_id=first,
            forced_eos_token_id=None,
            bad_words_ids=[[token] for token in sorted(never)],
        )
    return tokenizer.decode(out[0], skip_special_tokens=True)


if __name__ == '__main__':
    for chosen in sys.argv[1:] or KINDS:
        make(chosen)
