"""Tests of vector sources read from files."""

import zipfile

import numpy as np
import pytest
import small_runs
import tiny

import experiments
import flaxformer_lite
from experiments.data import corpus, sources, tokenizers
from experiments.data.batches import Batches, Position
from experiments.data.tokenizers.arrays import Arrays
from experiments.errors import UserError

FEATURES = 6
ARRAYS = {
    f'{name}/{i}': np.random.default_rng(i).normal(size=(2 + i % 5, FEATURES))
    for name, size in {'train': 40, 'val': 3}.items()
    for i in range(size)
}
DATA = 'table(train="train.tsv", val="val.tsv", source="frames", target="word")'
SPEC = '[arrays(path="frames.npz"), characters]'
FIELDS = small_runs.TWO_STEPS | {
    'data': DATA,
    'tokenizer': SPEC,
    'model.tie': 'decoder',
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez('frames.npz', **ARRAYS)
    for name in ('train', 'val'):
        own = [key for key in ARRAYS if key.startswith(name)]
        rows = ''.join(f'{key}\t{"abcdefg"[: len(ARRAYS[key])]}\n' for key in own)
        (tmp_path / f'{name}.tsv').write_text(f'frames\tword\n{rows}', 'utf-8')
    return tmp_path


def train(folder):
    return tokenizers.train(tokenizers.make(SPEC), sources.load(DATA), folder)


@pytest.mark.parametrize('packed', [True, False], ids=['packed', 'padded'])
def test_batches_contain_the_arrays_of_the_names(packed, folder):
    stored = corpus.prepare(sources.load(DATA), train(folder), folder)
    batches = Batches(stored, tokens=64, max_length=16, packed=packed)
    expected = sorted(
        array.astype(np.float32).tolist()
        for name, array in ARRAYS.items()
        if name.startswith('train')
    )
    found = []
    for batch, position in batches.iterate(Position()):
        source, segments = batch['source'], batch['source_segments']
        assert source.dtype == np.float32 and not source[segments == 0].any()
        for row, of in zip(source, segments, strict=True):
            found += [row[of == i].tolist() for i in range(1, of.max() + 1)]
        if position.epoch:
            break
    assert sorted(found) == expected


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_run_translates_and_scores_arrays_by_name():
    small_runs.train('run', *small_runs.flags(FIELDS))
    run = experiments.open_run('run')
    name = 'val/2'
    tokens, *_ = flaxformer_lite.generate(
        run.model,
        run.variables,
        [ARRAYS[name]],
        flaxformer_lite.decoding.Greedy(),
        # The limit of the config: its extra length, without the end token.
        max_length=len(ARRAYS[name]) - 1 + FIELDS['evaluation.extra_length'],
    )
    assert run.translate([name, '']) == [*run.tokenizer.decode(tokens[0].tolist()), '']
    batch = flaxformer_lite.make_batch([ARRAYS[name]], [[5, 4, 1]])
    expected = tiny.log_probs(run.model, run.variables, batch).log_p[0]
    (word,) = run.tokenizer.decode([[5, 4]])
    ((*found,),) = run.score([(name, word)])
    np.testing.assert_allclose([x.log_p for x in found], expected, rtol=1e-4)
    with pytest.raises(UserError, match="'val/22'.*'val/2'"):
        run.translate(['val/22'])
    np.savez('frames.npz', **ARRAYS | {'val/2': ARRAYS['val/1']})
    with pytest.raises(UserError, match='frames.npz'):
        experiments.open_run('run').translate([name])


@pytest.mark.parametrize(
    ('array', 'message'),
    [
        (np.ones((2, FEATURES + 1)), r'\(2, 7\).*\(length, 6\)'),
        (np.ones(FEATURES), r'\(6,\)'),
        (np.array([['a'] * FEATURES]), '<U1'),
        (np.zeros((2, FEATURES)), 'zeros'),
        (np.full((1, FEATURES), np.inf), 'finite'),
        (np.array(3.0), r'\(\)'),
    ],
)
def test_invalid_array_is_named(array, message, folder):
    np.savez('frames.npz', **ARRAYS | {'train/7': array})
    with pytest.raises(UserError, match=f"'train/7': .*{message}"):
        corpus.prepare(sources.load(DATA), train(folder), folder)


def npy(header):
    if isinstance(header, int):
        shape = f"'shape': ({header}, {FEATURES})"
        header = f"{{'descr': '<f4', 'fortran_order': False, {shape}}}"
    data = header.encode()
    return b'\x93NUMPY\x01\x00' + len(data).to_bytes(2, 'little') + data


@pytest.mark.parametrize(
    'content',
    [b'', b'text', npy('garbage {{{'), npy('(' * 5000), npy(10**12), npy(10**30)],
    ids=['empty', 'text', 'garbage', 'brackets', 'terabytes', 'overflow'],
)
@pytest.mark.parametrize('name', ['a', 'z'])  # the first array determines the width
def test_damaged_array_is_named(content, name, folder):
    with zipfile.ZipFile('frames.npz', 'a') as archive:
        archive.writestr(f'{name}.npy', content)
    with pytest.raises(UserError, match=f"frames.npz(:|,) array '{name}'"):
        train(folder).encode([name])


def test_flipped_bits_of_an_archive_give_user_errors_only(folder):
    np.savez_compressed('frames.npz', a=np.eye(FEATURES), b=np.eye(FEATURES))
    data = (folder / 'frames.npz').read_bytes()
    rejected = 0
    for bit in np.random.default_rng(0).integers(0, 8 * len(data), 60).tolist():
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / 'frames.npz').write_bytes(damaged)
        try:
            train(folder).source.encode(['a', 'b'])
        except UserError:
            rejected += 1
    assert rejected > 30


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04 and no more', 'npy', None])
def test_other_and_missing_files_are_named(content, folder):
    (folder / 'frames.npz').unlink()
    if content == 'npy':
        with open('frames.npz', 'wb') as file:
            np.save(file, np.ones((2, FEATURES)))
    elif content is not None:
        (folder / 'frames.npz').write_bytes(content)
    with pytest.raises(UserError, match='frames.npz'):
        train(folder)


@pytest.mark.parametrize('model', ['[]', '{}', '{"features": "3", "sha256": "x"}'])
def test_stored_tokenizer_of_another_form_is_rejected(model):
    with pytest.raises(ValueError, match='(Expected|missing)'):
        Arrays(path='x.npz').opened(model.encode())
