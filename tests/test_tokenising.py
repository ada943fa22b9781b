"""A large text is tokenised in parts by several processes: the files are the same."""

import contextlib
import os
import pickle
import subprocess
import sys

import pytest

from experiments import storage
from experiments.checkpoints import hold
from experiments.data import checksums, corpus, tokenizer
from experiments.data.tokenising import part, pool, store, worker
from experiments.errors import UserError
from tests.test_checksums import content, every_damage
from tests.test_tokenizer import Words

CHUNK = 16
DATA = Words(200, [('der', ' '), ('', ''), ('die', 'a')])  # the last chunk is short
PARTS = [*range(2 * CHUNK, len(DATA.pairs), CHUNK)]  # what begins each


@pytest.fixture(scope='module')
def words(tmp_path_factory):
    return tokenizer.train(DATA, 100, tmp_path_factory.mktemp('tokenizer'))


@pytest.fixture(scope='module')
def whole(words, tmp_path_factory):
    """The files of one process that makes the text as a short one."""
    cache = tmp_path_factory.mktemp('cache')
    corpus.prepare(DATA, words, cache)
    return content(cache)


@pytest.fixture(autouse=True)
def large(request, monkeypatch):
    """The text counts as large, all but its first two chunks."""
    if 'whole' in request.fixturenames:
        request.getfixturevalue('whole')
    monkeypatch.setattr(corpus, '_CHUNK', CHUNK)
    monkeypatch.setattr(corpus, '_FEW', 2 * CHUNK)


@pytest.fixture
def made(monkeypatch):
    """The first pairs of the parts that are tokenised and kept."""
    firsts = []
    write = store.write

    def count(folder, first, kept):
        firsts.append(first)
        write(folder, first, kept)

    monkeypatch.setattr(store, 'write', count)
    return firsts


def unfinished(cache):
    (folder,) = cache.glob('.corpus-*.parts')
    return folder


def interrupt(words, cache, after, error=KeyboardInterrupt, **kwargs):
    def stop(done):
        if done >= after:
            raise error

    with pytest.raises(error):
        corpus.prepare(DATA, words, cache, stop, **kwargs)


@pytest.mark.parametrize('processes', [1, 2, 3])
def test_the_files_do_not_depend_on_the_number_of_processes(
    words, whole, tmp_path, made, processes
):
    told = []
    stored = corpus.prepare(DATA, words, tmp_path, told.append, processes)
    assert content(tmp_path) == whole
    assert sorted(made) == PARTS
    assert stored.skipped == 2 and len(stored) == 201
    assert told == sorted(told) and told[-1] == len(DATA.pairs)


@every_damage
def test_a_start_after_a_kill_makes_what_is_missing_or_damaged(
    words, whole, tmp_path, made, harm
):
    interrupt(words, tmp_path, 6 * CHUNK, processes=1)
    done = set(made)
    assert {PARTS[0], PARTS[1], PARTS[2]} <= done < set(PARTS)
    harm(unfinished(tmp_path) / f'{PARTS[1]:012}')
    made.clear()
    corpus.prepare(DATA, words, tmp_path, processes=1)
    assert set(made) == set(PARTS) - done | {PARTS[1]}
    assert content(tmp_path) == whole


def test_a_part_of_fewer_pairs_is_made_again(words, whole, tmp_path, made):
    interrupt(words, tmp_path, 6 * CHUNK, processes=1)
    few = part.tokenize(DATA.pairs[:3], words)
    store.write(unfinished(tmp_path), PARTS[0], few)
    corpus.prepare(DATA, words, tmp_path, processes=1)
    assert made.count(PARTS[0]) == 3  # at first, here, and again
    assert content(tmp_path) == whole


def test_a_part_comes_back_as_it_was(words, tmp_path):
    for pairs in (DATA.pairs, DATA.pairs[:1], [('', '')], [(' ', 'a')] * 3):
        before = part.tokenize(pairs, words)
        assert before.pairs == len(pairs)
        after = part.from_bytes(part.to_bytes(before))
        assert part.to_bytes(after) == part.to_bytes(before)
        assert after.pairs == before.pairs


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    processes = []
    popen = subprocess.Popen

    def remember(*args, **kwargs):
        processes.append(popen(*args, **kwargs))
        return processes[-1]

    monkeypatch.setattr(pool.subprocess, 'Popen', remember)
    return processes


def test_a_stop_ends_the_processes(words, tmp_path, started):
    interrupt(words, tmp_path, 5 * CHUNK, processes=2)
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def test_a_process_that_cannot_be_started_is_told(words, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, 'Resource temporarily unavailable')

    monkeypatch.setattr(pool.subprocess, 'Popen', refuse)
    message = 'cannot start 2 processes that tokenise: Resource temporarily'
    with pytest.raises(UserError, match=message):
        corpus.prepare(DATA, words, tmp_path, processes=2)


def test_a_process_that_dies_is_one_line_and_loses_nothing(
    words, whole, tmp_path, made, started
):
    def kill(done):
        if done > 5 * CHUNK:
            for process in started:
                process.kill()

    message = 'was ended by SIGKILL, .*memory.*; what is done is kept'
    with pytest.raises(UserError, match=message):
        corpus.prepare(DATA, words, tmp_path, kill, processes=2)
    assert made
    done = set(made)
    made.clear()
    corpus.prepare(DATA, words, tmp_path, processes=2)
    assert set(made) == set(PARTS) - done
    assert content(tmp_path) == whole


def test_a_full_disk_leaves_what_was_done(words, whole, tmp_path, monkeypatch):
    write = storage.write

    def full(path, data):
        if path.name == f'{PARTS[4]:012}':
            raise UserError(f'cannot write {path}: No space left on device')
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(storage, 'write', full)
        with pytest.raises(UserError, match='No space left'):
            corpus.prepare(DATA, words, tmp_path, processes=2)
    assert not list(tmp_path.glob('corpus-*'))
    kept = {int(file.name) for file in unfinished(tmp_path).glob('[0-9]*')}
    assert len(kept & set(PARTS[:4])) >= 3 and PARTS[4] not in kept
    corpus.prepare(DATA, words, tmp_path, processes=1)
    assert content(tmp_path) == whole


def test_a_short_text_starts_no_process(words, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, '_FEW', len(DATA.pairs) + CHUNK)
    monkeypatch.setattr(corpus, 'Pool', None)
    corpus.prepare(DATA, words, tmp_path, processes=2)
    assert content(tmp_path) == whole


def test_who_comes_second_waits_for_the_parts_and_takes_the_whole(
    words, whole, tmp_path, made
):
    interrupt(words, tmp_path, 4 * CHUNK, processes=1)
    made.clear()
    lock = unfinished(tmp_path) / 'lock'
    waited = []

    def first_ends(done):
        """The first process ends while the second waits."""
        if done == 2 * CHUNK:
            waited.append(done)
            if len(waited) == 2:
                held.close()
                corpus.prepare(DATA, words, tmp_path, processes=1)
                made.clear()

    held = contextlib.ExitStack()
    held.enter_context(hold.alone(lock, lambda: None))
    corpus.prepare(DATA, words, tmp_path, first_ends, processes=1)
    assert len(waited) >= 2 and not made
    assert content(tmp_path) == whole


def test_what_a_kill_has_left_is_removed_by_the_next_start(words, whole, tmp_path):
    interrupt(words, tmp_path, 4 * CHUNK, processes=1)
    (parts,) = tmp_path.glob('.*.parts')
    left = f'{storage.HOST}.{2**22 + 1}.tmp'  # larger than any process id
    draft = tmp_path / f'.corpus-0.{left}'
    draft.mkdir()
    (draft / 'source.tokens').write_bytes(b'half')
    (parts / f'.{PARTS[4]:012}.{left}').write_bytes(b'half')
    living = tmp_path / f'.corpus-0.{storage.HOST}.{os.getppid()}.tmp'
    living.mkdir()
    corpus.prepare(DATA, words, tmp_path, processes=1)
    assert {path.name for path in tmp_path.glob('.*')} == {living.name}
    assert content(tmp_path) == whole


def test_waiting_ends_by_what_the_callback_raises(tmp_path):
    def stop():
        raise KeyboardInterrupt

    with hold.alone(tmp_path / 'lock', stop):
        with pytest.raises(KeyboardInterrupt):
            with hold.alone(tmp_path / 'lock', stop):
                raise AssertionError('two have the lock')
    with hold.alone(tmp_path / 'lock', stop):
        pass


def test_a_worker_imports_no_jax_and_ends_with_its_input(words):
    code = (
        'import sys\n'
        f'from {worker.__package__} import worker\n'
        'heavy = {"jax", "flax", "optax", "absl", "rich"} & set(sys.modules)\n'
        'assert not heavy, heavy\n'
        'worker.main()\n'
    )
    questions = pickle.dumps(words) + pickle.dumps(DATA.pairs)
    answered = subprocess.run(
        [sys.executable, '-c', code], input=questions, capture_output=True, timeout=60
    )
    assert (answered.returncode, answered.stderr) == (0, b'')
    expected = part.to_bytes(part.tokenize(DATA.pairs, words))
    assert pickle.loads(answered.stdout) == expected


def test_parts_of_a_corpus_that_was_damaged_later_are_not_needed(words, tmp_path):
    corpus.prepare(DATA, words, tmp_path, processes=1)
    (folder,) = tmp_path.iterdir()
    (folder / 'source.tokens').write_bytes(b'')
    corpus.prepare(DATA, words, tmp_path, processes=1)
    assert [file.name for file in tmp_path.iterdir()] == [folder.name]
    assert not checksums.damage(folder / checksums.SUMS, corpus._FILES)
