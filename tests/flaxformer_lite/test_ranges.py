"""Tests of ranges."""

import inspect
from typing import Annotated, Any, get_args, get_origin

import pytest

from flaxformer_lite import validation
from flaxformer_lite.attention.local import LocalAttention
from flaxformer_lite.config import build, variants
from flaxformer_lite.init.normal import NormalInit
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.norms.layer import LayerNorm
from flaxformer_lite.training.schedules.cosine import CosineSchedule
from flaxformer_lite.training.schedules.noam import NoamSchedule
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
        (bool, False),
        (Any, [object()]),
    ],
)
def test_what_is_allowed(annotation, value):
    validation.check('size', annotation, value)


@pytest.mark.parametrize(
    ('annotation', 'value', 'message'),
    [
        (Whole, 0, 'size must be at least 1, not 0'),
        (
            Whole,
            10**20,
            f'size must be at least 1 and within ±{2**31 - 1}, not {10**20}',
        ),
        (Whole, 1.5, 'size must be of type int, not 1.5'),
        (Whole, True, 'size must be of type int, not True'),
        (Annotated[int, Range(at_most=5)], 6, 'size must be at most 5, not 6'),
        (Share, 1.0, 'size must be at least 0 and below 1, not 1.0'),
        (Share, NAN, 'size must be at least 0 and below 1, not nan'),
        # The nearest float32 is 1, of which the whole would be dropped.
        (Share, 1 - 1e-9, 'size must be at least 0 and below 1, not 0.999999999'),
        (Positive, 1e-50, 'size must be above 0, not 1e-50'),
        (Positive, 1e39, 'size must be above 0 and finite in float32, not 1e\\+39'),
        (Positive, 10**20, f'size must be above 0 and within ±{2**31 - 1}, not 10'),
        (Annotated[str, Choices('a', 'b')], 'c', "size must be one of a, b, not 'c'"),
        (bool, 1, 'size must be of type bool, not 1'),
        # Beside a note that is no limit, such as a line of help, the type still counts.
        (Annotated[bool, 'help'], 1, 'size must be of type bool, not 1'),
        (Annotated[str | None, 'help'], 5, 'size must be of type str or NoneType, not'),
    ],
)
def test_what_is_refused(annotation, value, message):
    with pytest.raises(ValueError, match=message):
        validation.check('size', annotation, value)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: LocalAttention(window=0), 'window must be at least 1, not 0'),
        (
            lambda: LocalAttention().clone(window=-1),
            'window must be at least 1, not -1',
        ),
        (
            lambda: LayerNorm(epsilon=-1.0),
            'epsilon must be above 0 and at most 1, not -1',
        ),
        (lambda: NormalInit(std=0.0), 'std must be above 0, not 0.0'),
        (lambda: Dropout(1.0), 'rate must be at least 0 and below 1, not 1.0'),
        (lambda: NoamSchedule(512, factor=-1), 'factor must be above 0, not -1'),
        (lambda: CosineSchedule(10, INF), 'peak must be above 0 and finite'),
    ],
)
def test_what_is_made_in_python_is_held_to_the_same(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def lacks_limit(kind):
    """Returns whether an annotation takes numbers or words without restricting them."""
    if validation.limit_of(kind) is not None:
        return False
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    kinds = validation.types_of(kind)
    return bool({int, float, str} & set(kinds))


VARIANTS = [
    (kind, name) for kind in sorted(variants.FOLDERS) for name in variants.names(kind)
]


@pytest.mark.parametrize(('kind', 'name'), VARIANTS)
def test_every_argument_of_a_variant_that_is_a_number_or_a_word_has_a_range(kind, name):
    component = variants.FOLDERS[kind].find(name)
    for argument, annotation in component.parameters.items():
        if argument in variants.BUILD_ARGS.get(kind, ()):
            continue
        assert annotation is not inspect.Parameter.empty, f'{argument} has no type'
        assert not isinstance(annotation, str), f'{argument}: a type, not its name'
        assert not lacks_limit(annotation), f'{argument}: give it a Range or Choices'
    ranged = [
        x for x in component.parameters.values() if validation.limit_of(x) is not None
    ]
    assert issubclass(component.cls, validation.Checked) or not ranged, (
        'nothing checks its ranges'
    )


def test_what_a_model_gives_its_parts_is_written_down(monkeypatch):
    """Checks that `variants.BUILD_ARGS` is exactly what `build` passes to each kind."""
    given_to = {}
    make = variants.make

    def remember(field, text, **given):
        kind = field.rpartition('.')[2]
        given_to.setdefault(kind, set()).add(tuple(given))
        return make(field, text, **given)

    monkeypatch.setattr(variants, 'make', remember)
    build.model({'dense': 'lora'}, 9)
    assert given_to == {kind: {given} for kind, given in variants.BUILD_ARGS.items()}


FOLDERS = (variants.SCHEDULES, variants.STRATEGIES, variants.PROCESSORS)


@pytest.mark.parametrize(
    ('folder', 'name'),
    [(folder, name) for folder in FOLDERS for name in folder.names()],
)
def test_every_number_of_a_schedule_strategy_or_processor_has_a_range(folder, name):
    for argument, kind in folder.find(name).parameters.items():
        # A utility is a function, which has a check of its own.
        assert argument == 'utility' or not lacks_limit(kind), argument
