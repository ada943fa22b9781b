"""The tokenizers of mBART, mBART-50, M2M100 and NLLB: languages are tokens."""

import dataclasses

from experiments.data.published import languages
from experiments.data.published.opened import Model, Opened
from experiments.data.published.tokenizer import PublishedTokenizer
from experiments.errors import UserError

FAIRSEQ_MODEL = 'sentencepiece.bpe.model'
# fairseq begins with <s>, <pad>, </s> and <unk>, where SentencePiece has <unk>, <s> and
# </s>. All others are one further.
_OFFSET = 1
_OF_FAIRSEQ = 3
_PADDING, _END, _UNKNOWN = 1, 2, 3
# How a language's token is written.
_MBART = r'([a-z]{2,3}_[A-Z]{2})'
_NLLB = r'([a-z]{3}_[A-Z][a-z]{3})'
_M2M100 = r'__([a-z]+)__'
# A language of mBART-50 that mBART does not have, by which they are told apart.
_ONLY_IN_50 = 'af_ZA'


def read_mbart(opened: Opened) -> PublishedTokenizer:
    """mBART's, or mBART-50's.

    mBART's sources end with their language, and its targets begin with theirs as the
    start token. mBART-50's sources and targets both begin with it.
    """
    model = _fairseq_model(opened)
    first = model.processor.vocab_size() + _OFFSET
    numbers = languages.read(opened, _MBART, first)
    chosen = languages.pair(opened, numbers)
    kind = _kind(opened, ('MBartTokenizer', 'MBart50Tokenizer'), _ONLY_IN_50 in numbers)
    if kind == 'MBart50Tokenizer':
        return _with_prefixes(opened, model, chosen)
    special = dataclasses.replace(opened.request.special_tokens, start=chosen.target)
    vocabulary = opened.vocabulary(
        model.path, _fairseq_pieces(model), _UNKNOWN, special
    )
    vocabulary = dataclasses.replace(vocabulary, source_last=(_END, chosen.source))
    return PublishedTokenizer(model.data, model.data, vocabulary)


def read_m2m100(opened: Opened) -> PublishedTokenizer:
    """M2M100's, with numbers in vocab.json, or NLLB's, with those of fairseq."""
    classes = ('NllbTokenizer', 'M2M100Tokenizer')
    kind = _kind(opened, classes, opened.holds('vocab.json'))
    if kind == 'NllbTokenizer':
        return _read_nllb(opened)
    model = opened.model(FAIRSEQ_MODEL)
    numbers = opened.numbers('vocab.json')
    chosen = languages.pair(opened, languages.read(opened, _M2M100, len(numbers)))
    pieces: list[str | None] = [None] * opened.request.rows
    for piece, number in numbers.items():
        pieces[number] = None if piece == '<s>' else piece
    path = opened.request.folder / 'vocab.json'
    vocabulary = opened.vocabulary(path, pieces, numbers['<unk>'])
    vocabulary = dataclasses.replace(
        vocabulary, source_first=chosen.source, target_first=chosen.target
    )
    return PublishedTokenizer(model.data, model.data, vocabulary)


def _read_nllb(opened: Opened) -> PublishedTokenizer:
    if opened.settings.get('legacy_behaviour'):
        raise UserError(
            f'{opened.request.folder}/tokenizer_config.json has legacy_behaviour=true, '
            'by which sources end with their language, and NLLB was not trained so: '
            'remove it'
        )
    model = _fairseq_model(opened)
    first = model.processor.vocab_size() + _OFFSET
    chosen = languages.pair(opened, languages.read(opened, _NLLB, first))
    return _with_prefixes(opened, model, chosen)


def _kind(opened: Opened, classes: tuple[str, str], is_second: bool) -> str:
    """Which of two tokenizers a folder has; its files decide where no class is given.

    Raises:
      UserError: it is another one.
    """
    given = opened.tokenizer_class
    if given in classes:
        return given
    if given in ('', 'PreTrainedTokenizer', 'TokenizersBackend'):
        return classes[is_second]
    raise UserError(
        f'{opened.request.folder} has tokenizer_class={given}, and of '
        f'model_type={opened.request.model_type} only {" and ".join(classes)} can be '
        'converted'
    )


def _with_prefixes(
    opened: Opened, model: Model, chosen: languages.Pair
) -> PublishedTokenizer:
    """Sources and targets that begin with their language."""
    vocabulary = opened.vocabulary(model.path, _fairseq_pieces(model), _UNKNOWN)
    vocabulary = dataclasses.replace(
        vocabulary, source_first=chosen.source, target_first=chosen.target
    )
    return PublishedTokenizer(model.data, model.data, vocabulary)


def _fairseq_model(opened: Opened) -> Model:
    """A model whose tokens fairseq has numbered anew.

    Raises:
      UserError: its own special tokens, or the checkpoint's, are not those of fairseq.
    """
    model = opened.model(FAIRSEQ_MODEL)
    processor = model.processor
    own = (processor.unk_id(), processor.bos_id(), processor.eos_id())
    if own != (0, 1, 2):
        raise UserError(
            f'{model.path} has <unk>, <s> and </s> as tokens {own}, and fairseq has '
            'them as (0, 1, 2): it is of another checkpoint'
        )
    special = opened.request.special_tokens
    if (special.padding, special.end) != (_PADDING, _END):
        raise UserError(
            f'{opened.request.folder}/config.json has pad_token_id={special.padding} '
            f'and eos_token_id={special.end}, and fairseq has {_PADDING} and {_END}: '
            'config and tokenizer are of two checkpoints'
        )
    return model


def _fairseq_pieces(model: Model) -> list[str | None]:
    return [None] * (_OF_FAIRSEQ + _OFFSET) + model.pieces()[_OF_FAIRSEQ:]
