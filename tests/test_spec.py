"""Spec strings: what they may say, and how they find the class that they name."""

import textwrap

import pytest

from flaxformer_lite.config import spec

FILES = {
    '__init__.py': '',
    'base.py': 'class Base:\n    pass\n',
    '_hidden.py': '',
    'local.py': """
        import dataclasses
        from shop.base import Base

        class _Private:
            pass

        @dataclasses.dataclass
        class Local(Base):
            window: int
            dilation: int = 1

            def __post_init__(self):
                if self.window < 1:
                    raise ValueError(f'window must be at least 1, not {self.window}')
    """,
}


@pytest.fixture(scope='module', autouse=True)
def shop(tmp_path_factory):
    """A package whose variants no list names."""
    folder = tmp_path_factory.mktemp('package') / 'shop'
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder.parent)
        yield folder


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('local', ('local', {})),
        (' local() ', ('local', {})),
        ('local(window=64)', ('local', {'window': 64})),
        ('rotary(max_wavelength=-500.0)', ('rotary', {'max_wavelength': -500.0})),
        (
            'text(path="a b/(c)", pair=("en", "de"), x=None)',
            ('text', {'path': 'a b/(c)', 'pair': ('en', 'de'), 'x': None}),
        ),
    ],
)
def test_parse(text, expected):
    assert spec.parse(text) == expected


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('local', ['local']),
        ('[local]', ['local']),
        (' [local(window=64), local, far] ', ['local(window=64)', 'local', 'far']),
        ('[text(pair=("[a, b]", "c")), x]', ["text(pair=('[a, b]', 'c'))", 'x']),
    ],
)
def test_the_entries_of_a_pattern_are_specs(text, expected):
    assert spec.entries(text) == expected


@pytest.mark.parametrize('text', ['[]', '[local', '[local][0]', '[local], far'])
def test_what_is_not_a_pattern_is_refused(text):
    with pytest.raises(ValueError, match='is not a pattern over layers: write'):
        spec.entries(text)


@pytest.mark.parametrize(
    'text',
    [
        '',
        'local(',
        'local(64)',
        'local(window=size)',
        'local(window=__import__("os").getcwd())',
        'local(window=1, window=2)',
        'local(**{"window": 1})',
    ],
)
def test_what_is_not_a_spec_is_refused(text):
    with pytest.raises(ValueError, match='is not a spec: write name or name'):
        spec.parse(text)


def test_available_lists_files_but_base_and_hidden_ones():
    assert spec.available('shop') == ['local']


def test_make_makes_the_one_public_class_of_the_file():
    local = spec.make('shop', 'local(window=3)')
    assert (type(local).__name__, local.window, local.dilation) == ('Local', 3, 1)


def test_given_arguments_reach_the_class_beside_those_of_the_spec():
    local = spec.make('shop', 'local(window=3)', dilation=2)
    assert (local.window, local.dilation) == (3, 2)


def test_a_given_argument_is_not_the_specs_to_say():
    message = "unknown argument 'window'; local takes dilation$"
    with pytest.raises(ValueError, match=message):
        spec.make('shop', 'local(window=3)', window=5)


def test_a_given_argument_that_the_class_does_not_take_is_refused():
    with pytest.raises(ValueError, match="'local\\(window=3\\)': .*'unheard_of'"):
        spec.make('shop', 'local(window=3)', unheard_of=1)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('lokal', "'lokal' is not one of local; did you mean 'local'"),
        ('zzz', "'zzz' is not one of local$"),
        ('base', "'base' is not one of local"),
        ('_hidden', "'_hidden' is not one of local"),
        ('local(size=3)', "unknown argument 'size'; local takes window, dilation"),
        ('local', 'window'),
        ('local(window=0)', 'window must be at least 1, not 0'),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_is_there(text, message):
    with pytest.raises(ValueError, match=message):
        spec.make('shop', text)
