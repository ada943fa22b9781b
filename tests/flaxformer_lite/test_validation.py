"""Tests of the limits of values."""

import inspect
from typing import Annotated, Any, get_args, get_origin

import pytest

from flaxformer_lite import validation
from flaxformer_lite.attention.local import Local
from flaxformer_lite.config import variants
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.training.schedules.cosine import Cosine
from flaxformer_lite.validation import Choices, Range

INF, NAN = float('inf'), float('nan')
Whole = Annotated[int, Range(at_least=1)]
Share = Annotated[float, Range(at_least=0, below=1)]
Positive = Annotated[float, Range(above=0)]


@pytest.mark.parametrize(
    ('annotation', 'value'),
    [
        (Whole, 1),
        (Whole, 2**31 - 1),
        (Annotated[int | None, Range(at_least=1)], None),
        (Annotated[int, Range(at_least=0, below=2**32)], 2**32 - 1),
        (Share, 0),
        (Positive, 1e-37),
        (Annotated[float, Range(at_least=1e-6)], 1e-6),
        (Annotated[bool | float, Range(at_least=0)], True),
        (Annotated[str, Choices('one', 'other')], 'other'),
        (Any, [object()]),
    ],
)
def test_values_within_their_limits_are_accepted(annotation, value):
    validation.check('size', annotation, value)


@pytest.mark.parametrize(
    ('annotation', 'value', 'message'),
    [
        (Whole, 0, 'at least 1, not 0'),
        (Whole, 10**20, f'at least 1 and within ±{2**31 - 1}, not {10**20}'),
        (Whole, 1.5, 'of type int, not 1.5'),
        (Whole, True, 'of type int, not True'),
        (Annotated[int, Range(at_most=5)], 6, 'at most 5, not 6'),
        (Share, 1.0, 'at least 0 and below 1, not 1.0'),
        (Share, NAN, 'at least 0 and below 1, not nan'),
        (Share, 1 - 1e-9, 'at least 0 and below 1'),  # rounds to 1 in float32
        (Positive, 1e-50, 'above 0, not 1e-50'),
        (Positive, 1e39, 'above 0 and finite in float32'),
        (Positive, INF, 'above 0 and finite'),
        (Positive, 10**20, f'above 0 and within ±{2**31 - 1}'),
        (Annotated[str, Choices('a', 'b')], 'c', "one of a, b, not 'c'"),
        (bool, 1, 'of type bool, not 1'),
        # Other annotations, such as a line of help, are ignored.
        (Annotated[str | None, 'help'], 5, 'of type str or NoneType, not 5'),
    ],
)
def test_values_beyond_their_limits_are_rejected(annotation, value, message):
    with pytest.raises(ValueError, match=f'^size must be {message}'):
        validation.check('size', annotation, value)


@pytest.mark.parametrize(
    ('make', 'field'),
    [
        (lambda: Local(window=0), 'Local.window'),
        (lambda: Local().clone(window=-1), 'Local.window'),
        (lambda: Dropout(1.0), 'Dropout.rate'),
        (lambda: Cosine(10, INF), 'Cosine.peak'),
    ],
)
def test_classes_check_their_attributes(make, field):
    with pytest.raises(ValueError, match=f'^{field} must be '):
        make()


def lacks_limit(kind):
    """Returns whether an annotation takes numbers or words without restricting them."""
    if validation.limit_of(kind) is not None:
        return False
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    kinds = validation.types_of(kind)
    return bool({int, float, str} & set(kinds))


@pytest.mark.parametrize('kind', sorted(variants.FOLDERS))
def test_numbers_and_words_among_a_variants_arguments_have_limits(kind):
    for name in variants.names(kind):
        component = variants.FOLDERS[kind].find(name)
        limits = []
        for argument, annotation in component.parameters.items():
            limits.append(validation.limit_of(annotation))
            where = f'{name}({argument})'
            assert annotation is not inspect.Parameter.empty, f'{where} has no type'
            assert not isinstance(annotation, str), f'{where}: a type, not its name'
            has_limit = argument == 'dtype' or not lacks_limit(annotation)
            assert has_limit, f'{where}: give it a Range or Choices'
        is_checked = issubclass(component.cls, validation.Checked)
        assert is_checked or not any(limits), f'{name}: nothing checks its limits'


@pytest.mark.parametrize('kind', sorted(set(variants.FOLDERS) - {'architecture'}))
def test_components_need_no_arguments_that_the_model_sets(kind):
    for name in variants.names(kind):
        cls = variants.FOLDERS[kind].find(name).cls
        parameters = inspect.signature(cls).parameters
        for argument in getattr(cls, 'set_by_model', ()):
            assert parameters[argument].default is not inspect.Parameter.empty
            assert argument not in variants.arguments(kind, name)


@pytest.mark.parametrize(
    'folder', [variants.SCHEDULES, variants.STRATEGIES, variants.PROCESSORS], ids=str
)
def test_numbers_of_schedules_strategies_and_processors_have_limits(folder):
    for name in folder.names():
        for argument, kind in folder.find(name).parameters.items():
            # A utility is a function, which is checked elsewhere.
            assert argument == 'utility' or not lacks_limit(kind), (name, argument)
