"""Tests of the source `tfds` with a set prepared by TFDS itself."""

import itertools
import json
import shutil
import struct
import sys

import pytest
import tensorflow_datasets as tfds
from google.protobuf.runtime_version import VersionError
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
            yield (
                i,
                {'de': f'{split} Zeile {i} scho\u0308n', 'en': f'{split}\nline {i}'},
            )


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
def test_reads_every_pair_once_and_the_other_splits_as_sets(kind, request):
    source = make(request.getfixturevalue(kind))
    pairs = list(source.train())
    assert len(pairs) == SIZES['train'] and set(pairs) == expected('train')
    assert list(source.train()) == pairs
    sets = source.evaluation()
    assert list(sets) == ['val', 'test']
    assert set(sets['val']) == expected('validation') and len(sets['val']) == 7
    assert set(sets['test']) == expected('test') and len(sets['test']) == 5


@pytest.mark.parametrize('kind', ['folder', 'tfrecords'])
def test_a_split_can_be_cut_in_two(kind, request):
    folder = request.getfixturevalue(kind)
    source = make(folder, split='train[:90%]', dev='train[90%:]')
    trained, sets = list(source.train()), source.evaluation()
    assert len(trained) == 180 and len(sets['val']) == 20
    assert set(trained) | set(sets['val']) == expected('train')
    assert list(sets) == ['val', 'validation', 'test']


def test_no_split_that_is_trained_on_is_an_evaluation_set(folder):
    with pytest.raises(UserError, match="split='all' overlaps dev='vali"):
        make(folder, split='all').evaluation()
    sets = make(folder, split='train + test', dev='validation').evaluation()
    assert list(sets) == ['val']


def test_the_direction_can_be_turned(folder):
    pair = next(make(folder).train())
    assert next(make(folder, source='de', target='en').train()) == pair[::-1]


def test_pairs_are_read_one_at_a_time(folder, monkeypatch):
    read = []
    text = tfds_source._text
    monkeypatch.setattr(
        tfds_source, '_text', lambda value: read.append(value) or text(value)
    )
    list(itertools.islice(make(folder).train(), 3))
    assert len(read) == 6


@pytest.mark.parametrize('end', ['\n', '\r', '\r\n'])
def test_a_line_break_of_any_system_becomes_one_space(end):
    assert tfds_source._text(f'first{end}second{end}{end}third'.encode()) == (
        'first second  third'
    )


def test_digest_tells_sets_splits_and_directions_apart(folder, tfrecords):
    digests = [
        make(folder).digest(),
        make(folder, split='train[:90%]').digest(),
        make(folder, source='de', target='en').digest(),
    ]
    assert len(set(digests)) == 3
    assert make(tfrecords).digest() == digests[0]


@pytest.mark.parametrize(
    'arguments, message',
    [
        ({'source': 'fr'}, "'fr'.* de, en"),
        ({'split': 'nope'}, "'nope'.* train, validation, test"),
        ({'dev': 'dev'}, "'dev'"),
        ({'split': 'train['}, 'split'),
        ({'dev': 'train[99%:]'}, r"split='train' .*dev='train\[99%:\]'"),
        ({'name': 'no_such_set'}, "name='no_such_set'"),
        ({'name': 'wmt14_transalte/de-en'}, 'wmt14_translate'),
        ({'name': 'tiny_translate/xx'}, "name='tiny_translate/xx'"),
    ],
)
def test_errors_name_the_existing_choices(folder, arguments, message):
    with pytest.raises(UserError, match=message) as raised:
        next(make(folder, **arguments).train())
    assert '\n' not in str(raised.value)


def test_a_protobuf_that_is_too_old_is_one_line(monkeypatch, tmp_path):
    class Refuses:
        def find_spec(self, name, path=None, target=None):
            if name == 'tensorflow_datasets':
                raise VersionError('gencode 6.31.1 runtime 5.29.6')

    monkeypatch.delitem(sys.modules, 'tensorflow_datasets')
    monkeypatch.setattr(sys, 'meta_path', [Refuses(), *sys.meta_path])
    source = Tfds('wmt14_translate/de-en', 'en', 'de', data_dir=str(tmp_path))
    with pytest.raises(UserError, match='^data: tfds .*protobuf'):
        source._find()


@pytest.mark.parametrize('content', [None, b'', b'\xff' * 131072])
@pytest.mark.parametrize('split', ['train', 'validation'])
def test_a_damaged_file_is_named(folder, tmp_path, split, content):
    copy = shutil.copytree(folder, tmp_path / 'copy')
    (file,) = copy.rglob(f'*-{split}.array_record-*')
    file.unlink() if content is None else file.write_bytes(content)
    message = rf"{file.parent}, split '{split}', cannot be read: .*prepare it again"
    with pytest.raises(UserError, match=message) as raised:
        source = make(copy)
        list(source.train())
        source.evaluation()
    assert '\n' not in str(raised.value)


def test_failed_preparation_shows_the_command_for_another_machine(
    tmp_path, monkeypatch
):
    def fail(self):
        raise OSError('the archive is\nbroken')

    monkeypatch.setattr(tfds_source, '_check_network', lambda builder: None)
    name = 'wmt14_translate/de-en'
    made = tfds.builder(name, data_dir=tmp_path, file_format='array_record')
    monkeypatch.setattr(type(made), 'download_and_prepare', fail)
    with pytest.raises(UserError, match='prepared here: the archive is br') as raised:
        next(make(tmp_path, name=name).train())
    message = str(raised.value)
    command = message[message.index('"') + 1 : message.rindex('"')]
    assert f'python -c "{command}"' in message and '\n' not in message
    # The installed TFDS can run the command up to the download.
    command = command.removesuffix('.download_and_prepare()')
    made = {}
    exec(command.replace('t.builder(', 'builder = t.builder('), made)
    assert made['builder'].info.full_name == 'wmt14_translate/de-en/1.0.0'


def test_missing_network_is_an_error_before_the_download(tmp_path, monkeypatch):
    asked = []

    def refuse(request, timeout):
        asked.append(request.host)
        raise OSError('Name or service not known')

    def download(self):
        asked.append('download')
        raise OSError('the archive is broken')

    monkeypatch.setattr('urllib.request.urlopen', refuse)
    name = 'wmt14_translate/de-en'
    made = tfds.builder(name, data_dir=tmp_path, file_format='array_record')
    monkeypatch.setattr(type(made), 'download_and_prepare', download)
    with pytest.raises(UserError, match='Name or service not known'):
        make(tmp_path, name=name).train()
    assert set(asked) == {'data.statmt.org', 'www.statmt.org'}
    # Earlier downloads may suffice.
    (tmp_path / 'downloads').mkdir()
    (tmp_path / 'downloads' / 'dev.tgz').touch()
    with pytest.raises(UserError, match='the archive is broken'):
        make(tmp_path, name=name).train()


def test_missing_set_is_prepared(tmp_path):
    assert set(make(tmp_path).train()) == expected('train')
    assert list(tmp_path.rglob('*.array_record-*'))


LOUD = {'pythonClassName': 'my_features.Loud'}
NESTED = {
    'pythonClassName': 'tensorflow_datasets.core.features.features_dict.FeaturesDict',
    'featuresDict': {'features': {'en': {'python_class_name': 'my_features.L'}}},
}


@pytest.mark.parametrize(
    ('name', 'features'),
    [
        ('tiny_translate/de-en:1.0.0', LOUD),
        ('tiny_translate/de-en:1.0.0', {'type': 'my_features.Loud', 'content': {}}),
        ('tiny_translate/de-en:1.0.0', NESTED),
        ('TinyTranslate/de-en:1.0.0', LOUD),
        ('link/de-en', LOUD),
        ('x/..:1.0.0', LOUD),
    ],
)
def test_sets_that_name_code_are_refused(folder, tmp_path, monkeypatch, name, features):
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
