"""Tests of converted checkpoints against tokens and texts of Transformers.

The expected values are in goldens/families/ and goldens/tokenizers/.
"""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import published_tokenizers
import pytest
from terminals import Terminal

import flaxformer_checkpoints
from experiments import report, run, storage, translate
from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.config.decoding import decoding_options
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.translator import Translator
from experiments.runs import directory, reading, trained_run
from experiments.runs.reading import outputs_path
from experiments.training import setup
from flaxformer_checkpoints import convert, converted
from flaxformer_checkpoints import tokenizer as huggingface

SETTINGS = {
    **{'batch.tokens': 256, 'batch.max_length': 16, 'train.steps': 2},
    **{'evaluation.decode': 'greedy', 'evaluation.extra_length': 3},
    'evaluation.every': 0,
}


class Runs:
    """Converted checkpoints, each converted when it is first used."""

    def __init__(self, make_folder):
        self._make_folder = make_folder
        self._folder = make_folder('runs')

    def __truediv__(self, name):
        path = self._folder / name
        if not path.exists():
            theirs = self._make_folder('theirs') / name
            converted.write_run(published_tokenizers.read(name, theirs), path)
        return path


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp)


def config_flags(fields):
    return [f'--config.{name}={value}' for name, value in fields.items()]


def mean_variables(trained):
    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    assert mean.steps == trained.checkpoints.steps() and not mean.left_out
    return mean.variables


def translator_of(trained, tokenizer=None):
    settings = dataclasses.replace(
        trained.config.evaluation,
        decode='greedy',
        extra_length=published_tokenizers.EXTRA_LENGTH,
    )
    decoding = decoding_options(settings)
    translate = Translator(trained.model, tokenizer or trained.tokenizer, decoding)
    variables = mean_variables(trained)
    return lambda texts: [best[0].text for best in translate(variables, texts)]


# The test of tags covers M2M100 by default.
@pytest.mark.slow
@pytest.mark.parametrize('name', published_tokenizers.NAMES)
def test_translations_match_transformers(name, runs):
    golden = published_tokenizers.golden_of(name)
    translate = translator_of(OpenedRun(runs / name))
    assert translate(golden['texts']) == golden['greedy']


@pytest.mark.ci
def test_tags_choose_the_languages_of_each_sentence(runs):
    trained = OpenedRun(runs / 'm2m100')
    golden = published_tokenizers.golden_of('m2m100')
    own = trained.tokenizer
    other = huggingface.from_checkpoint(
        own._folder, own.vocab_size, own.config_tokens, 'is', 'ja'
    )
    tag = '<{}2{}> '.format(*golden['languages'])
    mixed = []
    for text in golden['texts']:
        mixed += [tag + text if text.strip() else text, text]
    translate = translator_of(trained, other)
    translations = translate(mixed)
    assert translations[::2] == golden['greedy']
    assert translations[1::2] == translate(golden['texts']) != golden['greedy']


def write_directions(folder, *pairs):
    specs = []
    for source, target in pairs:
        part = folder / target
        part.mkdir(parents=True)
        for name, more in {'train': 'bb', 'val': 'ab', 'test': 'ba'}.items():
            for code, line in {source: 'cab', target: 'bac'}.items():
                (part / f'{name}.{code}').write_text(f'{line}\n{more}\n', 'utf-8')
        specs.append(f'text(path="{part}", source="{source}", target="{target}")')
    return f'mix(sources={specs!r}, tags="both")'


def new_language_fields(path, folder):
    """Returns config fields of a run with a published and a new target language."""
    tokenizer = str(OpenedRun(path).config.tokenizer)
    directions = ('eng_Latn', 'fra_Latn'), ('fra_Latn', 'gsw')
    return SETTINGS | {
        'data': write_directions(folder, *directions),
        'init_from': str(path),
        'tokenizer': f'{tokenizer[:-1]}, languages={{"gsw": "eng_Latn"}})',
    }


def prepare(path, fields, workdir):
    config = flags.settings(f'{path}/config.json', fields).config
    return setup.prepare(config, workdir, Screen(io.StringIO()))


@pytest.mark.ci
def test_a_new_language_starts_with_the_embedding_of_the_named_one(runs, tmp_path):
    path = runs / 'nllb'
    fields = new_language_fields(path, tmp_path / 'text')
    prepared = prepare(path, fields, tmp_path / 'run')
    old = mean_variables(OpenedRun(path))['params']['embedding']
    new = prepared.warm_start.variables['params/embedding']
    to_ids = prepared.tokenizer.theirs.convert_tokens_to_ids
    like, added = to_ids(['eng_Latn', 'gsw'])
    assert len(new) == prepared.model.vocab_size == added + 1
    np.testing.assert_array_equal(new[:added], old[:added])
    np.testing.assert_array_equal(new[added], old[like])
    assert np.any(new[added] != 0)
    assert prepared.warm_start.record['tokenizer'] == 'init_from'
    assert prepared.warm_start.record['published_base'] is False
    pairs = prepared.pairs
    targets = {pairs.target[i].tolist()[0] for i in range(len(pairs))}
    assert targets == set(to_ids(['fra_Latn', 'gsw']))
    fields['data'] = fields['data'].replace(', tags="both"', '')
    with pytest.raises(UserError, match='tags="both"'):
        prepare(path, fields, tmp_path / 'run')


@pytest.mark.ci
@pytest.mark.parametrize('changes', [{}, {'model.decoder.num_layers': 1}], ids=str)
def test_base_counts_as_published_if_no_parameter_differs(runs, tmp_path, changes):
    path = runs / 'nllb'
    tokenizer = str(OpenedRun(path).config.tokenizer)
    fields = (
        SETTINGS
        | changes
        | {
            'model.dense': 'lora(rank=2)',
            'data': write_directions(tmp_path / 'text', ('fra_Latn', 'eng_Latn')),
            'init_from': str(path),
            'init_ignore': 'layer_1/' if changes else '',
            'tokenizer': f'{tokenizer[:-1]}, source="fra_Latn", target="eng_Latn")',
        }
    )
    record = prepare(path, fields, tmp_path / 'run').warm_start.record
    assert record['rows']  # a tokenizer of other default languages
    assert record['published_base'] is not bool(changes)


@pytest.mark.slow
def test_adapted_decoder_is_trained_and_exported_as_t5gemma_2(tmp_path, command):
    theirs = published_tokenizers.checkpoint('t5gemma', tmp_path / 'gemma3')
    families = published_tokenizers.GOLDENS / 'families'
    shutil.copytree(families / 'gemma3', theirs, dirs_exist_ok=True)
    base, path, out = (tmp_path / name for name in ('base', 'run', 'out'))
    data = 'grammar(pairs=100)'
    merged, separate = (f'--to_encoder_decoder={x}' for x in ('merged', 'separate'))
    command(convert, theirs, f'--workdir={base}', f'--data={data}', merged)
    fields = SETTINGS | {'init_from': base, 'data': data, 'batch.max_length': 40}
    fields['evaluation.sets'] = 'val'
    start = f'--config={base}/config.json', f'--workdir={path}'
    command(run, *start, *config_flags(fields))
    command(convert, path, '--to=huggingface', f'--out={out}')
    config = json.loads((out / 'config.json').read_text('utf-8'))
    assert config['model_type'] == 't5gemma2'
    assert config['encoder']['text_config']['sliding_window'] == 3
    _, exported = flaxformer_checkpoints.from_pretrained(out)
    expected = OpenedRun(path).variables
    jax.tree.map(np.testing.assert_array_equal, exported, expected)
    command(convert, theirs, f'--workdir={tmp_path / "separate"}', separate)
    with pytest.raises(UserError, match=r'model\.merged_attention=False'):
        command(convert, tmp_path / 'separate', '--to=huggingface', f'--out={out}2')


@pytest.fixture
def t5(tmp_path):
    return published_tokenizers.checkpoint('t5', tmp_path / 't5')


@pytest.mark.ci
def test_commands_open_converted_checkpoints(t5, tmp_path, monkeypatch, command):
    path = tmp_path / 'run'
    arguments = t5, f'--workdir={path}', '--data=grammar(pairs=100)'
    terminal = Terminal()
    monkeypatch.setattr(sys, 'stderr', terminal)
    assert re.search(r'family +t5\nparameters', command(convert, *arguments).out)
    assert 'converting' in terminal.getvalue()
    assert list(tmp_path.glob('.*')) == []
    texts = tmp_path / 'texts'
    texts.write_text('cab abba\n\nbac\n', encoding='utf-8')
    with texts.open() as file:
        monkeypatch.setattr(sys, 'stdin', file)
        out = command(translate, f'--workdir={path}', '--decode=greedy').out
    lines = out.splitlines()
    assert len(lines) == 3 and lines[0] and lines[1] == ''
    with pytest.raises(UserError, match='exists'):
        command(convert, *arguments)


def test_impossible_conversions_are_rejected(t5, tmp_path, command):
    workdir = tmp_path / 'run'
    with pytest.raises(UserError, match='decoder-only'):
        command(convert, t5, f'--workdir={workdir}', '--to_encoder_decoder=merged')
    folder = tmp_path / 'other'
    folder.mkdir()
    (folder / 'config.json').write_text('{"model": {}}', encoding='utf-8')
    with pytest.raises(UserError, match='is a run.* --to'):
        command(convert, folder, f'--workdir={workdir}')
    tokenizer = '--config.tokenizer=huggingface(vocab_size=200)'
    data = '--config.data=grammar(pairs=100)'
    with pytest.raises(UserError, match='huggingface .*init_from'):
        command(run, '--config=wmt_small', tokenizer, data, f'--workdir={workdir}')
    assert not workdir.exists()


def test_killed_conversion_leaves_no_files(t5, tmp_path, monkeypatch):
    conversion = converted.read_checkpoint(t5, 'grammar')

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(converted.load, 'to_store', kill)  # the last file
        with pytest.raises(KeyboardInterrupt):
            converted.write_run(conversion, tmp_path / 'run')
    assert list(tmp_path.iterdir()) == [t5]


def test_converted_run_cannot_be_trained_but_gives_its_config(runs):
    path = runs / 't5'
    config = OpenedRun(path).config
    settings = flags.settings(f'{path}/config.json', {'train.steps': 7})
    train = dataclasses.replace(config.train, steps=7)
    assert settings.config == dataclasses.replace(config, train=train)
    for other in (config, settings.config):
        with pytest.raises(UserError, match='--config.init_from=.*/t5'):
            directory.check_directory(path, other.to_dict())


def test_report_shows_converted_runs_and_scores_of_evaluate(tmp_path, runs):
    path = shutil.copytree(runs / 't5', tmp_path / 'run')
    record = reading.read_run(path)
    assert (record.status, record.result['step']) == ('converted', 0)
    assert record.evaluations == {}
    for name, bleu in (('val', 3.25), ('test', 4.5)):
        file = outputs_path(path, name, converted.STEP).with_suffix('.json')
        scores = {'bleu': bleu, 'bleu_signature': 'x', 'set': name, 'step': 0}
        storage.write_json(file, scores)
    text = report.as_table([reading.read_run(path)])
    assert re.search('test bleu +val bleu', text)
    assert re.search('converted +0 .* 4.50 +3.25', text)
    storage.write_json(file, {})
    with pytest.raises(UserError, match='test.*[.]json: .* field set'):
        reading.read_run(path)


@pytest.mark.ci
def test_published_checkpoint_survives_a_round_trip(runs, tmp_path, command):
    theirs = published_tokenizers.checkpoint('mbart50', tmp_path / 'theirs')
    out = tmp_path / 'out'
    command(convert, runs / 'mbart50', '--to=huggingface', f'--out={out}')
    described, expected = map(flaxformer_checkpoints.describe_pretrained, (out, theirs))
    assert described == expected
    exported, original = (
        flaxformer_checkpoints.from_pretrained(path)[1] for path in (out, theirs)
    )
    jax.tree.map(np.testing.assert_array_equal, exported, original)
    model = 'sentencepiece.bpe.model'
    assert (out / model).read_bytes() == (theirs / model).read_bytes()
    settings, generation = [
        json.loads((out / name).read_text('utf-8'))
        for name in ('tokenizer_config.json', 'generation_config.json')
    ]
    assert settings['tokenizer_class'] == 'MBart50Tokenizer'
    assert [settings['src_lang'], settings['tgt_lang']] == ['cs_CZ', 'ar_AR']
    assert generation['forced_bos_token_id'] == 13
    exported = converted.read_checkpoint(out, 'grammar', 'cs_CZ', 'ar_AR').tokenizer
    texts = published_tokenizers.golden_of('mbart50')['texts']
    assert exported.encode(texts) == OpenedRun(runs / 'mbart50').tokenizer.encode(texts)


def write_text(folder):
    folder.mkdir()
    for name in ('train', 'val'):
        (folder / f'{name}.en').write_text('cab abba\nbac\n' * 8, encoding='utf-8')
        (folder / f'{name}.de').write_text('abba cab\nbab\n' * 8, encoding='utf-8')
    return f'text(path="{folder}", source="en", target="de")'


def kill_at_second_checkpoint(path, arguments):
    argv = [sys.executable, '-m', 'experiments.run', *arguments]
    process = subprocess.Popen(argv)
    while not list((path / 'checkpoints').glob('[1-9]*')):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (path / 'result.json').exists()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # of Transformers
def test_fine_tuned_checkpoint_resumes_and_exports(runs, tmp_path, command):
    theirs = runs / 'mbart'
    path, out = tmp_path / 'run', tmp_path / 'out'
    fields = SETTINGS | {
        'init_from': theirs,
        'data': write_text(tmp_path / 'text'),
        'train.steps': 60,
        'checkpoint.every': 10,
        'optimizer.schedule': 'constant_schedule(value=3e-4)',
    }
    arguments = [f'--config={theirs}/config.json', f'--workdir={path}']
    arguments += config_flags(fields)
    kill_at_second_checkpoint(path, arguments)
    assert 'resuming at step ' in command(run, *arguments).out
    assert json.loads((path / 'init.json').read_text('utf-8'))['averaged_steps'] == [0]
    command(run, *arguments, '--config.train.steps=64')
    trained = OpenedRun(path)
    assert trained.checkpoints.steps()[-1] == 64
    assert trained.tokenizer.digest == OpenedRun(theirs).tokenizer.digest
    assert trained.model.special_tokens == trained.tokenizer.special_tokens
    assert re.search(r'run +1  finished +64 ', command(report, path).out)
    command(convert, path, '--to=huggingface', f'--out={out}')
    texts = published_tokenizers.golden_of('mbart')['texts']
    translations = translator_of(trained)(texts)
    assert len(set(translations)) > 2

    pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert translations == [
        published_tokenizers.translated(model, tokenizer, 'mbart', text)
        for text in texts
    ]
