"""Tests of translations side by side, and of scores by length and phenomenon."""

import pytest
import sacrebleu
from synthetic_runs import REFERENCES, make, study, translate

from experiments import metrics
from experiments.reports import page, texts
from parallel_grammar import english, german
from parallel_grammar.source import Grammar

BLEU = metrics.deciding(metrics.make('bleu'), '')


def test_arms_with_other_sentences_are_left_out(tmp_path):
    one = make(tmp_path / 'a', 30.0, outputs=REFERENCES)
    seed = make(tmp_path / 'b', 30.0, outputs=['x', *REFERENCES[1:]], train__seed=1)
    other = make(tmp_path / 'c', 30.0, model__num_heads=8)
    translate(other, ['y'] * 3, sources=['other'] * 3)
    outputs = texts.find_translations(study([one, seed, other])).outputs
    assert {arm: len(seeds) for arm, seeds in outputs.items()} == {'num_heads=4': 2}


def test_sentences_translated_differently_are_listed(tmp_path):
    one = make(tmp_path / 'a', 30.0, outputs=REFERENCES)
    outputs = [REFERENCES[0], 'ganz falsch', REFERENCES[2] + ' x']
    other = make(tmp_path / 'b', 30.0, outputs=outputs, model__num_heads=8)
    equal = make(tmp_path / 'c', 30.0, outputs=REFERENCES, model__num_heads=2)

    def sentences(*paths):
        return texts.differing_sentences(texts.find_translations(study(paths)))

    differing = sentences(one, other)
    assert [x.reference for x in differing] == [REFERENCES[1], REFERENCES[2]]
    assert differing[0].translations['num_heads=4'] == REFERENCES[1]
    assert [x.reference for x in sentences(one)] == REFERENCES
    for paths, word in (([one, other], 'differently'), ([one, equal], 'alike')):
        (section,) = page.translations(study(paths))
        assert word in section.text[0]


def translated(references, outputs, **fields):
    sources = ['s'] * len(references)
    tuples = [(text,) for text in references]
    arm = {'arm': [outputs]}
    return texts.Translated('test', '', sources, tuples, arm, BLEU)._replace(**fields)


def test_scores_by_length_match_sacrebleu_on_those_sentences():
    short = [f'drei Wörter {i}' for i in range(8)]
    long = [f'ein Satz von sieben Wörtern ist {i}' for i in range(9)]
    spoiled = [text.replace('Wörter', 'Worte') for text in [*short, *long]]
    table = texts.by_group(translated([*short, *long], spoiled))
    assert [row[:2] for row in table.rows] == [('1–5 words', 8), ('6–10 words', 9)]
    groups = [(spoiled[:8], short), (spoiled[8:], long)]
    for row, (outputs, references) in zip(table.rows, groups, strict=True):
        score = sacrebleu.corpus_bleu(outputs, [references]).score
        assert row[2].mean == pytest.approx(score)
    # A single group has no table.
    assert texts.by_group(translated(['a b'] * 20, ['a b'] * 20)) is None


@pytest.mark.slow
def test_only_sentences_of_the_grammar_have_phenomena():
    sets = Grammar().evaluation()
    sources, references = map(list, zip(*sets['test'], strict=True))
    own = translated(references, references, data='grammar', sources=sources)
    rows = texts.by_group(own).rows
    phenomena = {row[0] for row in rows if not row[0].endswith(' words')}
    assert {'6–10 words', 'question'} <= {row[0] for row in rows}
    assert all(row[2].mean == pytest.approx(100) for row in rows)
    for others in (
        {'sources': sources[::-1]},
        {'data': 'grammar(seed=1)'},
        {'data': 'no_such_source'},
        {'data': 'my_package.my_module.MySource'},
    ):
        rows = texts.by_group(own._replace(**others)).rows
        assert not phenomena & {row[0] for row in rows}


def test_groups_and_trees_of_the_grammar_belong_to_its_pairs():
    grammar = Grammar()
    sets = grammar.evaluation()
    questions = [sets['test'][i] for i in grammar.groups('test')['question']]
    assert questions == [pair for pair in sets['test'] if pair[1].endswith('?')]
    for name, trees in grammar.trees().items():
        pairs = [(english.sentence(tree), german.sentence(tree)) for tree in trees]
        assert pairs == sets[name]
