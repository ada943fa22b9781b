"""Tests of the source `tfds` with a set prepared by TFDS itself."""

import itertools
import json
import shutil
import struct
import sys

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core import decode

from experiments.data.sources import tfds as tfds_source
from experiments.data.sources.tfds import Tfds
from experiments.errors import UserError

SIZES = {'train': 200, 'validation': 7, 'test': 5}


class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    """A set with the features of wmt14_translate/de-en."""

    VERSION = tfds.core.Version('1.0.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name='de-en')]

    def _info(self):
        features = tfds.features.Translation(languages=('de', 'en'))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split):
        for i in range(SIZES[split]):
            texts = {'de': f'{split} Zeile {i} scho\u0308n', 'en': f'{split}\nline {i}'}
            yield i, texts


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tfds')
    tfds.builder(
        'tiny_translate/de-en', data_dir=folder, file_format='array_record'
    ).download_and_prepare()
    return folder


@pytest.fixture(scope='module')
def tfrecords(folder, tmp_path_factory):
    """Returns the same set as TFRecord, which only TensorFlow can write."""
    other = tmp_path_factory.mktemp('tfrecord')
    relative = 'tiny_translate/de-en/1.0.0'
    (other / relative).mkdir(parents=True)
    shutil.copy(folder / relative / 'features.json', other / relative)
    about = (folder / relative / 'dataset_info.json').read_text()
    (other / relative / 'dataset_info.json').write_text(
        about.replace('array_record', 'tfrecord')
    )
    builder = tfds.builder('tiny_translate/de-en', data_dir=folder)
    for split in SIZES:
        raw = decode.DeserializeMethod.RAW_BYTES
        records = builder.as_data_source(split, deserialize_method=raw)
        name = f'tiny_translate-{split}.tfrecord-00000-of-00001'
        with (other / relative / name).open('wb') as file:
            for record in records:
                file.write(
                    struct.pack('<QI', len(record), 0) + record + struct.pack('<I', 0)
                )
    return other


def make(folder, name='tiny_translate/de-en', source='en', target='de', **arguments):
    return Tfds(name, source, target, data_dir=str(folder), **arguments)


def expected(split):
    return {
        (f'{split} line {i}', f'{split} Zeile {i} schön') for i in range(SIZES[split])
    }


@pytest.mark.parametrize('kind', ['folder', 'tfrecords'])
def test_splits_are_read_completely_and_may_be_cut(kind, request):
    source = make(request.getfixturevalue(kind))
    pairs = list(source.train())
    assert len(pairs) == SIZES['train'] and set(pairs) == expected('train')
    assert list(source.train()) == pairs
    sets = source.evaluation()
    assert list(sets) == ['val', 'test']
    for name, split in (('val', 'validation'), ('test', 'test')):
        assert set(sets[name]) == expected(split) and len(sets[name]) == SIZES[split]
    folder = request.getfixturevalue(kind)
    source = make(folder, split='train[:90%]', dev='train[90%:]')
    train_pairs, sets = list(source.train()), source.evaluation()
    assert len(train_pairs) == 180 and len(sets['val']) == 20
    assert set(train_pairs) | set(sets['val']) == expected('train')
    assert list(sets) == ['val', 'validation', 'test']


def test_training_splits_are_never_evaluation_sets(folder):
    with pytest.raises(UserError, match="split='all' overlaps dev='vali"):
        make(folder, split='all').evaluation()
    sets = make(folder, split='train + test', dev='validation').evaluation()
    assert list(sets) == ['val']


def test_pairs_are_read_one_at_a_time(folder, monkeypatch):
    read = []
    text = tfds_source._text
    monkeypatch.setattr(
        tfds_source, '_text', lambda value: read.append(value) or text(value)
    )
    list(itertools.islice(make(folder).train(), 3))
    assert len(read) == 6


@pytest.mark.parametrize('end', ['\n', '\r', '\r\n'])
def test_line_break_of_any_system_becomes_one_space(end):
    assert tfds_source._text(f'first{end}second{end}{end}third'.encode()) == (
        'first second  third'
    )


def test_digest_depends_on_split_and_direction_but_not_on_the_format(folder, tfrecords):
    whole, turned = make(folder), make(folder, source='de', target='en')
    part = make(folder, split='train[:90%]')
    assert len({source.digest() for source in (whole, turned, part)}) == 3
    assert make(tfrecords).digest() == whole.digest()
    assert next(turned.train()) == next(whole.train())[::-1]


@pytest.mark.parametrize(
    'arguments, message',
    [
        ({'source': 'fr'}, "'fr'.* de, en"),
        ({'split': 'nope'}, "'nope'.* train, validation, test"),
        ({'dev': 'train[99%:]'}, r"split='train' .*dev='train\[99%:\]'"),
        ({'name': 'no_such_set'}, "name='no_such_set'"),
        ({'name': 'wmt14_transalte/de-en'}, 'wmt14_translate'),
        ({'name': 'tiny_translate/xx'}, "name='tiny_translate/xx'"),
    ],
)
def test_errors_name_the_existing_choices(folder, arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        next(make(folder, **arguments).train())
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('content', [None, b'', b'\xff' * 131072])
@pytest.mark.parametrize('split', ['train', 'validation'])
def test_damaged_file_is_named(folder, tmp_path, split, content):
    copy = shutil.copytree(folder, tmp_path / 'copy')
    (file,) = copy.rglob(f'*-{split}.array_record-*')
    file.unlink() if content is None else file.write_bytes(content)
    message = rf"{file.parent}, split '{split}', cannot be read: "
    with pytest.raises(UserError, match=message) as caught:
        source = make(copy)
        list(source.train())
        source.evaluation()
    assert '\n' not in str(caught.value)


def test_offline_error_comes_before_the_download(tmp_path, monkeypatch):
    hosts = set()

    def fail(self):
        raise OSError('the archive is\nbroken')

    def refuse(request, timeout):
        hosts.add(request.host)
        raise OSError('Name or service not known')

    monkeypatch.setattr('urllib.request.urlopen', refuse)
    name = 'wmt14_translate/de-en'
    builder = tfds.builder(name, data_dir=tmp_path, file_format='array_record')
    monkeypatch.setattr(type(builder), 'download_and_prepare', fail)
    source = make(tmp_path, name=name)
    with pytest.raises(UserError, match='Name or service not known'):
        source.train()
    assert hosts == {'data.statmt.org', 'www.statmt.org'}
    # Earlier downloads may suffice.
    (tmp_path / 'downloads').mkdir()
    (tmp_path / 'downloads' / 'dev.tgz').touch()
    with pytest.raises(UserError, match='the archive is broken'):
        source.train()


def test_missing_set_is_prepared(tmp_path):
    assert set(make(tmp_path).train()) == expected('train')
    assert list(tmp_path.rglob('*.array_record-*'))


CODE = {'pythonClassName': 'my_features.Loud'}
NESTED = {
    'pythonClassName': 'tensorflow_datasets.core.features.features_dict.FeaturesDict',
    'featuresDict': {'features': {'en': {'python_class_name': 'my_features.L'}}},
}


@pytest.mark.parametrize(
    ('name', 'features'),
    [
        ('tiny_translate/de-en:1.0.0', CODE),
        ('tiny_translate/de-en:1.0.0', {'type': 'my_features.Loud', 'content': {}}),
        ('tiny_translate/de-en:1.0.0', NESTED),
        ('TinyTranslate/de-en:1.0.0', CODE),
        ('link/de-en', CODE),
        ('x/..:1.0.0', CODE),
    ],
)
def test_sets_that_name_code_are_rejected(
    folder, tmp_path, monkeypatch, name, features
):
    path = tmp_path / 'sets'
    shutil.copytree(folder, path)
    (file,) = path.rglob('features.json')
    file.write_text(json.dumps(features))
    shutil.copytree(file.parent, path / '1.0.0')
    (path / 'x').mkdir()
    (path / 'link').mkdir()
    (path / 'link' / 'de-en').symlink_to(file.parents[1], target_is_directory=True)
    (tmp_path / 'my_features.py').write_text('raise AssertionError')
    monkeypatch.syspath_prepend(tmp_path)
    for read in (Tfds.evaluation, Tfds.train):
        with pytest.raises(UserError, match='data: .*my_features.L'):
            list(read(make(path, name=name)))
    assert 'my_features' not in sys.modules
