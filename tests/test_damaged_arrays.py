"""Arrays are verified by their digests; earlier checkpoints by sums of their files."""

import errno

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.checkpoints import averaging, digest, manifest, state_files
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError
from tests.test_damaged_checkpoints import ABSTRACT, STATE, failing, save, tree

NOISE = np.random.default_rng(0).normal(size=(3, 50, 40)).astype(np.float32)


def noise(step):
    """Three arrays that are files of their own size."""
    arrays = {str(i): jnp.asarray(NOISE[i] + step) for i in range(3)}
    return {'params': arrays, 'key': jax.random.key(step)}


@pytest.fixture
def large(monkeypatch):
    """Has files of arrays count as large ones, of which there are no sums."""
    monkeypatch.setattr(manifest, '_SMALL', 5000)


@pytest.fixture
def two(tmp_path, large):
    checkpoints = Checkpoints(tmp_path, keep=10)
    for step in (1, 2):
        checkpoints.save(step, noise(step), {})
    checkpoints.wait()
    yield checkpoints
    checkpoints.close()


def large_files(path):
    files = [file for file in path.rglob('*') if file.is_file()]
    return [file for file in files if file.stat().st_size > 5000]


def test_a_bit_that_flips_in_a_large_file_is_never_used(tmp_path, two):
    abstract = jax.eval_shape(lambda: noise(0))
    files = large_files(tmp_path / '2')
    assert files
    rng = np.random.default_rng()
    noticed = []
    for bit in rng.integers(8 * 5000, size=6):
        file = files[bit % len(files)]
        whole = file.read_bytes()
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        step, found, _ = two.restore(abstract, noticed.append)
        assert digest.of(found) == digest.of(noise(step)), bit
        if step == 1:
            (tmp_path / 'damaged-2').rename(tmp_path / '2')
        file.write_bytes(whole)
    # Some bits are of no array.
    assert any('step 2 is damaged: params/' in text for text in noticed)


def test_a_digest_of_another_state_names_the_array(tmp_path, two, monkeypatch):
    """As where memory fails between the state and the disk."""
    of = digest.of

    def of_others(tree):
        return of(tree) | {'params/1': '00000000'}

    with monkeypatch.context() as patch:
        patch.setattr(digest, 'of', of_others)
        two.save(3, noise(3), {})
        two.wait()
    warnings = []
    assert two.restore(jax.eval_shape(lambda: noise(0)), warnings.append).step == 2
    assert warnings == [
        'the checkpoint of step 3 is damaged: params/1 is not what was written; '
        'it is kept as damaged-3'
    ]


def test_data_that_makes_no_sense_is_damage_and_a_system_that_fails_is_none(
    tmp_path, two, monkeypatch
):
    abstract = jax.eval_shape(lambda: noise(0))
    before = tree(tmp_path)
    restore = state_files.StateFiles.restore

    def failing(error):
        def fail(self, folder, abstract):
            if folder.parent.name == '2':
                raise state_files.Failed(error) from error
            return restore(self, folder, abstract)

        monkeypatch.setattr(state_files.StateFiles, 'restore', fail)

    for error in (
        OSError(errno.EIO, 'Input/output error'),
        MemoryError(),
        ValueError('Reading "d/x": [OS error 24: Too many open files]'),
        jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory'),
    ):
        failing(error)
        with pytest.raises(UserError, match='cannot read checkpoint .*2: '):
            two.restore(abstract)
        assert tree(tmp_path) == before
    failing(ValueError('DATA_LOSS: zstd'))
    warnings = []
    assert two.restore(abstract, warnings.append).step == 1
    assert 'its arrays cannot be decoded (DATA_LOSS: zstd)' in warnings[0]


def test_a_large_file_that_is_cut_or_cannot_be_read_is_told_apart(
    tmp_path, two, monkeypatch
):
    abstract = jax.eval_shape(lambda: noise(0))
    file = large_files(tmp_path / '2')[0]
    with monkeypatch.context() as patch:
        failing(patch, file.name, errno.EIO)
        patch.setattr(state_files.StateFiles, 'restore', refuse)
        with pytest.raises(UserError, match='cannot read .*Input/output error'):
            two.restore(abstract)
    file.write_bytes(file.read_bytes()[:-1])
    warnings = []
    assert two.restore(abstract, warnings.append).step == 1
    assert file.name in warnings[0]


def refuse(self, folder, abstract):
    raise state_files.Failed(ValueError('DATA_LOSS'))


def test_a_part_that_is_damaged_leaves_its_checkpoint_out_of_every_part(
    tmp_path, two, monkeypatch
):
    monkeypatch.setattr(averaging, '_SMALL', 0)
    two.save(3, noise(3), {})
    two.wait()
    record = manifest.read(tmp_path / '2')
    digests = record['digests'] | {'params/2': '00000000'}
    manifest.amend(tmp_path / '2', digests=digests)
    abstract = {'params': jax.eval_shape(lambda: noise(0))['params']}
    warnings = []
    mean = two.average([1, 2, 3], abstract, warnings.append)
    assert (mean.steps, mean.left_out) == ([1, 3], [2])
    assert 'params/2 is not what was written' in warnings[0]
    for i in range(3):
        expected = np.mean([np.float64(noise(k)['params'][str(i)]) for k in (1, 3)], 0)
        np.testing.assert_array_equal(
            mean.variables['params'][str(i)], np.float32(expected)
        )


def as_before(path):
    """Writes a manifest as it was before there were digests."""
    content = manifest.read(path)
    del content['digests']
    content['files'] = {name: manifest._hash(path / name) for name in content['files']}
    manifest._write(path, content)


def test_a_checkpoint_of_an_earlier_version_is_verified_by_its_sums(tmp_path, large):
    save(tmp_path, 1, 2)
    checkpoints = Checkpoints(tmp_path, keep=10)
    for step in (1, 2):
        as_before(tmp_path / str(step))
    assert checkpoints.restore(ABSTRACT).step == 2
    checkpoints.set_score(2, 0.5)
    assert checkpoints.best_steps(1) == [2]
    assert checkpoints.average([1, 2], ABSTRACT).steps == [1, 2]
    file = next((tmp_path / '2' / 'state').rglob('d/*'))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    warnings = []
    assert checkpoints.restore(ABSTRACT, warnings.append).step == 1
    assert file.name in warnings[0]
    checkpoints.close()


def test_a_score_leaves_numbers_that_are_not_finite_as_they_are(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE, {'window': float('inf')})
    checkpoints.wait()
    checkpoints.set_score(1, 0.5)
    assert checkpoints.restore(ABSTRACT).metadata == {'window': float('inf')}
    checkpoints.close()


def test_a_large_state_of_a_cpu_is_written_before_training_goes_on(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(state_files, '_WRITTEN_BESIDE', 100)
    files = state_files.StateFiles()
    files.save(tmp_path / 'state', STATE)
    assert (tmp_path / 'state' / 'commit_success.txt').exists()
    files.close()


def test_arrays_may_be_larger_than_what_is_read_or_written_at_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(state_files, '_IN_FLIGHT', 100)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE, {})
    checkpoints.save(2, {'params': jnp.arange(5000.0)}, {})
    checkpoints.wait()
    found = checkpoints.restore({'params': jax.ShapeDtypeStruct((5000,), jnp.float32)})
    np.testing.assert_array_equal(found.state['params'], np.arange(5000.0))
    checkpoints.close()
