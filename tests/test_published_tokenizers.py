"""The tokenizers of published checkpoints: their tokens are those of Transformers.

Those in goldens/tokenizers/ were trained on a few words; what Transformers makes of
texts and of tokens stands beside them.
"""

import io
import json

import numpy as np
import pytest
import sentencepiece
from published_tokenizers import NAMES, checkpoint, golden_of

from experiments.data import collate, corpus
from experiments.data.published import folder
from experiments.data.published import tokenizer as published
from experiments.data.published.opened import Request
from experiments.errors import UserError
from experiments.reports import looking
from flaxformer_lite.config import spec
from flaxformer_lite.pretrained import load
from flaxformer_lite.special_tokens import SpecialTokens

FAMILIES = 'flaxformer_lite.families'

every_golden = pytest.mark.parametrize('name', NAMES)
# The others take a text as it is.
WITH_RULES = [name for name in NAMES if name not in ('t5gemma', 'bart')]


def request_of(theirs, source='', target=''):
    described = load.describe_pretrained(theirs)
    config = json.loads((theirs / 'config.json').read_text('utf-8'))
    sizes = described.vocab_size, described.special_tokens
    return Request(theirs, config['model_type'], *sizes, source, target)


def read(name, path):
    theirs = checkpoint(name, path / name)
    return folder.read(request_of(theirs, *golden_of(name)['languages']))


@every_golden
def test_tokens_are_those_of_transformers(name, tmp_path):
    golden = golden_of(name)
    tokenizer = read(name, tmp_path)
    tokenizer.save(tmp_path / 'tokenizer.model')
    assert published.load(tmp_path / 'tokenizer.model') == tokenizer
    end = [] if tokenizer.source_end is None else [tokenizer.source_end]
    found = zip(golden['texts'], tokenizer.encode(golden['texts']), strict=True)
    for (text, source), theirs in zip(found, golden['source'], strict=True):
        assert source == [] if not text.strip() else source + end == theirs


@every_golden
def test_targets_are_what_transformers_hands_to_the_decoder(name, tmp_path):
    golden = golden_of(name)
    tokenizer = read(name, tmp_path)
    special = tokenizer.special_tokens
    found = zip(golden['texts'], tokenizer.encode_target(golden['texts']), strict=True)
    for (text, target), theirs in zip(found, golden['target'], strict=True):
        row = [special.start, *target, special.end]
        if name == 'mbart':  # the model takes the last of its labels for the first
            theirs = [theirs[-1], *theirs[:-1]]
        elif name == 't5gemma':  # whose tokenizer has one form, that of sources
            theirs = [*theirs, special.end]
        else:
            theirs = [special.start, *theirs]
        assert target == [] if not text.strip() else row == theirs
    assert tokenizer.forced_first in (None, golden['target'][0][0])


@every_golden
def test_texts_of_tokens_are_those_of_transformers(name, tmp_path):
    golden = golden_of(name)
    tokenizer = read(name, tmp_path)
    special = tokenizer.special_tokens
    theirs = zip(golden['rows'], golden['decoded'], strict=True)
    expected = [(row, text) for row, text in theirs if special.end not in row]
    if name != 'bart':  # whose texts are as they are, spaces and all
        expected = [(row, text.strip()) for row, text in expected]
    start = [] if special.start == special.end else [special.start]
    last = [special.end, 5, special.padding]
    rows = [[*start, *row, *last] for row, _ in expected]
    assert len(rows) > 10
    assert tokenizer.decode(rows) == [text for _, text in expected]


@pytest.mark.parametrize('name', WITH_RULES)
def test_a_text_is_normalised_by_the_model_and_a_blank_one_has_no_token(name, tmp_path):
    tokenizer = read(name, tmp_path)
    plain, other = tokenizer.encode(['ab bac', ' Ab\tbac '])
    assert plain == other
    assert tokenizer.encode(['', ' ', '\t']) == [[]] * 3
    assert tokenizer.encode_target([' ']) == [[]]


def test_what_sources_end_with_is_in_every_batch(tmp_path):
    """mBART's sources end with a language behind the end token, T5Gemma's with text."""
    for name in ('mbart', 't5gemma', 't5'):
        golden = golden_of(name)
        tokenizer = read(name, tmp_path)
        texts = [text for text in golden['texts'] if text.strip()]
        rows = [row for row in golden['source'] if len(row) > 2]
        assert len(rows) == len(texts)
        padding = tokenizer.special_tokens.padding
        length = max(map(len, rows))
        sources = [row + [padding] * (length - len(row)) for row in rows]

        pairs = [(text, text) for text in texts]
        tokens = corpus.tokenize(pairs, tokenizer)
        index = np.arange(len(pairs))
        alone = collate.pairs_batch(tokens, (len(pairs), length + 2), index, index)
        np.testing.assert_array_equal(alone['source'][:, :length], sources)
        is_token = alone['source'] != padding
        np.testing.assert_array_equal(alone['source_segments'], is_token)
        np.testing.assert_array_equal(
            looking.pairs_batch(tokenizer, pairs)['source'], sources
        )
        packed = collate.pairs_batch(tokens, (1, 99), index, 0 * index)
        found = packed['source'][packed['source_segments'] > 0]
        assert found.tolist() == [token for row in rows for token in row]


def edit(path, **changes):
    """Changes entries of a JSON file; None removes one."""
    content = json.loads(path.read_text('utf-8')) | changes
    content = {k: v for k, v in content.items() if v is not None}
    path.write_text(json.dumps(content), encoding='utf-8')


def refuses(theirs, words, *languages):
    with pytest.raises(UserError) as caught:
        folder.read(request_of(theirs, *languages))
    assert words in str(caught.value), caught.value


def test_languages_are_found_in_any_file_that_says_them(tmp_path):
    theirs = checkpoint('mbart', tmp_path / 'mbart')
    languages = golden_of('mbart')['languages']
    listed = theirs / 'special_tokens_map.json'
    expected = folder.read(request_of(theirs, *languages))
    assert (
        expected.special_tokens.start == 16 == expected.vocabulary.source_last[0] + 14
    )
    codes = json.loads(listed.read_text('utf-8'))['additional_special_tokens']
    listed.unlink()
    numbers = {code: 13 + i for i, code in enumerate(codes)}
    of_json = [{'id': i, 'content': code} for code, i in numbers.items()]
    as_decoder = {str(i): {'content': code} for code, i in numbers.items()}
    files = {
        'added_tokens.json': numbers,
        'tokenizer.json': {'added_tokens': of_json},
        'tokenizer_config.json': {'added_tokens_decoder': as_decoder},
        'special_tokens_map.json': {'extra_special_tokens': [*codes, '<s>']},
    }
    refuses(theirs, 'does not say which tokens are languages: copy', *languages)
    for name, content in files.items():
        (theirs / name).write_text(json.dumps(content), encoding='utf-8')
        found = folder.read(request_of(theirs, *languages))
        assert found.digest == expected.digest, name
        (theirs / name).unlink()


def test_a_language_that_is_not_there_is_refused_by_the_flag(tmp_path):
    theirs = checkpoint('mbart', tmp_path / 'mbart')
    refuses(theirs, 'give --source and --target, of the 25 languages of')
    refuses(theirs, 'give --source and --target', 'en_XX', '')
    refuses(
        theirs,
        f'--target=en is none of the 25 languages of {theirs}; the nearest are en_XX',
        *('en_XX', 'en'),
    )
    refuses(theirs, '--source=</s> is none of', '</s>', 'en_XX')
    edit(theirs / 'special_tokens_map.json', additional_special_tokens=5)
    refuses(theirs, 'lists special tokens otherwise than', 'en_XX', 'en_XX')
    edit(theirs / 'special_tokens_map.json', additional_special_tokens=['en_XX'] * 9)
    refuses(theirs, 'has the number 21 for the language en_XX', 'en_XX', 'en_XX')


def test_which_tokenizer_a_folder_has_is_said_by_its_class_or_its_files(tmp_path):
    for name in ('mbart50', 'nllb', 'm2m100'):
        theirs = checkpoint(name, tmp_path / name)
        config, languages = (
            theirs / 'tokenizer_config.json',
            golden_of(name)['languages'],
        )
        expected = folder.read(request_of(theirs, *languages))
        edit(config, tokenizer_class=None)
        assert folder.read(request_of(theirs, *languages)).digest == expected.digest
        edit(config, tokenizer_class='NllbTokenizerFast')
        if name == 'nllb':
            assert folder.read(request_of(theirs, *languages)).digest == expected.digest
        edit(theirs / 'config.json', tokenizer_class='SMALL100Tokenizer')
        edit(config, tokenizer_class=None)
        refuses(
            theirs, 'tokenizer_class=SMALL100Tokenizer, and of model_type=', *languages
        )


def test_m2m100_without_its_numbers_is_refused(tmp_path):
    theirs = checkpoint('m2m100', tmp_path / 'm2m100')
    (theirs / 'vocab.json').unlink()
    refuses(theirs, 'holds no vocab.json: copy it', *golden_of('m2m100')['languages'])


def test_what_is_of_two_checkpoints_is_refused(tmp_path):
    nllb = checkpoint('nllb', tmp_path / 'nllb')
    languages = golden_of('nllb')['languages']
    edit(nllb / 'tokenizer_config.json', legacy_behaviour=True)
    refuses(nllb, 'legacy_behaviour=true, by which sources end with', *languages)
    edit(nllb / 'tokenizer_config.json', legacy_behaviour=None)
    plain = checkpoint('pegasus', tmp_path / 'pegasus') / 'spiece.model'
    (nllb / 'sentencepiece.bpe.model').write_bytes(plain.read_bytes())
    refuses(
        nllb, 'has <unk>, <s> and </s> as tokens (2, -1, 1), and fairseq', *languages
    )

    mbart = checkpoint('mbart', tmp_path / 'mbart')
    edit(mbart / 'generation_config.json', eos_token_id=3)
    refuses(
        mbart, 'pad_token_id=1 and eos_token_id=3, and fairseq has 1 and 2', 'a', 'b'
    )

    pegasus = checkpoint('pegasus', tmp_path / 'other')
    edit(pegasus / 'tokenizer_config.json', offset='5')
    refuses(pegasus, "has offset='5', which is no number of tokens")
    edit(pegasus / 'tokenizer_config.json', offset=None)  # as it was published: 103
    refuses(pegasus, 'spiece.model has 115 pieces, and the model 17 rows')


def test_gemma_without_its_sentencepiece_model_is_refused(tmp_path):
    for family in ('t5gemma', 't5gemma2'):
        theirs = checkpoint('t5gemma', tmp_path / family)
        edit(theirs / 'tokenizer_config.json', add_eos_token=True, add_bos_token=False)
        request = request_of(theirs)._replace(model_type=family)
        tokenizer = folder.read(request)
        assert tokenizer.encode(['ab']) == [[6]] and tokenizer.source_end == 1
        (theirs / 'tokenizer.model').rename(theirs / 'tokenizer.json')
        with pytest.raises(UserError) as caught:
            folder.read(request)
        words = (
            f'the tokenizer of model_type={family} is tokenizer.model; tokenizer.json'
        )
        assert words in str(caught.value)


def test_pieces_of_bytes_make_any_letter(tmp_path):
    """As in umT5's model; what has no piece comes back as it was."""
    theirs = checkpoint('t5', tmp_path / 't5')
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(['cab abba', 'bac'] * 9),
        model_writer=model,
        vocab_size=268,
        byte_fallback=True,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
        num_threads=1,
    )
    (theirs / 'spiece.model').write_bytes(model.getvalue())
    request = request_of(theirs)._replace(model_type='umt5', rows=300)
    tokenizer = folder.read(request)
    texts = ['cab', 'zäh abba 東']
    rows = tokenizer.encode(texts)
    assert tokenizer.vocabulary.unknown not in rows[0] + rows[1]
    assert tokenizer.decode(rows) == texts


def test_tokens_of_bytes_give_back_a_text_as_it_was(tmp_path):
    """Umlauts, emoji, and spaces wherever they stand; of BART and of ByT5."""
    theirs = checkpoint('bart', tmp_path / 'bart')
    texts = [text for text in golden_of('bart')['texts'] if text.strip()]
    bart = folder.read(request_of(theirs))
    assert bart.decode(bart.encode(texts)) == texts
    half = bart.vocabulary.numbers['Ã']  # of a letter, whose second byte is missing
    assert bart.decode([[half]]) == ['\N{REPLACEMENT CHARACTER}']
    # Words that were cut before are not cut again.
    assert bart.encode(texts) == bart.encode(texts)

    edit(theirs / 'config.json', tokenizer_class='ByT5Tokenizer', model_type='t5')
    request = request_of(checkpoint('t5', tmp_path / 't5'))
    byt5 = folder.read(request._replace(folder=theirs, rows=384))
    # From Transformers' documentation.
    assert byt5.encode(['hello']) == [[107, 104, 111, 111, 114]]
    assert byt5.decode(byt5.encode(texts)) == texts
    assert byt5.decode([[100, 3 + 0xC3, 258, 259, 383]]) == ['a']
    byt5.save(tmp_path / 'tokenizer.model')
    assert published.load(tmp_path / 'tokenizer.model') == byt5
    special = SpecialTokens(padding=1, start=2, end=5)
    with pytest.raises(UserError, match='eos_token_id=5, and ByT5 has 0 and 1'):
        folder.read(request._replace(folder=theirs, special_tokens=special))


def as_tokenizer_json(theirs):
    """Writes in one file what vocab.json and merges.txt hold, and removes these."""
    numbers = json.loads((theirs / 'vocab.json').read_text('utf-8'))
    _, *merges, _ = (theirs / 'merges.txt').read_text('utf-8').split('\n')
    content = {
        'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': False},
        'model': {'type': 'BPE', 'vocab': numbers, 'merges': merges},
    }
    (theirs / 'tokenizer.json').write_text(json.dumps(content), encoding='utf-8')
    for name in ('vocab.json', 'merges.txt'):
        (theirs / name).unlink()
    return content


def test_bart_is_read_of_two_files_or_of_one(tmp_path):
    theirs = checkpoint('bart', tmp_path / 'bart')
    expected = folder.read(request_of(theirs))
    content = as_tokenizer_json(theirs)
    assert folder.read(request_of(theirs)).digest == expected.digest
    pairs = [merge.split(' ') for merge in content['model']['merges']]
    edit(theirs / 'tokenizer.json', model=content['model'] | {'merges': pairs})
    assert folder.read(request_of(theirs)).digest == expected.digest

    prefixed = content['pre_tokenizer'] | {'add_prefix_space': True}
    edit(theirs / 'tokenizer.json', pre_tokenizer=prefixed)
    refuses(theirs, 'add_prefix_space=true, by which texts begin with a space')
    edit(theirs / 'tokenizer.json', pre_tokenizer={'type': 'Metaspace'})
    refuses(theirs, 'tokenizer.json is no byte-level BPE, which the tokenizer of')
    edit(theirs / 'tokenizer.json', pre_tokenizer=content['pre_tokenizer'], model=[])
    refuses(theirs, 'tokenizer.json is no byte-level BPE')
    edit(theirs / 'tokenizer.json', model={'type': 'BPE', 'vocab': {}})
    refuses(theirs, 'has no model.vocab and model.merges')
    (theirs / 'tokenizer.json').unlink()
    refuses(theirs, 'holds no vocab.json, and the tokenizer of model_type=bart is')


@pytest.mark.parametrize(
    ('file', 'old', 'new', 'words'),
    [
        ('merges.txt', "' s", "' s x", 'which is not of two pieces'),
        ('merges.txt', "' s", "' sx", "json has no number for the piece 'sx"),
        ('vocab.json', '"<s>"', '"<x>"', 'vocab.json has no piece <s>, with which'),
        ('vocab.json', '"<unk>"', '"<x>"', 'has no piece <unk>'),
        ('vocab.json', '"!": 4', '"!": 1000', 'none of the 280 rows'),
        ('vocab.json', '"Ġ"', '"xx"', 'has no number for the piece Ġ'),
    ],
)
def test_byte_level_files_that_do_not_fit_are_refused(tmp_path, file, old, new, words):
    theirs = checkpoint('bart', tmp_path / 'bart')
    text = (theirs / file).read_text('utf-8')
    assert old in text
    (theirs / file).write_text(text.replace(old, new, 1), encoding='utf-8')
    refuses(theirs, words)


def test_a_bart_whose_texts_begin_with_a_space_is_refused(tmp_path):
    theirs = checkpoint('bart', tmp_path / 'bart')
    config = theirs / 'tokenizer_config.json'
    config.write_text('{"add_prefix_space": true}', encoding='utf-8')
    refuses(theirs, 'tokenizer_config.json has add_prefix_space=true, by which')


def test_each_family_has_a_tokenizer_and_another_word_is_refused(tmp_path):
    theirs = checkpoint('t5', tmp_path / 't5')
    families = [spec.find(FAMILIES, name) for name in spec.available(FAMILIES)]
    for family in families:
        for model_type in family.model_types:
            assert model_type in folder.MODEL_TYPES
    with pytest.raises(UserError, match='model_type=fsmt cannot be converted, only th'):
        folder.read(request_of(theirs)._replace(model_type='fsmt'))


def test_tokens_that_are_no_text_are_shown_by_names(tmp_path):
    """Languages by the words of the checkpoint, wherever they stand."""
    for name in ('mbart', 'mbart50', 'nllb', 'm2m100'):
        source, target = golden_of(name)['languages']
        tokenizer = read(name, tmp_path)
        tokens = looking.pairs_batch(tokenizer, [('ab', 'ab')])
        rows = [tokens[side][0].tolist() for side in ('source', 'inputs')]
        shown = list(map(tokenizer.pieces, rows))
        assert (source in shown[0], target in shown[1]) == (True, True), shown
        assert target not in shown[0] and '</s>' in shown[0]
    tokenizer = read('bart', tmp_path)
    assert tokenizer.pieces([0, 1, 2, 3, 4, 279]) == (
        ['<s>', '<pad>', '</s>', '<unk>', '!', '<279>']
    )
    tokenizer = read('t5gemma', tmp_path)
    assert tokenizer.pieces([2, 0, 1]) == ['<s>', '<pad>', '</s>']


@pytest.mark.slow
@every_golden
@pytest.mark.filterwarnings('ignore:Recommended. pip install sacremoses')
def test_tokens_of_many_texts_are_those_of_the_transformers_that_is_here(
    name, tmp_path
):
    pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    from tests.goldens import make_tokenizers

    kind = make_tokenizers.KINDS[name]
    theirs = checkpoint(name, tmp_path / name)
    request = request_of(theirs, *golden_of(name)['languages'])
    if name == 'pegasus':  # as it was published, with 103 tokens before the pieces
        edit(theirs / 'tokenizer_config.json', offset=None)
        request = request._replace(rows=120)
    ours = folder.read(request)
    theirs = getattr(transformers, kind.tokenizer).from_pretrained(
        theirs, **kind.settings
    )
    draw = np.random.default_rng(7)
    letters = list('aaabbbcccz') + ['ä', '東', ' ']
    if name == 'bart':
        letters += [*"'sST19.!\n\t", ' ', '\u3000', '\xa0', '😀', 'e\u0301', 'Ⅷ', '½']
    texts = [''.join(draw.choice(letters, 12)) for _ in range(300)]
    if name == 'bart':  # whose spaces count
        texts = [text for text in texts if text.strip()]
    else:
        texts = [' '.join(text.split()) for text in texts]
    end = [] if ours.source_end is None else [ours.source_end]
    found = [row + end for row in ours.encode(texts)]
    assert found == [theirs(text).input_ids for text in texts]
    target = ours.encode_target(texts)
    for row, text in zip(target, texts, strict=True):
        of_text = theirs(text_target=text, add_special_tokens=False).input_ids
        assert row[ours.forced_first is not None :] == of_text
    written = [
        theirs.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for row in target
    ]
    if name != 'bart':
        written = [text.strip() for text in written]
    assert ours.decode(target) == written
