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
from experiments.training import setup, warm_start
from flaxformer_checkpoints import convert, converted
from flaxformer_checkpoints import tokenizer as huggingface
from flaxformer_explain import page

# Each takes seconds to compile; these two have different searches.
MOST_TELLING = ('marian', 'mbart')


class Runs:
    def __init__(self, make_folder):
        self._make_folder = make_folder
        self._folder = make_folder('runs')

    def __truediv__(self, name):
        path = self._folder / name
        if name in published_tokenizers.NAMES and not path.exists():
            theirs = self._make_folder('theirs') / name
            converted.write_run(published_tokenizers.read(name, theirs), path)
        return path


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp)


def command(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, 'argv', [main.__name__, *map(str, arguments)])
    main.main()


@pytest.mark.parametrize(
    'name',
    [
        name if name in MOST_TELLING else pytest.param(name, marks=pytest.mark.slow)
        for name in published_tokenizers.NAMES
    ],
)
def test_translations_are_those_of_transformers(name, runs):
    trained = OpenedRun(runs / name)
    settings = dataclasses.replace(
        trained.config.evaluation,
        decode='greedy',
        extra_length=published_tokenizers.EXTRA_LENGTH,
    )
    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    assert mean.steps == [converted.STEP] and not mean.left_out
    translator = Translator(
        trained.model, trained.tokenizer, decoding_options(settings)
    )
    golden = published_tokenizers.golden_of(name)
    found = [best[0].text for best in translator(mean.variables, golden['texts'])]
    assert found == golden['greedy']


def test_tags_choose_the_languages_of_each_sentence(runs):
    name = 'm2m100'
    trained = OpenedRun(runs / name)
    golden = published_tokenizers.golden_of(name)
    theirs = trained.tokenizer
    sizes = theirs.vocab_size, theirs.config_tokens
    other = huggingface.from_checkpoint(theirs._folder, *sizes, 'is', 'ja')
    decoding = decoding_options(
        dataclasses.replace(
            trained.config.evaluation,
            decode='greedy',
            extra_length=published_tokenizers.EXTRA_LENGTH,
        )
    )
    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    tag = '<{}2{}> '.format(*golden['languages'])
    mixed = []
    for text in golden['texts']:
        mixed += [tag + text if text.strip() else text, text]
    translate = Translator(trained.model, other, decoding)
    found = [best[0].text for best in translate(mean.variables, mixed)]
    assert found[::2] == golden['greedy']
    default = translate(mean.variables, golden['texts'])
    assert found[1::2] == [best[0].text for best in default] != found[::2]


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


def several(runs, tmp_path, name='nllb'):
    """Returns flags of a run with a published and a new target language."""
    data = write_directions(
        tmp_path / 'text', ('eng_Latn', 'fra_Latn'), ('fra_Latn', 'gsw')
    )
    path = runs / name
    tokenizer = str(OpenedRun(path).config.tokenizer)
    return {
        'data': data,
        'init_from': str(path),
        'tokenizer': f'{tokenizer[:-1]}, languages={{"gsw": "eng_Latn"}})',
        **{'batch.tokens': 256, 'batch.max_length': 16, 'train.steps': 2},
        **{'evaluation.decode': 'greedy', 'evaluation.extra_length': 3},
        'evaluation.every': 0,
    }


def test_the_embedding_of_a_new_language_is_that_of_the_named_one(runs, tmp_path):
    overrides = several(runs, tmp_path)
    config = flags.settings(f'{runs / "nllb"}/config.json', overrides).config
    made = setup.prepare(config, tmp_path / 'run', Screen(io.StringIO()))
    trained = OpenedRun(runs / 'nllb')
    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    old = mean.variables['params']['embedding']
    new = made.warm_start.variables['params/embedding']
    theirs = made.tokenizer.theirs
    like, added = theirs.convert_tokens_to_ids(['eng_Latn', 'gsw'])
    assert new.shape == (added + 1, old.shape[1]) and made.model.vocab_size == added + 1
    np.testing.assert_array_equal(new[:added], old[:added])
    np.testing.assert_array_equal(new[added], old[like])
    assert np.any(new[added] != 0)
    assert made.warm_start.record['tokenizer'] == 'init_from'
    assert made.warm_start.record['published_base'] is False
    targets = {made.pairs.target[i].tolist()[0] for i in range(len(made.pairs))}
    assert targets == set(theirs.convert_tokens_to_ids(['fra_Latn', 'gsw']))
    with pytest.raises(UserError, match='tags="both"'):
        data = overrides['data'].replace(', tags="both"', '')
        overrides = overrides | {'data': data}
        config = flags.settings(f'{runs / "nllb"}/config.json', overrides).config
        setup.prepare(config, tmp_path / 'run', Screen(io.StringIO()))


@pytest.mark.parametrize('changes', [{}, {'decoder.num_layers': 1}], ids=str)
def test_a_base_is_published_if_no_parameter_differs(runs, tmp_path, changes):
    path = runs / 'nllb'
    overrides = several(runs, tmp_path) | {'model.dense': 'lora(rank=2)'}
    overrides |= {f'model.{name}': value for name, value in changes.items()}
    data = write_directions(tmp_path / 'other', ('fra_Latn', 'eng_Latn'))
    overrides |= {'data': data, 'init_ignore': 'layer_1/' if changes else ''}
    tokenizer = str(OpenedRun(path).config.tokenizer)
    languages = ', source="fra_Latn", target="eng_Latn")'
    overrides['tokenizer'] = tokenizer[:-1] + languages
    config = flags.settings(f'{path}/config.json', overrides).config
    made = setup.prepare(config, tmp_path / 'run', Screen(io.StringIO()))
    assert made.warm_start.record['rows']  # a tokenizer of other default languages
    assert made.warm_start.record['published_base'] is not bool(changes)


@pytest.mark.slow
def test_an_adapted_decoder_is_trained_and_written_as_t5gemma_2(tmp_path, monkeypatch):
    theirs = published_tokenizers.checkpoint('t5gemma', tmp_path / 'gemma3')
    families = published_tokenizers.GOLDENS / 'families'
    shutil.copytree(families / 'gemma3', theirs, dirs_exist_ok=True)
    base, path, out = (tmp_path / name for name in ('base', 'run', 'out'))
    data = 'grammar(pairs=100)'
    options = f'--data={data}', '--to_encoder_decoder=merged'
    command(monkeypatch, convert, theirs, f'--workdir={base}', *options)
    settings = {
        'init_from': base,
        'data': data,
        **{'batch.tokens': 256, 'batch.max_length': 40, 'train.steps': 2},
        **{'evaluation.every': 0, 'evaluation.sets': 'val'},
        **{'evaluation.decode': 'greedy', 'evaluation.extra_length': 3},
    }
    fields = [f'--config.{name}={value}' for name, value in settings.items()]
    start = f'--config={base}/config.json', f'--workdir={path}'
    command(monkeypatch, run, *start, *fields)
    command(monkeypatch, convert, path, '--to=huggingface', f'--out={out}')
    config = json.loads((out / 'config.json').read_text('utf-8'))
    assert config['model_type'] == 't5gemma2'
    assert config['encoder']['text_config']['sliding_window'] == 3
    trained = OpenedRun(path)
    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    _, again = flaxformer_checkpoints.from_pretrained(out)
    jax.tree.map(np.testing.assert_array_equal, again, mean.variables)
    separate = tmp_path / 'separate'
    options = f'--workdir={separate}', '--to_encoder_decoder=separate'
    command(monkeypatch, convert, theirs, *options)
    with pytest.raises(UserError, match=r'model\.merged_attention=False'):
        command(monkeypatch, convert, separate, '--to=huggingface', f'--out={out}2')


def test_a_run_is_not_a_checkpoint(tmp_path):
    (tmp_path / 'config.json').write_text('{"model": {}}', encoding='utf-8')
    with pytest.raises(UserError, match='--to'):
        converted.read_checkpoint(tmp_path, 'grammar')


@pytest.mark.slow
def test_a_run_of_several_directions_scores_each(runs, tmp_path, monkeypatch):
    overrides = several(runs, tmp_path)
    path = tmp_path / 'run'
    settings = [f'--config.{name}={value}' for name, value in overrides.items()]
    settings += [f'--config={runs / "nllb"}/config.json', f'--workdir={path}']
    command(monkeypatch, run, *settings)
    found = json.loads((path / 'result.json').read_text('utf-8'))['evaluations']
    assert {name: x['direction'] for name, x in found.items()} == {
        'val': 'eng_Latn+fra_Latn-fra_Latn+gsw',
        'eng_Latn-fra_Latn.val': 'eng_Latn-fra_Latn',
        'eng_Latn-fra_Latn.test': 'eng_Latn-fra_Latn',
        'fra_Latn-gsw.val': 'fra_Latn-gsw',
        'fra_Latn-gsw.test': 'fra_Latn-gsw',
    }
    out = tmp_path / 'out'
    command(monkeypatch, convert, path, '--to=huggingface', f'--out={out}')
    again = converted.read_checkpoint(out, 'grammar', 'fra_Latn', 'gsw').tokenizer
    ours = OpenedRun(path).tokenizer
    pair = ('<fra_Latn2gsw> cab', 'bac')
    assert again.encode_pairs([('cab', 'bac')]) == ours.encode_pairs([pair])
    # It resumes without its source, whose tokenizer it extends.
    monkeypatch.setattr(warm_start, 'source', lambda *_: None)
    command(monkeypatch, run, *settings, '--config.train.steps=3')
    assert OpenedRun(path).checkpoints.steps()[-1] == 3


def test_commands_open_converted_checkpoints(tmp_path, monkeypatch, capsys):
    theirs = published_tokenizers.checkpoint('t5', tmp_path / 't5')
    path = tmp_path / 'run'
    data = '--data=grammar(pairs=100)'
    with monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', Terminal())
        command(patch, convert, theirs, f'--workdir={path}', data)
        assert 'converting' in sys.stderr.getvalue()
    assert re.search(r'family +t5\nparameters', capsys.readouterr().out)
    assert list(tmp_path.glob('.*')) == []

    texts = tmp_path / 'texts'
    texts.write_text('cab abba\n\nbac\n', encoding='utf-8')
    with texts.open() as file:
        monkeypatch.setattr(sys, 'stdin', file)
        command(monkeypatch, translate, f'--workdir={path}', '--decode=greedy')
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0] and lines[1] == ''

    with pytest.raises(UserError, match='exists'):
        command(monkeypatch, convert, theirs, f'--workdir={path}', data)


@pytest.fixture
def t5(tmp_path):
    return published_tokenizers.checkpoint('t5', tmp_path / 't5')


def test_only_a_decoder_is_adapted(t5, tmp_path, monkeypatch):
    options = f'--workdir={tmp_path / "run"}', '--to_encoder_decoder=merged'
    with pytest.raises(UserError, match='decoder-only') as error:
        command(monkeypatch, convert, t5, *options)
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'run').exists()


def test_killed_conversion_leaves_no_files(t5, tmp_path, monkeypatch):
    conversion = converted.read_checkpoint(t5, 'grammar')

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # The last that is written.
        patch.setattr(converted.load, 'to_store', killed)
        with pytest.raises(KeyboardInterrupt):
            converted.write_run(conversion, tmp_path / 'run')
    assert list(tmp_path.iterdir()) == [t5]
    converted.write_run(conversion, tmp_path / 'run')
    OpenedRun(tmp_path / 'run')


def test_published_tokenizers_need_a_path_or_init_from(runs, monkeypatch, capsys):
    with pytest.raises(UserError, match='huggingface .*init_from'):
        command(
            monkeypatch,
            run,
            '--config=wmt_small',
            '--config.tokenizer=huggingface(vocab_size=200)',
            '--config.data=grammar(pairs=100)',
            f'--workdir={runs / "other"}',
        )


def test_converted_runs_are_never_trained_but_give_their_config(runs):
    path = runs / 't5'
    trained = OpenedRun(path)
    settings = flags.settings(f'{path}/config.json', {'train.steps': 7})
    assert settings.config == dataclasses.replace(
        trained.config, train=dataclasses.replace(trained.config.train, steps=7)
    )
    assert settings.name == path.name and settings.overrides == {'train.steps': 7}
    for config in (trained.config, settings.config):
        with pytest.raises(UserError, match='--config.init_from=.*/t5'):
            directory.check_directory(path, config.to_dict())
    run = reading.read_run(path)
    assert (run.status, run.result['step']) == ('converted', 0)
    assert re.search('converted +0 +- +-', report.as_table([run]))


def test_report_shows_scores_of_evaluate(tmp_path, runs):
    path = tmp_path / 'run'
    shutil.copytree(runs / 't5', path)
    assert reading.read_run(path).evaluations == {}
    for name, bleu in (('val', 3.25), ('test', 4.5)):
        file = outputs_path(path, name, converted.STEP)
        scores = {'bleu': bleu, 'bleu_signature': 'x', 'set': name, 'step': 0}
        storage.write_json(file.with_suffix('.json'), scores)
    text = report.as_table([reading.read_run(path)])
    assert re.search('test bleu +val bleu', text) and re.search('4.50 +3.25', text)
    storage.write_json(file.with_suffix('.json'), {})
    with pytest.raises(UserError, match='test.*[.]json: .* field set'):
        reading.read_run(path)


def written_again(name, runs, folder, monkeypatch):
    theirs = published_tokenizers.checkpoint(name, folder / 'theirs')
    out = folder / 'out'
    command(monkeypatch, convert, runs / name, '--to=huggingface', f'--out={out}')
    assert flaxformer_checkpoints.describe_pretrained(
        out
    ) == flaxformer_checkpoints.describe_pretrained(theirs)
    ours, expected = [
        dict(jax.tree.leaves_with_path(flaxformer_checkpoints.from_pretrained(path)[1]))
        for path in (out, theirs)
    ]
    assert ours.keys() == expected.keys()
    for path, x in expected.items():
        np.testing.assert_array_equal(ours[path], x)
    return out, theirs


def test_published_checkpoints_survive_a_roundtrip(runs, tmp_path, monkeypatch, capsys):
    out, theirs = written_again('mbart50', runs, tmp_path, monkeypatch)
    model = 'sentencepiece.bpe.model'
    assert (out / model).read_bytes() == (theirs / model).read_bytes()
    settings, generation = [
        json.loads((out / name).read_text('utf-8'))
        for name in ('tokenizer_config.json', 'generation_config.json')
    ]
    assert settings['tokenizer_class'] == 'MBart50Tokenizer'
    assert [settings['src_lang'], settings['tgt_lang']] == ['cs_CZ', 'ar_AR']
    assert generation['forced_bos_token_id'] == 13

    again = converted.read_checkpoint(out, 'grammar', 'cs_CZ', 'ar_AR').tokenizer
    trained = OpenedRun(runs / 'mbart50').tokenizer
    texts = published_tokenizers.golden_of('mbart50')['texts']
    assert again.encode(texts) == trained.encode(texts)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['m2m100', 'nllb', 'mbart50', 'bart'])
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # of Transformers
def test_transformers_opens_exported_checkpoints(name, runs, tmp_path, monkeypatch):
    pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    out, _ = written_again(name, runs, tmp_path, monkeypatch)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    golden = published_tokenizers.golden_of(name)
    assert golden['greedy'] == [
        published_tokenizers.translated(model, tokenizer, name, text)
        for text in golden['texts']
    ]


def write_text(folder):
    folder.mkdir()
    for name in ('train', 'val'):
        (folder / f'{name}.en').write_text('cab abba\nbac\n' * 8, encoding='utf-8')
        (folder / f'{name}.de').write_text('abba cab\nbab\n' * 8, encoding='utf-8')
    return f'text(path="{folder}", source="en", target="de")'


def killed_at_a_checkpoint(path, settings):
    """Starts a run and kills it after its second checkpoint."""
    process = subprocess.Popen([sys.executable, '-m', 'experiments.run', *settings])
    while not list((path / 'checkpoints').glob('[1-9]*')):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (path / 'result.json').exists()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # of Transformers
def test_training_continues_from_a_published_checkpoint(
    runs, tmp_path, monkeypatch, capsys
):
    theirs = runs / 'mbart'
    path = tmp_path / 'run'
    settings = [
        *(f'--config={theirs}/config.json', f'--config.init_from={theirs}'),
        f'--config.data={write_text(tmp_path / "text")}',
        *('--config.batch.tokens=256', '--config.batch.max_length=16'),
        *('--config.checkpoint.every=10', '--config.evaluation.every=1000'),
        *('--config.evaluation.decode=greedy', '--config.evaluation.extra_length=3'),
        *(
            '--config.optimizer.schedule=constant_schedule(value=3e-4)',
            f'--workdir={path}',
        ),
    ]
    killed_at_a_checkpoint(path, [*settings, '--config.train.steps=60'])
    command(monkeypatch, run, *settings, '--config.train.steps=60')
    printed = capsys.readouterr().out
    assert 'resuming at step ' in printed
    assert json.loads((path / 'init.json').read_text('utf-8'))['averaged_steps'] == [0]
    command(monkeypatch, run, *settings, '--config.train.steps=64')
    trained = OpenedRun(path)
    assert trained.checkpoints.steps()[-1] == 64
    assert trained.tokenizer.digest == OpenedRun(theirs).tokenizer.digest
    assert trained.model.special_tokens == trained.tokenizer.special_tokens

    capsys.readouterr()
    command(monkeypatch, report, path)
    assert re.search(r'run +1  finished +64 ', capsys.readouterr().out)
    texts_file = tmp_path / 'texts'
    texts_file.write_text('cab abba\n', encoding='utf-8')
    written = tmp_path / 'page.html'
    with texts_file.open() as file, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdin', file)
        command(patch, translate, f'--workdir={path}')
        file.seek(0)
        command(patch, page, f'--workdir={path}', f'--out={written}')
    assert written.exists()
    out = tmp_path / 'out'
    command(monkeypatch, convert, path, '--to=huggingface', f'--out={out}')

    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    translator = Translator(trained.model, trained.tokenizer, trained.decoding)
    texts = published_tokenizers.golden_of('mbart')['texts']
    found = [best[0].text for best in translator(mean.variables, texts)]
    assert len(set(found)) > 2
    pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert found == [
        published_tokenizers.translated(model, tokenizer, 'mbart', text)
        for text in texts
    ]
