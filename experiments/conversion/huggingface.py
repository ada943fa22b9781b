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
from flaxformer_lite.families.base import Described, Family
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
    tokenizer_json.write(trained.tokenizer, folder)
    documents = {
        'config.json': _config(config, trained),
        'generation_config.json': _generation(trained),
    }
    save(folder, documents, arrays)


def save(
    folder: Path, documents: Mapping[str, Any], arrays: Mapping[str, jax.Array]
) -> None:
    """Writes the JSON files of a checkpoint, by name, and its arrays."""
    from safetensors.numpy import save_file

    for name, value in documents.items():
        storage.write_json(folder / name, value)
    contiguous = {
        name: np.ascontiguousarray(x) for name, x in jax.device_get(arrays).items()
    }
    metadata = {'format': 'pt'}
    save_file(contiguous, folder / 'model.safetensors', metadata=metadata)


def find_family(trained: Trained) -> FamilyModel:
    """The model as the first family has it that can.

    Raises:
      UserError: none can; names a field of each that stands in the way.
    """
    own = rewrite.plain(trained.model, trained.config.model, trained.variables)
    refused = []
    for name in spec.available(_FAMILIES):
        family: Any = spec.find(_FAMILIES, name)
        try:
            return _in_words_of(family, own, trained.model)
        except ValueError as error:
            refused.append(str(error))
    # Of several families without the same field, one says so.
    by_field = {}
    for reason in refused:
        if 'cannot have model.' in reason:
            by_field.setdefault(reason.split('=')[0].split()[-1], reason)
    reasons = list(by_field.values()) or refused
    raise UserError(f'--to=huggingface: {"; ".join(reasons)}')


def _in_words_of(family: type[Family], own: Expressed, model: Model) -> FamilyModel:
    """A model as a family has it; raises ValueError where it cannot."""
    given = rewrite.towards(own, family.fields)
    # Names of arrays decide what a config means: T5's own output matrix.
    names = [family.arrays.get(name, name) for name in given.variables['params']]
    described = Described(given.config, model.vocab_size, model.special_tokens)
    described = family.read(family.write(described, names), names)
    given = given._replace(config=described.config)
    given = rewrite.with_biases(given, described.vocab_size)
    return FamilyModel(family, described, given.variables)


def _check_logits(trained: Trained, found: FamilyModel) -> None:
    """Refuses a family whose logits are others, on sentences that are drawn.

    Layer normalisation has another ε in PyTorch, which is nothing beside a variance of
    one, and something beside a small one.
    """
    source, inputs = draw_tokens(trained, (4, 16)), draw_tokens(trained, (4, 15))
    theirs = build.model(*found.described)
    ours = _logits(trained.model, trained.variables, source, inputs)
    other = _logits(theirs, found.variables, source, inputs)
    difference = float(abs(ours - other).max())
    if difference <= max(_TOLERANCE, _SHARE * float(abs(ours).max())):
        return
    field = 'norm'
    if trained.model.dense.kernel_init.logit_scale != 1:
        field = 'init'  # has a factor of the logits
    value = getattr(trained.config.model, field)
    raise UserError(
        f'--to=huggingface: {found.family.__name__} cannot have model.{field}={value}: '
        f'the logits of this model differ by {difference:.1g} there'
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
