"""What families have in common: two tables, each read in both directions.

One says which field of a `model` config each field of the family's own `config.json`
is, and one where each of its arrays goes. A family states the tables; what reads them
is here and in `pretrained/`.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from flaxformer_lite import ranges
from flaxformer_lite.config import spec, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.families import _entries
from flaxformer_lite.families._entries import Entry, Theirs
from flaxformer_lite.ranges import shown
from flaxformer_lite.special_tokens import SpecialTokens


class Described(NamedTuple):
    """What a family's config says, in our terms.

    Attributes:
      config: the `model` config.
      vocab_size: of source and target.
      special_tokens: which tokens are no text.
    """

    config: ModelConfig
    vocab_size: int
    special_tokens: SpecialTokens


class Family:
    """A published architecture, as its tables say. A file of `families/` defines one.

    Attributes:
      model_types: the words of `model_type` in config.json.
      architecture: the class of Transformers that computes it.
      fields: field of ours → where it stands in theirs, or the value that it always
        has.
      defaults: what a field of theirs is where config.json has none.
      expected: fields of theirs that, where they are there, have this value only.
      arrays: our parameter's path → the name of their array. `{stack}` is encoder or
        decoder, `{layer}` a layer's number; an entry for a module stands for its
        arrays.
      aliases: names under which files may hold an array once more, by our path.
      computed: arrays that files may hold and that nothing here reads.
      zeros: paths of our parameters that are 0 where files have no array.
      rotates_halves: whether rotary positions turn the features i and i + d_k / 2, and
        not 2i and 2i + 1: then the columns of queries and keys stand in another order.
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

    @classmethod
    def arrays_of(cls, config: ModelConfig) -> Mapping[str, str]:
        """The table `arrays` for a model; some names go by its parts."""
        return cls.arrays

    @classmethod
    def read(cls, theirs: Theirs, names: Collection[str]) -> Described:
        """What their config says.

        Args:
          theirs: the config.
          names: of the arrays that come with it.

        Raises:
          ValueError: a field is not there, or has a value that is not computed here;
            names the field.
        """
        given = _Given({**cls.defaults, **theirs})
        for name, value in cls.expected.items():
            if name in theirs and theirs[name] != value:
                raise ValueError(
                    f'{name}={shown(theirs[name])}: of {theirs.get("model_type")} '
                    f'only {name}={value!r} is computed here'
                )
        fields = {
            ours: entry.read(given) if isinstance(entry, Entry) else entry
            for ours, entry in cls.fields.items()
        }
        tokens = SpecialTokens(
            padding=given['pad_token_id'],
            start=given['decoder_start_token_id'],
            end=_end_token(given['eos_token_id']),
        )
        ranges.check('vocab_size', ranges.Size, given['vocab_size'])
        return Described(ModelConfig.of(fields), given['vocab_size'], tokens)

    @classmethod
    def write(cls, described: Described, names: Collection[str]) -> dict[str, Any]:
        """Their config, of what is described.

        Args:
          described: what `read` gives.
          names: of the arrays that go with it.

        Raises:
          ValueError: a field of the `model` config that the family cannot have.
        """
        config = described.config
        tokens = described.special_tokens
        values = _values(config)
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
            'decoder_start_token_id': tokens.start,
            'eos_token_id': tokens.end,
        }
        try:
            again = _values(cls.read(theirs, names).config)
        except ValueError as error:
            raise ValueError(
                f'{cls.__name__} cannot have this model: {error}'
            ) from None
        for name, value in again.items():
            if value != values[name] and name not in _NOT_OF_A_CHECKPOINT:
                raise ValueError(
                    f'{cls.__name__} cannot have model.{name}={shown(values[name])}: '
                    f'there it is {shown(value)}'
                )
        return theirs


def in_layers(
    theirs: str, names: Mapping[str, str], stack: str = '{stack}'
) -> dict[str, str]:
    """Entries of a table `arrays` for what each layer of a stack has.

    Args:
      theirs: what the names of a layer's arrays begin with, with `{stack}` and
        `{layer}`.
      names: path of ours in a layer → what follows in theirs.
      stack: where only one has it, which; else it is both.
    """
    theirs = theirs.replace('{stack}', stack)
    return {
        f'{stack}/layer_{{layer}}/{ours}': theirs + name for ours, name in names.items()
    }


# They change no result but for rounding, or only what parameters are at first.
_NOT_OF_A_CHECKPOINT = ('dtype', 'init', 'scan_layers')


class _Given(dict[str, Any]):
    """Their config; what is not there is refused by name."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f'there is no {name}')


def _end_token(given: Any) -> Any:
    """The end token, of a config that may have a list of them."""
    if not isinstance(given, list):
        return given
    if len(given) != 1:
        raise ValueError(
            f'eos_token_id={shown(given)}: decoding ends at one token here, so leave '
            'the one of your texts, in config.json and in generation_config.json'
        )
    return given[0]


def _values(config: ModelConfig) -> dict[str, Any]:
    """Each field's value, with what an empty one stands for, and specs in one form."""
    values = {}
    for field in dataclasses.fields(config):
        role, _, plain = field.name.partition('_')
        value = getattr(config, field.name)
        if value is None and role in ('decoder', 'cross'):
            value = config.value(plain, role)
        values[field.name] = value
    for role, sizes in (
        ('', config.sizes('encoder')),
        ('decoder_', config.sizes('decoder')),
        ('cross_', config.cross_sizes()),
    ):
        for name in ('num_heads', 'num_kv_heads', 'd_k', 'd_v'):
            values[role + name] = getattr(sizes, name)
    for name in variants.fields():
        if values[name] is not None:
            stack, _, _ = name.partition('_')
            of_decoder = stack in ('decoder', 'cross')
            sizes = config.sizes('decoder' if of_decoder else 'encoder')
            values[name] = _in_one_form(values[name], sizes.num_layers)
    return values


def _in_one_form(text: str, num_layers: int) -> str:
    """A spec or a pattern as the shortest pattern over so many layers."""
    texts = [_entries.written(*spec.parse(entry)) for entry in spec.entries(text)]
    return _entries.pattern([texts[i % len(texts)] for i in range(num_layers)])
