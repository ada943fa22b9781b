"""Base class of families."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from flaxformer_checkpoints.families import _entries
from flaxformer_checkpoints.families._entries import Entry, Theirs
from flaxformer_checkpoints.tokens import published_tokens
from flaxformer_lite import validation
from flaxformer_lite.config import schema, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.config.spec import Component
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.validation import quote


class Described(NamedTuple):
    """A family's config in our terms."""

    config: ModelConfig
    vocab_size: int
    special_tokens: SpecialTokens


class Family:
    """A published architecture, defined by tables; one per file of `families/`.

    Attributes:
      architecture: Name of the class in Transformers.
      fields: Our field → an entry for theirs, or a constant value.
      defaults: Values of fields that config.json omits.
      expected: Their fields → the only supported value, if present.
      arrays: Our parameter's or module's path → the name of theirs. `{stack}` is
        encoder or decoder.
      aliases: Our path → alternative names of the array in files.
      computed: Arrays of files to ignore, because models compute them, such as tables
        of sinusoids. Patterns of names.
      zeros: Paths of our parameters that are 0 if files lack them.
      rotates_halves: Whether rotary positions pair features i and i + d_k / 2. Ours
        pair 2i and 2i + 1, so queries and keys are permuted.
      adapted: The `model_type` of encoder-decoders made from a decoder-only family.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    architecture: ClassVar[str] = ''
    fields: ClassVar[Mapping[str, Any]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    expected: ClassVar[Mapping[str, Any]] = {}
    arrays: ClassVar[Mapping[str, str]] = {}
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    computed: ClassVar[tuple[str, ...]] = ()
    zeros: ClassVar[tuple[str, ...]] = ()
    rotates_halves: ClassVar[bool] = False
    adapted: ClassVar[str] = ''

    @classmethod
    def arrays_of(cls, config: ModelConfig) -> Mapping[str, str]:
        """Returns `arrays` for a model, whose components affect names."""
        return cls.arrays

    @classmethod
    def read(cls, theirs: Theirs, names: Collection[str]) -> Described:
        """Converts their config, given the names of the arrays in the checkpoint.

        Raises:
          ValueError: A field is missing or has an unsupported value; names the field.
        """
        given = _PublishedConfig({**cls.defaults, **theirs})
        for name, value in cls.expected.items():
            if name in theirs and theirs[name] != value:
                raise ValueError(
                    f'{name}={quote(theirs[name])} is not supported for '
                    f'{theirs.get("model_type")}, only {name}={value!r}'
                )
        fields = {
            ours: entry.read(given) if isinstance(entry, Entry) else entry
            for ours, entry in cls.fields.items()
        }
        tokens = published_tokens(
            padding=given['pad_token_id'],
            bos=given['decoder_start_token_id'],
            eos=_eos_token(given['eos_token_id']),
        )
        validation.check('vocab_size', validation.Size, given['vocab_size'])
        return Described(ModelConfig().with_values(fields), given['vocab_size'], tokens)

    @classmethod
    def write(cls, described: Described, names: Collection[str]) -> dict[str, Any]:
        """Inverts `read`.

        Raises:
          ValueError: The family doesn't support a field of the `model` config.
        """
        config = described.config
        tokens = described.special_tokens
        values = field_values(config)
        theirs = dict(cls.defaults)
        for ours, entry in cls.fields.items():
            if isinstance(entry, Entry):
                theirs |= entry.write(values[ours], theirs)
        theirs |= {
            'model_type': cls.model_types[0],
            'architectures': [cls.architecture],
            'is_encoder_decoder': True,
            'vocab_size': described.vocab_size,
            'pad_token_id': tokens.padding,
            'decoder_start_token_id': tokens.bos,
            'eos_token_id': tokens.eos,
        }
        try:
            values_after_reading = field_values(cls.read(theirs, names).config)
        except ValueError as error:
            raise ValueError(
                f'{cls.__name__} does not support this model: {error}'
            ) from None
        for name, value in values_after_reading.items():
            if value != values[name] and name not in RUNTIME_FIELDS:
                raise ValueError(
                    f'{cls.__name__} does not support '
                    f'model.{name}={quote(values[name])}, only {quote(value)}'
                )
        return theirs


def in_layers(
    theirs: str, names: Mapping[str, str], stack: str = '{stack}'
) -> dict[str, str]:
    """Returns entries of `arrays` for the arrays of each layer.

    Args:
      theirs: Prefix of a layer's array names, with `{stack}` and `{layer}`.
      names: Our path within a layer → rest of their name.
      stack: The stack that has these arrays; both by default.

    Examples:
      >>> in_layers('{stack}.layers.{layer}.', {'feed_forward/up': 'fc1'})
      {'{stack}/layer_{layer}/feed_forward/up': '{stack}.layers.{layer}.fc1'}
    """
    theirs = theirs.replace('{stack}', stack)
    return {
        f'{stack}/layer_{{layer}}/{ours}': theirs + name for ours, name in names.items()
    }


# Fields that affect only rounding or initial parameters, so families ignore them.
RUNTIME_FIELDS = ('dtype', 'init', 'scan_layers')


class _PublishedConfig(dict[str, Any]):
    """Their config; a missing field raises ValueError with its name."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f'{name} is missing')


def _eos_token(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    if len(given) != 1:
        raise ValueError(
            f'eos_token_id={quote(given)}: decoding supports a single end token. Keep '
            'one, in config.json and in generation_config.json.'
        )
    return given[0]


def field_values(config: ModelConfig) -> dict[str, Any]:
    """Returns all fields, with inherited values, and specs in one form."""
    values = {}
    for name in schema.fields():
        section, _, plain = name.rpartition('.')
        value = config.get(name)
        if value is None and section:
            value = config.value(plain, section)
        values[name] = value
    for section, sizes in (
        ('', config.sizes('encoder')),
        ('decoder.', config.sizes('decoder')),
        ('cross.', config.cross_sizes()),
    ):
        for name in ('num_heads', 'num_kv_heads', 'd_k', 'd_v'):
            values[section + name] = getattr(sizes, name)
    for name in variants.fields():
        if values[name] is not None:
            sizes = config.sizes('decoder' if '.' in name else 'encoder')
            values[name] = _same_for_all_layers(values[name], sizes.num_layers)
    return values


def _same_for_all_layers(component: Component, num_layers: int) -> str:
    texts = [_entries.written(x.name, x.arguments) for x in component.entries]
    return _entries.pattern([texts[i % len(texts)] for i in range(num_layers)])
