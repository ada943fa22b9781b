"""A signal stops a run soon, even while C code runs that no signal interrupts."""

import dataclasses
import hashlib
import io
import os
import signal
import threading
import time
from concurrent.futures import Future

import made_runs
import pytest

from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.config.schema import ExperimentConfig
from experiments.runs import directory


@pytest.fixture
def stop():
    stop = Stop()
    with stop.listening():
        yield stop


def ask_soon(number):
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


def test_work_returns_and_raises_as_if_it_were_called(stop):
    assert stop.wait_for(lambda: 7) == 7
    with pytest.raises(TimeoutError, match='of the work'):
        stop.wait_for(lambda: (_ for _ in ()).throw(TimeoutError('of the work')))
    assert not stop.asked
    stop.check()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_work_that_nothing_interrupts_is_left_to_itself(stop, number):
    ended = threading.Event()

    def work():
        # In C for seconds, as a compiler is; other threads run on.
        hashlib.pbkdf2_hmac('sha256', b'', b'', 20_000_000)
        ended.set()

    ask_soon(number)
    with pytest.raises(Stopped):
        stop.wait_for(work)
    assert stop.asked and not ended.is_set()
    with pytest.raises(Stopped):
        stop.check()
    with pytest.raises(Stopped):  # what comes after it is not even begun
        stop.wait_for(lambda: pytest.fail('was begun'))


def test_work_that_looks_ends_in_order(stop):
    """It may take away its drafts before anything else goes on."""
    cleared = []

    def work():
        try:
            while True:
                stop.check()
        finally:
            time.sleep(0.2)
            cleared.append(True)

    ask_soon(signal.SIGTERM)
    with pytest.raises(Stopped):
        stop.wait_for(work)
    assert cleared


def test_a_future_is_waited_for_until_a_stop(stop):
    future = Future()
    future.set_result(3)
    assert stop.result(future) == 3
    ask_soon(signal.SIGTERM)
    with pytest.raises(Stopped):
        stop.result(Future())


def test_tokenising_ends_and_leaves_no_draft(stop, tmp_path, monkeypatch):
    from experiments.data import corpus, tokenizer
    from experiments.data.sources.grammar import Grammar
    from experiments.training import setup

    monkeypatch.setattr(setup.cache, 'folder', lambda: tmp_path / 'cache')
    monkeypatch.setattr(corpus, '_CHUNK', 10)
    data, out = Grammar(pairs=100), io.StringIO()
    words = tokenizer.train(data, 200, tmp_path)
    pairs = data.train()

    class Asking(Grammar):
        def train(self):
            for number, pair in enumerate(pairs):
                if number == 25:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield pair

    config, source = ExperimentConfig(), Asking(pairs=100)
    with pytest.raises(Stopped):
        setup._tokenised(config, source, words, setup.Memo(), Screen(out), stop)
    assert out.getvalue() == 'tokenising …\n'  # once
    assert len(list(pairs)) == 70  # the chunk is ended, and no other begun
    assert list((tmp_path / 'cache').iterdir()) == []


def test_mending_the_tokenizer_of_a_run_that_has_ended_is_stopped(
    stop, tmp_path, monkeypatch
):
    from experiments.data import tokenizer
    from experiments.training import whole_run

    config = dataclasses.replace(ExperimentConfig(), data='grammar(pairs=100)')
    made_runs.make(tmp_path / 'made', bleu=1.0)
    with directory.open_run(tmp_path / 'run', config.to_dict()):
        (tmp_path / 'made' / 'result.json').rename(tmp_path / 'run' / 'result.json')
    sums = tmp_path / 'run' / 'tokenizer.model.sha256'
    sums.write_text(f'{"0" * 64}  tokenizer.model\n')
    ended = threading.Event()

    def train(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(5)

    monkeypatch.setattr(tokenizer, 'train', train)
    screen = Screen(io.StringIO())
    with pytest.raises(Stopped):
        whole_run.run([whole_run.Run(config, tmp_path / 'run')], (), screen, stop)
    ended.set()
    assert screen.phase == 'making the tokenizer'


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Stop().listening():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_several_processes_stop_where_they_agree_to():
    answers = iter([False, False, True])
    stop = Stop()
    with pytest.MonkeyPatch.context() as patch, stop.listening():
        stop.agree(lambda: next(answers))
        sent = []
        patch.setattr(os, 'kill', lambda process, number: sent.append(number))
        signal.raise_signal(signal.SIGINT)
        assert sent == [signal.SIGTERM]  # of which jax tells the others
        assert not stop.due() and not stop.asked
        assert not stop.due()
        assert stop.due() and stop.asked
        assert stop.due()  # without asking again
    assert stop.signal == signal.SIGTERM
