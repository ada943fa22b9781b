"""Tests of published tokenizers against the tokens of Transformers."""

import functools
import json
import sys

import numpy as np
import pytest
from published_tokenizers import NAMES, TOKENIZERS, checkpoint, golden_of

from experiments.data import collate, corpus, tokenizers
from experiments.data.tokenizers.base import encode_lines
from experiments.errors import UserError
from flaxformer_checkpoints import tokenizer as huggingface
from flaxformer_checkpoints.loading import load

every_golden = pytest.mark.parametrize('name', NAMES)


def open_checkpoint(path, *languages):
    """Opens a tokenizer for a source, a target and a dict of new languages."""
    described = load.describe_pretrained(path)
    return huggingface.from_checkpoint(
        path, described.vocab_size, described.special_tokens, *languages
    )


@pytest.fixture(scope='module')
def read(tmp_path_factory):

    @functools.cache
    def read(name):
        path = checkpoint(name, tmp_path_factory.mktemp('theirs') / name)
        return open_checkpoint(path, *golden_of(name)['languages'])

    return read


@every_golden
def test_tokens_and_texts_match_transformers(name, read):
    golden = golden_of(name)
    tokenizer = read(name)
    special = tokenizer.special_tokens
    end = [] if tokenizer.source_eos is None else [tokenizer.source_eos]
    texts = golden['texts']
    for text, source, theirs in zip(
        texts, tokenizer.encode(texts), golden['source'], strict=True
    ):
        assert source == [] if not text.strip() else source + end == theirs
    for text, target, theirs in zip(
        texts, tokenizer.encode_target(texts), golden['target'], strict=True
    ):
        if name == 'mbart':  # the model shifts the last of its labels to the front
            theirs = [theirs[-1], *theirs[:-1]]
        elif name == 't5gemma':  # whose tokenizer has one form, that of sources
            theirs = [*theirs, special.eos]
        else:
            theirs = [special.bos, *theirs]
        row = [special.bos, *target, special.eos]
        assert target == [] if not text.strip() else row == theirs
    assert tokenizer.forced_first in (None, golden['target'][0][0])

    pairs = zip(golden['rows'], golden['decoded'], strict=True)
    expected = [(row, text) for row, text in pairs if special.eos not in row]
    assert len(expected) > 10
    beyond = tokenizer.vocab_size + 200
    rows = [[*row, beyond, special.eos, 5, special.padding] for row, _ in expected]
    assert tokenizer.decode(rows) == [text for _, text in expected]


@every_golden
def test_a_run_has_its_own_copy_with_checksums(name, read, tmp_path):
    tokenizer = read(name)
    path = tmp_path / 'run' / 'tokenizer.model'
    tokenizer.save(path)
    saved = tokenizers.open_saved('huggingface', path)
    assert saved.digest == tokenizer.digest
    texts = golden_of(name)['texts']
    assert saved.encode(texts) == tokenizer.encode(texts)
    file = min(saved.files.values())
    file.write_bytes(b' ' + file.read_bytes())
    with pytest.raises(UserError, match=f'{file.name} .*checksum'):
        tokenizers.open_saved('huggingface', path)
    file.unlink()
    with pytest.raises(UserError, match=f'{file.name} .*checksum'):
        tokenizers.open_saved('huggingface', path)
    path.write_bytes(b'{}')
    with pytest.raises(UserError, match='tokenizer.model'):
        tokenizers.open_saved('huggingface', path)


def test_files_outside_the_run_are_rejected(read, tmp_path):
    path = tmp_path / 'run' / 'tokenizer.model'
    read('marian').save(path)
    fields = json.loads(path.read_bytes())
    for name in ('..', '../x.py', 'a/../../x.py', '/x.py'):
        path.write_text(json.dumps(fields | {'sums': {name: '0' * 64}}))
        with pytest.raises(UserError, match='damaged'):
            huggingface.HuggingfaceTokenizer().open(path)


def test_digest_ignores_settings_that_do_not_tokenize(tmp_path):
    theirs = checkpoint('mbart50', tmp_path / 'mbart50')
    digest = open_checkpoint(theirs, 'cs_CZ', 'ar_AR').digest
    edit(theirs / 'generation_config.json', max_length=7)
    assert open_checkpoint(theirs, 'cs_CZ', 'ar_AR').digest == digest
    assert open_checkpoint(theirs, 'cs_CZ', 'en_XX').digest != digest


@pytest.mark.parametrize('name', ['mbart', 't5gemma', 't5'])
def test_sources_of_batches_have_their_end_tokens(name, read):
    """mBART appends a language token to sources, T5Gemma text."""
    golden = golden_of(name)
    tokenizer = read(name)
    texts = [text for text in golden['texts'] if text.strip()]
    rows = [row for row in golden['source'] if len(row) > 2]
    assert len(rows) == len(texts)
    padding = tokenizer.special_tokens.padding
    length = max(map(len, rows))
    sources = [row + [padding] * (length - len(row)) for row in rows]

    tokens = corpus.tokenize([(text, text) for text in texts], tokenizer)
    index = np.arange(len(texts))
    padded = collate.pairs_batch(tokens, (len(texts), length + 2), index, index)
    np.testing.assert_array_equal(padded['source'][:, :length], sources)
    is_token = padded['source'] != padding
    np.testing.assert_array_equal(padded['source_segments'], is_token)
    packed = collate.pairs_batch(tokens, (1, 99), index, 0 * index)
    source = packed['source'][packed['source_segments'] > 0]
    assert source.tolist() == [token for row in rows for token in row]


def edit(path, **changes):
    """Changes entries of a JSON file; None removes one."""
    content = json.loads(path.read_text('utf-8')) | changes
    content = {k: v for k, v in content.items() if v is not None}
    path.write_text(json.dumps(content), encoding='utf-8')


def check_rejected(theirs, problem, *languages):
    with pytest.raises(UserError) as caught:
        open_checkpoint(theirs, *languages)
    assert problem in str(caught.value) and '\n' not in str(caught.value), caught.value


# ---- Languages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ('name', 'languages', 'problem'),
    [
        ('mbart', ('', ''), 'source= '),
        ('mbart', ('en_XX', 'en'), 'target=en '),
        ('nllb', ('eng_Latn', 'deu'), 'target=deu '),
        ('m2m100', ('en', 'tlh'), 'target=tlh '),
        ('t5', ('en', ''), 'source=en'),
    ],
)
def test_unknown_languages_are_rejected(name, languages, problem, tmp_path):
    check_rejected(checkpoint(name, tmp_path / name), problem, *languages)


@pytest.mark.parametrize(
    ('name', 'tag', 'problem'),
    [
        ('m2m100', '<en2tlh>', 'tlh '),
        ('nllb', '<en2fra_Latn>', 'en .* 4, such as eng_Latn'),
        ('mbart', '<en_XX2de_DE>', 'mBART-50'),
    ],
)
def test_tags_of_unknown_directions_are_rejected(name, tag, problem, read):
    with pytest.raises(UserError, match=problem):
        read(name).encode([f'{tag} ab'])
    with pytest.raises(UserError, match=f'^line 4: {tag}: '):
        encode_lines(read(name).encode, ['ab', f'{tag} ab'], 2)
    assert read(name).encode([f' {tag} ab'])  # a text


@pytest.mark.parametrize(
    ('name', 'directions'),
    [
        ('m2m100', [('en', 'ha'), ('is', 'ja'), ('zh', 'en')]),
        ('nllb', [('eng_Latn', 'ace_Arab'), ('fra_Latn', 'zho_Hans')]),
        ('mbart50', [('cs_CZ', 'ar_AR'), ('de_DE', 'en_XX')]),
    ],
)
def test_pairs_of_several_directions_match_transformers(name, directions, read):
    tokenizer = read(name)
    pairs = [(f'<{source}2{target}> cab ab', 'bac') for source, target in directions]
    sources, targets = tokenizer.encode_pairs([*pairs, ('cab ab', 'bac'), ('', 'a')])
    default = tuple(golden_of(name)['languages'])
    for i, (source, target) in enumerate([*directions, default]):
        theirs = huggingface._open(tokenizer._folder, source, target)
        assert tokenizer.with_end(sources[i]) == theirs('cab ab').input_ids
        expected = theirs(text_target='bac').input_ids
        assert [*targets[i], tokenizer.special_tokens.eos] == expected
        text = pairs[i][0] if i < len(pairs) else ''
        assert tokenizer.first_tokens([text]) == expected[:1]
    assert sources[-1] == []
    _, target = directions[1]
    assert tokenizer.encode([f'<2{target}> ab']) == tokenizer.encode(['ab'])
    assert tokenizer.first_tokens([f'<2{target}> ab']) == targets[1][:1]


def test_data_of_several_directions_needs_tags_of_known_languages(read):
    check = read('m2m100').check_directions
    check([('en', 'ha'), ('ha', 'en')], 'both')
    check([('en', 'ha')], False)
    check([('word', 'sound')], False)  # columns of a table
    read('t5').check_directions([('en', 'ha'), ('en', 'is')], True)
    for problem, arguments in {
        'tags="both"': ([('en', 'ha'), ('en', 'is')], True),
        'data: en-is .* en-ha': ([('en', 'is')], False),
        'data: tlh ': ([('en', 'tlh')], 'both'),
    }.items():
        with pytest.raises(UserError, match=problem):
            check(*arguments)


@pytest.mark.parametrize('name', ['nllb', 'mbart50'])
def test_a_new_language_adds_one_token(name, tmp_path):
    source, like = golden_of(name)['languages']
    path = checkpoint(name, tmp_path / name)
    tokenizer = open_checkpoint(path, source, 'gsw', {'gsw': like})
    size = len(huggingface._open(path))
    assert tokenizer.pieces([size]) == ['gsw']
    assert tokenizer.vocab_size == size + 1
    assert tokenizer.forced_first == size
    assert tokenizer.first_tokens([f'<2{like}> a', '<2gsw> a', 'a'])[1:] == [size] * 2
    default, reverse = tokenizer.encode([f'<{source}2gsw> ab', f'<gsw2{like}> ab'])
    assert default == tokenizer.encode(['ab'])[0]
    assert reverse == [size, *default[1:]]
    assert tokenizer.decode([reverse]) == ['ab']
    tokenizer.save(tmp_path / 'run' / 'tokenizer.model')
    saved = tokenizers.open_saved('huggingface', tmp_path / 'run' / 'tokenizer.model')
    assert saved.encode(['<gsw2gsw> ab']) == [reverse]


@pytest.mark.parametrize(
    ('name', 'new', 'problem'),
    [
        ('nllb', {'gsw': 'deu_Latn'}, 'deu_Latn'),
        ('nllb', {'fra_Latn': 'eng_Latn'}, "'fra_Latn'"),
        ('nllb', {'gsw 2': 'eng_Latn'}, 'letters'),
        ('nllb', {'_gsw': 'eng_Latn'}, 'letters'),
        ('nllb', {'ab': 'eng_Latn'}, "'ab'"),
        ('nllb', {'gsw': 3}, 'texts'),
        ('nllb', {1: 'eng_Latn'}, 'texts'),
        ('m2m100', {'gsw': 'en'}, 'Transformers'),
        ('t5', {'gsw': 'en'}, 'Leave'),
    ],
)
def test_invalid_new_languages_are_rejected(name, new, problem, tmp_path):
    path = checkpoint(name, tmp_path / name)
    with pytest.raises(UserError, match='tokenizer: languages=') as caught:
        open_checkpoint(path, *golden_of(name)['languages'], new)
    assert problem in str(caught.value)


# ---- Damaged and unsafe folders ------------------------------------------------------


def test_code_in_the_folder_of_a_checkpoint_is_not_run(tmp_path):
    theirs = checkpoint('bart', tmp_path / 'theirs')
    (theirs / 'code.py').write_text('raise SystemExit')
    names = {'AutoConfig': 'code.A', 'AutoTokenizer': ['code.A', 'code.A']}
    edit(theirs / 'config.json', auto_map=names)
    (theirs / 'tokenizer_config.json').write_text(json.dumps({'auto_map': names}))
    assert open_checkpoint(theirs).encode(['a'])
    edit(theirs / 'tokenizer_config.json', tokenizer_class='A')
    check_rejected(theirs, 'Transformers')


@every_golden
def test_missing_cut_and_pointer_files_are_rejected(name, tmp_path):
    languages = golden_of(name)['languages']
    kinds = ('.model', '.spm', '.txt')
    for file in [x.name for x in (TOKENIZERS / name).iterdir() if x.suffix in kinds]:
        theirs = checkpoint(name, tmp_path / file / name)
        path = theirs / file
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        check_rejected(theirs, 'files', *languages)
        path.write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\n')
        check_rejected(theirs, 'files', *languages)
        path.unlink()
        check_rejected(theirs, 'files', *languages)


def test_files_of_different_checkpoints_are_rejected(tmp_path):
    theirs = checkpoint('t5', tmp_path / 't5')
    edit(theirs / 'config.json', eos_token_id=3)
    edit(theirs / 'generation_config.json', eos_token_id=3)
    check_rejected(theirs, 'eos_token_id=1')
    pegasus = checkpoint('pegasus', tmp_path / 'pegasus')
    edit(pegasus / 'tokenizer_config.json', offset=None)  # the published value: 103
    check_rejected(pegasus, 'token 114')


def test_ids_must_be_integers(tmp_path):
    theirs = checkpoint('marian', tmp_path / 'marian')
    ids = json.loads((theirs / 'vocab.json').read_text('utf-8'))
    for value in ('x', None, 2.5):
        content = json.dumps(ids | {'odd': value})
        (theirs / 'vocab.json').write_text(content, encoding='utf-8')
        check_rejected(theirs, f'{value!r} ')


def test_special_tokens_appear_by_name(read):
    source, target = golden_of('mbart')['languages']
    tokenizer = read('mbart')
    shown = tokenizer.pieces([*tokenizer.encode(['ab'])[0], tokenizer.source_eos])
    assert shown[-2:] == ['</s>', source]
    assert tokenizer.pieces([tokenizer.special_tokens.bos]) == [target]
    assert read('bart').pieces([0, 4, 279]) == ['<s>', '!', '<279>']


def test_missing_package_is_named(tmp_path, monkeypatch):
    theirs = checkpoint('marian', tmp_path / 'marian')
    monkeypatch.setitem(sys.modules, 'transformers', None)
    check_rejected(theirs, 'transformers')
