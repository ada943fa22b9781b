"""Tests of the source `made`."""

import hashlib
import re
import statistics

import pytest

from experiments import contracts
from experiments.data.sources.made import Made
from flaxformer_lite import testing


def close(text):
    """Returns the brackets that close the open ones of a text."""
    word = text.replace(' ', '')
    while (shorter := re.sub(r'\(\)|\[\]', '', word)) != word:
        word = shorter
    return ' '.join(word[::-1].translate(str.maketrans('([', ')]')))


def value(text):
    """Evaluates a ListOps expression with Python."""
    names = {
        'MAX': max,
        'MIN': min,
        'MED': statistics.median_low,
        'SM': lambda values: sum(values) % 10,
    }
    code = re.sub(r'\[([A-Z]+)', r'\1([', text).replace(' ]', '])')
    return str(eval(re.sub(' +', ', ', code).replace('[, ', '['), names))


RULES = {
    'copy': lambda text: text,
    'reverse': lambda text: ' '.join(text.split()[::-1]),
    'sort': lambda text: ' '.join(sorted(text.split())),
    'addition': lambda text: ' '.join(
        str(sum(int(number.replace(' ', '')) for number in text.split('+')))
    ),
    'parity': lambda text: str(text.split().count('1') % 2),
    'dyck': close,
    'listops': value,
}


@pytest.mark.parametrize('task', RULES)
def test_targets_follow_the_rule_of_their_task(task):
    data = Made(task=task, longest=16, pairs=150)
    sets = data.evaluation()
    train = list(data.train())
    for source, target in [*train, *sets['val'], *sets['longer']]:
        assert target == RULES[task](source), source
    within, beyond = (
        {len(source.split()) for source, _ in pairs}
        for pairs in (train, sets['longer'])
    )
    assert (min(within), max(within)) == (4, 16)
    assert (min(beyond), max(beyond)) == (17, 32)
    # No answer is right most of the time.
    answers = [target for _, target in train]
    assert max(answers.count(x) for x in set(answers)) < 0.6 * len(answers)
    testing.require(contracts.source_findings(data), task)
    assert list(Made(task=task, seed=1, pairs=100).train()) != train[:100]


def test_text_is_the_same_on_every_platform():
    """If you change the pairs on purpose, copy the digest from the failure."""
    pairs = [pair for task in RULES for pair in Made(task=task, pairs=100).train()]
    text = '\n'.join('\t'.join(pair) for pair in pairs)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == '71d04cc60c4186a3'
