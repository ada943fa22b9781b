"""Tests of spec strings."""

import copy
import dataclasses
import pickle
import textwrap

import numpy as np
import pytest

from flaxformer_lite.config import spec
from flaxformer_lite.config.spec import Component

SHOP = spec.Folder('shop', 'Base')
FILES = {
    'shop/__init__.py': '',
    'shop/base.py': 'class Base:\n    pass\n',
    'shop/_hidden.py': '',
    'shop/local.py': """
        import dataclasses
        from shop.base import Base

        class _Private:
            pass

        @dataclasses.dataclass
        class Local(Base):
            '''`local(window=64)`, or `local(window=1)`.'''

            window: int
            dilation: int = 1

            def __post_init__(self):
                if self.window < 1:
                    raise ValueError(f'window must be at least 1, not {self.window}')
    """,
    'spare_parts.py': """
        import dataclasses
        from shop.base import Base

        @dataclasses.dataclass
        class Far(Base):
            window: int = 1
            places: object = ()

            class Inner(Base):
                pass
    """,
    'broken_parts.py': 'import nowhere_to_be_found',
}


@pytest.fixture(scope='module', autouse=True)
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp('package')
    (folder / 'shop').mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.parametrize(
    ('text', 'name', 'arguments'),
    [
        ('local', 'local', {}),
        (' local() ', 'local', {}),
        ('spare_parts.Far(window=2)', 'spare_parts.Far', {'window': 2}),
        ('rotary(max_wavelength=-500.0)', 'rotary', {'max_wavelength': -500.0}),
        (
            'text(path="a b/(c)", pair=("en", "de"), x=None)',
            'text',
            {'path': 'a b/(c)', 'pair': ('en', 'de'), 'x': None},
        ),
        (r'text(a="C:\\x \u00e9")', 'text', {'a': 'C:\\x é'}),
    ],
)
def test_spec_is_a_name_with_literal_arguments(text, name, arguments):
    component = Component.of(text)
    assert (component.name, component.arguments) == (name, arguments)
    assert str(component) == text and component.entries == (component,)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('[local]', ['local']),
        (' [local(window=64), local, far] ', ['local(window=64)', 'local', 'far']),
        ('[text(pair=("[a, b]", "c")), x]', ["text(pair=('[a, b]', 'c'))", 'x']),
        ('[]', []),
        ('', []),
    ],
)
def test_list_in_brackets_has_an_entry_for_each_component(text, expected):
    component = Component.of(text)
    assert component.is_list and list(map(str, component.entries)) == expected


@pytest.mark.parametrize(
    'text',
    [
        *('local(', 'local(64)', 'local(window=1, window=2)', 'local(window=1).far'),
        *('local(window=__import__("os").getcwd())', 'local(**{"window": 1})'),
        *('text(path=/tmp/x)', 'lo-cal', '[local].far', '[local', '[local][0]'),
        *('[local], far', '[[local]]'),
    ],
)
def test_malformed_spec_is_rejected(text):
    with pytest.raises(ValueError, match='is not a spec: write name'):
        Component.of(text)


def test_name_with_hyphens_is_rejected_with_that_of_underscores():
    with pytest.raises(ValueError, match=r"is not a spec.*; did you mean 'pre_norm'"):
        Component.of('pre-norm(alpha=1)')


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package that registers a class, a known name and a broken module."""
    (tmp_path / 'mall.py').write_text(
        'from shop.base import Base\n\nclass Remote(Base):\n    pass\n'
    )
    (tmp_path / 'broken_mall.py').write_text('raise OSError("no power")\n')
    info = tmp_path / 'mall-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Name: mall\nVersion: 1.0\n')
    (info / 'entry_points.txt').write_text(
        '[shop]\nremote = mall:Remote\nlocal = mall:Remote\nbroken = broken_mall:X\n'
        'malformed = not a value\nno-name = mall:Remote\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec.entry_points.cache_clear()
    yield
    spec.entry_points.cache_clear()


@pytest.mark.usefixtures('installed')
def test_installed_packages_register_components_by_entry_points():
    assert SHOP.names() == ['broken', 'local', 'malformed', 'remote']
    assert type(SHOP.make('remote')).__module__ == 'mall'
    assert type(SHOP.make('local(window=3)')).__module__ == 'shop.local'
    for name, message in (
        ('broken', "'broken_mall:X' of mall cannot be loaded: OSError: no power$"),
        ('malformed', "'not a value' of mall cannot be loaded: "),
    ):
        with pytest.raises(spec.ModuleError, match=message):
            SHOP.make(name)


def test_component_is_the_only_public_class_of_a_file(tmp_path, monkeypatch):
    assert SHOP.names() == ['local']  # neither the base nor hidden files
    local = SHOP.make('local(window=3)', dilation=2)
    assert (type(local).__name__, local.window, local.dilation) == ('Local', 3, 2)
    # A spec cannot set an argument that the caller gives.
    with pytest.raises(ValueError, match="unknown argument 'window'"):
        SHOP.make('local(window=3)', window=5)
    (tmp_path / 'stall').mkdir()
    for name in ('__init__', 'base', 'twofold'):
        (tmp_path / 'stall' / f'{name}.py').touch()
    two = 'class One:\n    pass\n\nclass Two:\n    pass\n'
    (tmp_path / 'stall' / 'twofold.py').write_text(two)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match='one public class, not One, Two'):
        spec.Folder('stall', 'Base').make('twofold')


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('lokal', "'lokal' is not one of local, .*; did you mean 'local'"),
        ('zzz', "^'zzz' is not one of local"),
        ('base', "'base' is not one of local"),
        ('_hidden', "'_hidden' is not one of local"),
        ('local(size=3)', "unknown argument 'size'; local takes window, dilation"),
        ('local', '^local needs window, such as local\\(window=64\\)$'),
        ('local(window=0)', 'window must be at least 1, not 0'),
        ('nowhere.Far', 'nowhere.Far: module nowhere not found'),
        ('spare_parts.sub.Far', 'module spare_parts.sub not found'),
        ('broken_parts.Far', 'module nowhere_to_be_found not'),
        ('spare_parts.Farr', "has no class Farr; did you mean 'Far'"),
        ('spare_parts.dataclasses', 'has no class dataclasses'),
        ('optax.Schedule', 'optax.Schedule is not a subclass of Base'),
        (5, 'is not a spec'),
        (['local', 'local(window=3)'], 'is not a spec'),
        ([SHOP], 'is not a spec'),
    ],
)
def test_unknown_components_and_arguments_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        SHOP.make(text)


def test_classes_and_objects_are_accepted_like_names():
    from spare_parts import Far

    class Near(Far):
        pass

    names = 'spare_parts.Far(window=3)', Far(window=3)
    assert [SHOP.make(name) for name in names] == [Far(3)] * 2
    assert SHOP.make(Far, window=2) == SHOP.make('spare_parts.Far', window=2) == Far(2)
    assert isinstance(SHOP.make(Near), Near)
    assert SHOP.make(Near(window=5)).window == 5


def test_components_are_equal_if_they_name_the_same():
    from spare_parts import Far

    component = Component.of(' local( window = 3 )', SHOP)
    assert component == Component.of('local(window=3)') != Component.of('local')
    assert len({component, Component.of('local(window=3)'), SHOP.find('local')}) == 2
    assert component.cls is SHOP.find('local').cls and not component.is_list
    assert Component.of(component) is Component.of(component, SHOP) is component
    for same in (copy.deepcopy(component), pickle.loads(pickle.dumps(component))):
        assert same == component and same.make() == component.make()
    of_object = Component.of(type(component.make())(window=np.int32(3)), SHOP)
    assert pickle.loads(pickle.dumps(of_object)).make() == of_object.make()
    of_class = Component.of(Component.of(Far), SHOP)
    assert of_class == Component.of('spare_parts.Far') and of_class.cls is Far
    with pytest.raises(dataclasses.FrozenInstanceError):
        component.name = 'far'


def test_folder_decides_whether_lists_are_allowed():
    both = dataclasses.replace(SHOP, lists=True)
    first, second = Component.of('[ local(window=3),local ]', both).entries
    assert first.arguments == {'window': 3} and second.cls is SHOP.find('local').cls
    for reject in (lambda: Component.of('[local]', SHOP), lambda: both.find('[local]')):
        with pytest.raises(ValueError, match=r"'\[local\]' is a list"):
            reject()
    for empty in ('', '[]'):
        with pytest.raises(ValueError, match='names no component'):
            Component.of(empty, both)
        optional = dataclasses.replace(SHOP, may_be_empty=True)
        found = Component.of(empty, optional)
        assert found.entries == pickle.loads(pickle.dumps(found)).entries == ()


def test_text_of_a_component_restores_it():
    from spare_parts import Far

    class Near(Far):
        pass

    assert spec.text('local(window=3)') == 'local(window=3)'
    assert spec.text(Far) == spec.text(Far()) == 'spare_parts.Far'
    far = Far(window=3, places=('a', 2.5))
    assert spec.text(far) == "spare_parts.Far(window=3, places=('a', 2.5))"
    assert SHOP.make(spec.text(far)) == far
    for unnamed in (Near, Near(window=2), Far.Inner, Far(places=object())):
        with pytest.raises(ValueError, match='cannot be stored as text'):
            spec.text(unnamed)


def test_arguments_of_a_component_are_replaced_or_added():
    from spare_parts import Far

    def replaced(given, **arguments):
        return str(Component.of(given).with_arguments(**arguments))

    assert replaced('cosine(peak=1e-3)', peak=0.5) == 'cosine(peak=0.5)'
    assert replaced('local', window=3, spec='a b') == "local(window=3, spec='a b')"
    assert replaced('softmax') == 'softmax'
    assert replaced(Far(window=3), window=4) == 'spare_parts.Far(window=4)'
    with pytest.raises(ValueError, match='is a list. Give a single component'):
        replaced('[softmax, local]', window=3)
