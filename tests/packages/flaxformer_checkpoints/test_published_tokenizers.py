"""Tests of published tokenizers against the tokens of Transformers."""

import functools
import json
import subprocess
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
    described = load.describe_pretrained(path)
    return huggingface.from_checkpoint(
        path, described.vocab_size, described.special_tokens, *languages
    )


@pytest.fixture(scope='module')
def read(tmp_path_factory):

    @functools.cache
    def opened(name):
        path = checkpoint(name, tmp_path_factory.mktemp('theirs') / name)
        return open_checkpoint(path, *golden_of(name)['languages'])

    return opened


@every_golden
def test_tokens_are_those_of_transformers(name, read):
    golden = golden_of(name)
    tokenizer = read(name)
    end = [] if tokenizer.source_eos is None else [tokenizer.source_eos]
    found = zip(golden['texts'], tokenizer.encode(golden['texts']), strict=True)
    for (text, source), theirs in zip(found, golden['source'], strict=True):
        assert source == [] if not text.strip() else source + end == theirs


@every_golden
def test_targets_are_what_transformers_hands_to_the_decoder(name, read):
    golden = golden_of(name)
    tokenizer = read(name)
    special = tokenizer.special_tokens
    found = zip(golden['texts'], tokenizer.encode_target(golden['texts']), strict=True)
    for (text, target), theirs in zip(found, golden['target'], strict=True):
        row = [special.bos, *target, special.eos]
        if name == 'mbart':  # the model takes the last of its labels for the first
            theirs = [theirs[-1], *theirs[:-1]]
        elif name == 't5gemma':  # whose tokenizer has one form, that of sources
            theirs = [*theirs, special.eos]
        else:
            theirs = [special.bos, *theirs]
        assert target == [] if not text.strip() else row == theirs
    assert tokenizer.forced_first in (None, golden['target'][0][0])


@every_golden
def test_texts_of_tokens_are_those_of_transformers(name, read):
    golden = golden_of(name)
    tokenizer = read(name)
    special = tokenizer.special_tokens
    theirs = zip(golden['rows'], golden['decoded'], strict=True)
    expected = [(row, text) for row, text in theirs if special.eos not in row]
    assert len(expected) > 10
    beyond = tokenizer.vocab_size + 200
    rows = [[*row, beyond, special.eos, 5, special.padding] for row, _ in expected]
    assert tokenizer.decode(rows) == [text for _, text in expected]


@pytest.mark.parametrize('name', ['..', '../x.py', 'a/../../x.py', '/x.py'])
def test_files_outside_the_run_are_refused(name, read, tmp_path):
    path = tmp_path / 'run' / 'tokenizer.model'
    read('marian').save(path)
    fields = json.loads(path.read_bytes())
    fields['sums'] = {name: '0' * 64}
    path.write_text(json.dumps(fields))
    with pytest.raises(UserError, match='damaged'):
        huggingface.HuggingfaceTokenizer().open(path)


@every_golden
def test_a_run_keeps_a_copy(name, read, tmp_path):
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


def test_digest_ignores_settings_that_do_not_tokenize(tmp_path):
    theirs = checkpoint('mbart50', tmp_path / 'mbart50')
    first = open_checkpoint(theirs, 'cs_CZ', 'ar_AR')
    edit(theirs / 'generation_config.json', max_length=7)
    assert open_checkpoint(theirs, 'cs_CZ', 'ar_AR').digest == first.digest
    assert open_checkpoint(theirs, 'cs_CZ', 'en_XX').digest != first.digest


def test_sources_of_every_batch_have_their_end_tokens(read):
    """mBART appends a language token to sources, T5Gemma text."""
    for name in ('mbart', 't5gemma', 't5'):
        golden = golden_of(name)
        tokenizer = read(name)
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
        open_checkpoint(theirs, *languages)
    assert words in str(caught.value) and '\n' not in str(caught.value), caught.value


@pytest.mark.parametrize(
    ('name', 'languages', 'words'),
    [
        ('mbart', ('', ''), 'source= '),
        ('mbart', ('en_XX', 'en'), 'target=en '),
        ('nllb', ('eng_Latn', 'deu'), 'target=deu '),
        ('m2m100', ('en', 'tlh'), 'target=tlh '),
        ('t5', ('en', ''), 'source=en'),
    ],
)
def test_unknown_languages_are_refused(name, languages, words, tmp_path):
    refuses(checkpoint(name, tmp_path / name), words, *languages)


@pytest.mark.parametrize(
    ('name', 'tag', 'words'),
    [
        ('m2m100', '<en2tlh>', 'tlh '),
        ('nllb', '<en2fra_Latn>', 'en .* 4, such as eng_Latn'),
        ('mbart', '<en_XX2de_DE>', 'mBART-50'),
    ],
)
def test_tags_of_unknown_directions_are_refused(name, tag, words, read):
    with pytest.raises(UserError, match=words):
        read(name).encode([f'{tag} ab'])
    with pytest.raises(UserError, match=f'^line 4: {tag}: '):
        encode_lines(read(name).encode, ['ab', f'{tag} ab'], 2)
    assert read(name).encode([f' {tag} ab'])  # a text


SEVERAL = {
    'm2m100': [('en', 'ha'), ('is', 'ja'), ('zh', 'en')],
    'nllb': [('eng_Latn', 'ace_Arab'), ('fra_Latn', 'zho_Hans')],
    'mbart50': [('cs_CZ', 'ar_AR'), ('de_DE', 'en_XX')],
}


@pytest.mark.parametrize('name', SEVERAL)
def test_pairs_of_several_directions_have_the_tokens_of_transformers(name, read):
    tokenizer = read(name)
    directions = SEVERAL[name]
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
    tokenizer = read('m2m100')
    tokenizer.check_directions([('en', 'ha'), ('ha', 'en')], 'both')
    tokenizer.check_directions([('en', 'ha')], False)
    tokenizer.check_directions([('word', 'sound')], False)  # columns of a table
    refused = {
        'tags="both"': ([('en', 'ha'), ('en', 'is')], True),
        'data: en-is .* en-ha': ([('en', 'is')], False),
        'data: tlh ': ([('en', 'tlh')], 'both'),
    }
    for words, arguments in refused.items():
        with pytest.raises(UserError, match=words):
            tokenizer.check_directions(*arguments)
    read('t5').check_directions([('en', 'ha'), ('en', 'is')], True)


def added(tmp_path, name, new, source, target):
    path = checkpoint(name, tmp_path / name)
    described = load.describe_pretrained(path)
    return huggingface.from_checkpoint(
        path, described.vocab_size, described.special_tokens, source, target, new
    )


@pytest.mark.parametrize('name', ['nllb', 'mbart50'])
def test_a_new_language_is_one_more_token(name, tmp_path):
    source, like = golden_of(name)['languages']
    tokenizer = added(tmp_path, name, {'gsw': like}, source, 'gsw')
    size = len(huggingface._open(tmp_path / name))
    assert tokenizer.pieces([size]) == ['gsw']
    assert tokenizer.vocab_size == size + 1
    assert tokenizer.forced_first == size
    assert tokenizer.first_tokens([f'<2{like}> a', '<2gsw> a', 'a'])[1:] == [size] * 2
    plain = tokenizer.encode([f'<{source}2gsw> ab', f'<gsw2{like}> ab'])
    assert plain[0] == tokenizer.encode(['ab'])[0]
    assert plain[1] == [size, *plain[0][1:]]
    assert tokenizer.decode([[size, *plain[0][1:]]]) == ['ab']
    path = tmp_path / 'run' / 'tokenizer.model'
    tokenizer.save(path)
    saved = tokenizers.open_saved('huggingface', path)
    assert saved.encode(['<gsw2gsw> ab']) == [[size, *plain[0][1:]]]


@pytest.mark.parametrize(
    ('name', 'new', 'words'),
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
def test_invalid_new_languages_are_refused(name, new, words, tmp_path):
    with pytest.raises(UserError, match='tokenizer: languages=') as caught:
        added(tmp_path, name, new, *golden_of(name)['languages'])
    assert words in str(caught.value)


def test_code_in_the_folder_of_a_checkpoint_is_not_run(tmp_path):
    theirs = checkpoint('bart', tmp_path / 'theirs')
    (theirs / 'code.py').write_text('raise SystemExit')
    names = {'AutoConfig': 'code.A', 'AutoTokenizer': ['code.A', 'code.A']}
    edit(theirs / 'config.json', auto_map=names)
    (theirs / 'tokenizer_config.json').write_text(json.dumps({'auto_map': names}))
    assert open_checkpoint(theirs).encode(['a'])
    edit(theirs / 'tokenizer_config.json', tokenizer_class='A')
    with pytest.raises(UserError, match='Transformers'):
        open_checkpoint(theirs)


def files_of(name):
    kinds = ('.model', '.spm', '.txt')
    files = (TOKENIZERS / name).iterdir()
    return [file.name for file in files if file.suffix in kinds]


@every_golden
def test_missing_cut_and_pointer_files_are_refused(name, tmp_path):
    languages = golden_of(name)['languages']
    for file in files_of(name):
        theirs = checkpoint(name, tmp_path / file / name)
        path = theirs / file
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        refuses(theirs, 'files', *languages)
        path.write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\n')
        refuses(theirs, 'files', *languages)
        path.unlink()
        refuses(theirs, 'files', *languages)


def test_files_of_different_checkpoints_are_refused(tmp_path):
    theirs = checkpoint('t5', tmp_path / 't5')
    edit(theirs / 'config.json', eos_token_id=3)
    edit(theirs / 'generation_config.json', eos_token_id=3)
    refuses(theirs, 'eos_token_id=1')
    pegasus = checkpoint('pegasus', tmp_path / 'pegasus')
    edit(pegasus / 'tokenizer_config.json', offset=None)  # the published value: 103
    refuses(pegasus, 'token 114')


@pytest.mark.parametrize('value', ['x', None, 2.5])
def test_ids_other_than_integers_are_refused(tmp_path, value):
    theirs = checkpoint('marian', tmp_path / 'marian')
    file = theirs / 'vocab.json'
    ids = json.loads(file.read_text('utf-8')) | {'odd': value}
    file.write_text(json.dumps(ids), encoding='utf-8')
    refuses(theirs, f'{value!r} ')


def test_special_tokens_are_shown_by_name(read):
    source, target = golden_of('mbart')['languages']
    tokenizer = read('mbart')
    shown = tokenizer.pieces([*tokenizer.encode(['ab'])[0], tokenizer.source_eos])
    assert shown[-2:] == ['</s>', source]
    assert tokenizer.pieces([tokenizer.special_tokens.bos]) == [target]
    assert read('bart').pieces([0, 4, 279]) == ['<s>', '!', '<279>']


def test_missing_package_is_named(tmp_path, monkeypatch):
    theirs = checkpoint('marian', tmp_path / 'marian')
    monkeypatch.setitem(sys.modules, 'transformers', None)
    refuses(theirs, 'transformers')


def test_opening_a_tokenizer_prints_and_changes_nothing(tmp_path):
    theirs = checkpoint('marian', tmp_path / 'marian')
    program = (
        'import logging, os, sys, warnings\n'
        'from pathlib import Path\n'
        'from flaxformer_checkpoints import tokenizer\n'
        'from flaxformer_lite.special_tokens import SpecialTokens\n'
        'special = SpecialTokens(16, 16, 0)\n'
        'def state():\n'
        '    filters = list(warnings.filters)\n'
        '    return dict(os.environ), filters, logging.root.manager.disable\n'
        'before = state()\n'
        'found = tokenizer.from_checkpoint(Path(sys.argv[1]), 17, special)\n'
        'found.encode(["ab " * 9000])\n'
        'assert state() == before\n'
        'assert logging.getLogger("transformers").isEnabledFor(logging.WARNING)\n'
    )
    command = [sys.executable, '-c', program, str(theirs)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')
