"""Makes the tokenizers in `tokenizers/`, and what Transformers does with them.

    python tests/goldens/make_tokenizers.py [FAMILY …]

Each folder has the files of a family's tokenizer, trained on a few words, with as many
pieces as the checkpoint of that name in `families/` has rows, or a few less.
`golden.json` has texts as sources and as targets with their tokens, tokens with their
texts, and what that checkpoint makes of the texts by greedy search. PyTorch and
Transformers are needed to make them, and not to test with them.
"""

import json
import sys
from pathlib import Path

import sentencepiece
import torch
import transformers

HERE = Path(__file__).parent
EXTRA_LENGTH = 3  # tokens that a translation may have more than its source
WORDS = 'abba cab a bac ab caba bab'.split()
# With an unknown letter, white space of several kinds, and a letter to be normalised.
TEXTS = ['cab abba', ' a  bac\tab', 'Ab zab', 'xa', '', ' ', 'abacabba bac']
SETTINGS = dict(character_coverage=1.0, minloglevel=2, num_threads=1)


def train(path: Path, words: list[str], **settings) -> None:
    """A model that has a for A, and a space for a tab, by rules of its own."""
    rules = path.with_suffix('.tsv')
    rules.write_text('41\t61\n9\t20\n', encoding='utf-8')
    lines = [f'{one} {other}' for one in words for other in words]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(path.with_suffix('')),
        normalization_rule_tsv=str(rules),
        **SETTINGS,
        **settings,
    )
    rules.unlink()
    path.with_suffix('.vocab').unlink()
    path.with_suffix('.model').rename(path)


def make_t5(folder: Path) -> None:
    """Pieces to token 13; 14 and 15 are extra, and 16 is a row that none has."""
    train(
        folder / 'spiece.model',
        WORDS,
        vocab_size=14,
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


def tokenizer_of(name: str, folder: Path):
    if name == 't5':
        return transformers.T5Tokenizer.from_pretrained(folder, extra_ids=2)
    return transformers.MarianTokenizer.from_pretrained(folder)


MAKERS = {'t5': make_t5, 'marian': make_marian}
MODELS = {'t5': 'T5ForConditionalGeneration', 'marian': 'MarianMTModel'}


def make(name: str) -> None:
    folder = HERE / 'tokenizers' / name
    folder.mkdir(parents=True, exist_ok=True)
    MAKERS[name](folder)
    tokenizer = tokenizer_of(name, folder)
    texts = TEXTS + (['>>abc<< cab', '>>xyz cab'] if name == 'marian' else [])
    rows = [[i, 3, i] for i in range(3, 14)] + [[5, 2, 8], [4, 14, 7]]
    kind = getattr(transformers, MODELS[name])
    model = kind.from_pretrained(HERE / 'families' / name).double().eval()
    golden = {
        'texts': texts,
        'source': [tokenizer(text).input_ids for text in texts],
        'target': [tokenizer(text_target=text).input_ids for text in texts],
        'rows': rows,
        'decoded': [tokenizer.decode(row, skip_special_tokens=True) for row in rows],
        'greedy': [translated(model, tokenizer, text) for text in texts],
    }
    entries = [f'"{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in golden.items()]
    text = '{\n' + ',\n'.join(entries) + '\n}\n'
    (folder / 'golden.json').write_text(text, encoding='utf-8')
    print(text)


def translated(model, tokenizer, text: str) -> str:
    """By greedy search; '' of a blank text, as here."""
    source = tokenizer(text, return_tensors='pt')
    length = source.input_ids.shape[1]
    if length == 1:
        return ''
    with torch.no_grad():
        out = model.generate(
            **source,
            # Without the end token, which is not chosen at the limit but given.
            max_new_tokens=length - 1 + EXTRA_LENGTH - 1,
            do_sample=False,
            num_beams=1,
            forced_eos_token_id=None,
            bad_words_ids=[[model.config.pad_token_id]],
        )
    return tokenizer.decode(out[0], skip_special_tokens=True)


if __name__ == '__main__':
    for chosen in sys.argv[1:] or MAKERS:
        make(chosen)
