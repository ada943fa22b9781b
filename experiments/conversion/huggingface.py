"""A folder that Transformers opens: config, weights and tokenizer of a family.

The family is chosen by its tables (`flaxformer_lite/families`), read in the direction
from us to them, after the model is put in the family's words (`rewrite`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import storage
from experiments.conversion import rewrite, tokenizer_json
from experiments.conversion.rewrite import Expressed
from experiments.conversion.trained import Trained, draw_tokens
from experiments.errors import UserError, user_errors
from flaxformer_lite.config import build, spec
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.families._entries import Choice, Spec
from flaxformer_lite.families.base import Described, Entry, Family
from flaxformer_lite.models.base import Model
from flaxformer_lite.pretrained import load

_FAMILIES = 'flaxformer_lite.families'
# By how much logits may differ, by a family's ε, or by which share of the largest: of a
# trained pre-norm run 6e-5 was measured, and all of 500 translations were the same.
_TOLERANCE, _SHARE = 1e-4, 1e-4
# Tokens that Transformers may generate, if nobody says how many; at least.
_GENERATED = 512


class FamilyModel(NamedTuple):
    """A model as a family has it.

    Attributes:
      family: which.
      described: its config, vocabulary and special tokens, as `family.read` gives them.
      variables: with separate layers.
    """

    family: type[Family]
    described: Described
    variables: Any


def write(trained: Trained, folder: Path) -> None:
    """Writes a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` open.

    Raises:
      UserError: no family computes this model; names a field.
    """
    found = find_family(trained)
    _check_logits(trained, found)
    with user_errors('--to=huggingface: '):
        config, arrays = load.to_pretrained(
            found.described, found.variables, found.family.model_types[0]
        )
    documents = {
        'config.json': _config(config, trained),
        'generation_config.json': _generation(trained),
        **tokenizer_json.files_of(trained.tokenizer),
    }
    save(folder, documents, arrays)


def save(
    folder: Path, documents: Mapping[str, Any], arrays: Mapping[str, jax.Array]
) -> None:
    """Writes the JSON files of a checkpoint, by name, and its arrays."""
    from safetensors.numpy import save_file

    for name, value in documents.items():
        (folder / name).write_text(storage.json_text(value), encoding='utf-8')
    contiguous = {
        name: np.ascontiguousarray(x) for name, x in jax.device_get(arrays).items()
    }
    metadata = {'format': 'pt'}
    save_file(contiguous, folder / 'model.safetensors', metadata=metadata)


def find_family(trained: Trained) -> FamilyModel:
    """The model as the family has it that can; of several, the nearest.

    Raises:
      UserError: none can; says what the nearest does not know, and names the field.
    """
    own = rewrite.plain(trained.model, trained.config.model, trained.variables)
    refused = []
    for family in _by_nearness(own):
        model = rewrite.towards(own, family.fields)
        described = Described(
            model.config, trained.model.vocab_size, trained.model.special_tokens
        )
        try:
            theirs = family.write(described, _names(family, model))
            described = family.read(theirs, _names(family, model))
        except ValueError as error:
            refused.append(error)
            continue
        model = Expressed(described.config, model.variables)
        model = rewrite.with_biases(model, described.vocab_size)
        return FamilyModel(family, described, model.variables)
    family = _by_nearness(own)[0]
    unknown = _unknown(own, family)
    if unknown:
        raise UserError(f'--to=huggingface: {family.__name__} cannot have {unknown[0]}')
    raise UserError(f'--to=huggingface: {refused[0]}')


def _by_nearness(own: Expressed) -> list[type[Family]]:
    """All families, those first whose tables have the most of the config's values."""
    families = [spec.find(_FAMILIES, name) for name in spec.available(_FAMILIES)]
    return sorted(families, key=lambda family: len(_unknown(own, family)))


def _unknown(own: Expressed, family: type[Family]) -> list[str]:
    """What a family's tables do not have, in words."""
    config = rewrite.towards(own, family.fields).config
    words = []
    for field, entry in family.fields.items():
        value = getattr(config, field)
        known = _known(entry)
        compared = value
        if isinstance(entry, Spec):
            compared = _name(config, field)
        if known and compared not in known:
            there = ' or '.join(map(str, known))
            words.append(f'model.{field}={value}: there it is {there}')
    return words


def _name(config: ModelConfig, field: str) -> str:
    """The variant that a field names, or the plain field where it is empty."""
    role, _, plain = field.partition('_')
    if role in ('decoder', 'cross'):
        return spec.parse(config.value(plain, role))[0]
    return spec.parse(getattr(config, field))[0]


def _known(entry: Any) -> list[Any]:
    """The values that a table's entry has; of specs, the names; nothing for any."""
    if isinstance(entry, Spec):
        inner = entry.entry
        texts = [inner] if isinstance(inner, str) else inner.values.values()
        return sorted({spec.parse(text)[0] for text in texts})
    if isinstance(entry, Choice):
        return list(entry.values.values())
    return [] if isinstance(entry, Entry) else [entry]


def _names(family: type[Family], model: Expressed) -> list[str]:
    """Names of arrays that decide what a config means: T5's own output matrix."""
    return [family.arrays.get(name, name) for name in model.variables['params']]


def _check_logits(trained: Trained, found: FamilyModel) -> None:
    """Refuses a family whose logits are others, on sentences that are drawn.

    Layer normalisation has another ε in PyTorch, which is nothing beside a variance of
    one, and something beside a small one.
    """
    if trained.model.dense.kernel_init.logit_scale != 1:
        raise UserError(
            f'--to=huggingface: {found.family.__name__} has no factor of the logits, '
            f'as model.init={trained.config.model.init} gives them'
        )
    source, inputs = draw_tokens(trained, (4, 16)), draw_tokens(trained, (4, 15))
    theirs = build.model(*found.described)
    ours = _logits(trained.model, trained.variables, source, inputs)
    other = _logits(theirs, found.variables, source, inputs)
    difference = float(abs(ours - other).max())
    if not difference <= max(_TOLERANCE, _SHARE * float(abs(ours).max())):
        raise UserError(
            f'--to=huggingface: {found.family.__name__} has '
            f'model.norm={found.described.config.norm} in place of '
            f'model.norm={trained.config.model.norm}, by which the logits of this '
            f'model differ by {difference:.1g}: train with that norm'
        )


def _logits(model: Model, variables: Any, source: Any, inputs: Any) -> np.ndarray:
    return np.asarray(jax.jit(model.apply)(variables, source, inputs))


def _config(theirs: dict[str, Any], trained: Trained) -> dict[str, Any]:
    """The family's config.json, with what Transformers reads beside the tables."""
    tokens = trained.model.special_tokens
    config = theirs | {
        'bos_token_id': tokens.start,
        'forced_eos_token_id': tokens.end,
        'dtype': 'float32',
    }
    if trained.model.max_length is None and 'max_position_embeddings' in config:
        # The rows of a table of sinusoids, which have no end here.
        rows = max(config['max_position_embeddings'], _longest(trained))
        config['max_position_embeddings'] = rows
    if 'num_decoder_layers' in config:
        # By this name alone `generate` knows the depth of T5's cache.
        config['decoder_layers'] = config['num_decoder_layers']
    return config


def _longest(trained: Trained) -> int:
    """The most tokens of a translation: of a source as long as one of training."""
    config = trained.config
    longest = config.batch.max_length + config.evaluation.extra_length
    most = max(_GENERATED, longest)
    return min(most, trained.model.max_length or most)


def _generation(trained: Trained) -> dict[str, Any]:
    """How Transformers decodes: never padding or start, and the last token ends."""
    tokens = trained.model.special_tokens
    return {
        'pad_token_id': tokens.padding,
        'eos_token_id': tokens.end,
        'bos_token_id': tokens.start,
        'decoder_start_token_id': tokens.start,
        'forced_eos_token_id': tokens.end,
        'suppress_tokens': sorted({tokens.padding, tokens.start} - {tokens.end}),
        'max_length': _longest(trained),
        'num_beams': 1,
        'do_sample': False,
    }
