"""Writes a folder for Transformers: config, weights and tokenizer of a family.

`rewrite` brings the model into the family's form. The family's tables
(`flaxformer_checkpoints/families`) are then applied in reverse.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece

from experiments import storage
from experiments.data.tokenizers.base import BOS, EOS, PAD, UNK
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError, user_errors
from flaxformer_checkpoints.exports import rewrite
from flaxformer_checkpoints.exports.rewrite import ConvertedModel
from flaxformer_checkpoints.exports.trained import Trained, draw_tokens, logits
from flaxformer_checkpoints.families.base import Described, Family
from flaxformer_checkpoints.loading import load
from flaxformer_checkpoints.tokenizer import (
    CONFIG,
    GENERATION,
    HuggingfaceTokenizer,
)
from flaxformer_lite.config import builder
from flaxformer_lite.models.base import Model

# Maximum difference of logits due to a family's ε: absolute, or relative to the
# largest. A trained pre-norm run had 6e-5, and all of 500 translations were identical.
_TOLERANCE, _SHARE = 1e-4, 1e-4
# Minimum of `max_length`, the number of tokens that Transformers generates by default.
_MIN_MAX_LENGTH = 512
_TOKENIZER = 'tokenizer_config.json'
_SPACE = '▁'
# All whitespace of Python's `str.split`.
_WHITESPACE = r'[\s\x1c-\x1f]+'


class FamilyModel(NamedTuple):
    family: type[Family]
    described: Described
    variables: Any


def write(trained: Trained, folder: Path) -> None:
    """Writes a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` open."""
    tokenizer = _byte_pair_encoding(trained)
    config, arrays = _to_own_family(trained)
    config |= {'bos_token_id': BOS, 'forced_eos_token_id': EOS, 'dtype': 'float32'}
    _write_tokenizer(tokenizer, folder)
    _save(folder, {CONFIG: config, GENERATION: _generation(trained)}, arrays)


def write_published(trained: Trained, folder: Path) -> None:
    """Writes a run with a published tokenizer in the format of its checkpoint.

    If only the tokenizer was published, the model gets the family that computes it.
    """
    tokenizer = trained.tokenizer
    assert isinstance(tokenizer, HuggingfaceTokenizer)
    documents = {}
    for name in (CONFIG, GENERATION, _TOKENIZER):
        file = tokenizer.files.get(name)
        documents[name] = storage.read_json(file) if file else {}
    special = tokenizer.special_tokens
    theirs = documents[CONFIG]
    # A path names the tokenizer of a model that was trained here.
    (entry,) = trained.config.tokenizer.entries
    if 'path' not in entry.arguments:
        model = trained.model
        described = Described(
            trained.config.model, model.vocab_size, model.special_tokens
        )
        with user_errors('--to=huggingface: '):
            config, arrays = load.to_pretrained(
                described,
                trained.variables,
                _exported_family(trained, theirs['model_type']),
            )
        config['bos_token_id'] = theirs.get('bos_token_id')
    else:
        config, arrays = _to_own_family(trained)
        config['bos_token_id'] = special.bos
        # Without a class, Transformers opens the tokenizer of the model's family.
        kind = type(tokenizer.theirs).__name__
        documents[_TOKENIZER].setdefault('tokenizer_class', kind)
        never = {special.padding, special.bos} - {special.eos}
        documents[GENERATION] = {
            'suppress_tokens': sorted(never),
            'max_length': _longest(trained),
        }
    documents[CONFIG] = config | {'dtype': 'float32'}
    documents[GENERATION] |= {
        'pad_token_id': special.padding,
        'eos_token_id': special.eos,
        'decoder_start_token_id': special.bos,
    }
    if tokenizer.forced_first is not None:
        documents[GENERATION]['forced_bos_token_id'] = tokenizer.forced_first
    if tokenizer.like:
        tokenizer.theirs.save_pretrained(folder)
        documents[_TOKENIZER] = storage.read_json(folder / _TOKENIZER)
    else:
        for name, file in tokenizer.files.items():
            shutil.copyfile(file, folder / name)
    if any(tokenizer.default_languages):
        source, target = tokenizer.default_languages
        documents[_TOKENIZER] |= {'src_lang': source, 'tgt_lang': target}
    _save(folder, documents, arrays)


def _exported_family(trained: Trained, model_type: str) -> str:
    adapted = load.family_of(model_type).adapted
    if not adapted or 'encoder' not in trained.model.stacks():
        return model_type
    if not trained.config.model.merged_attention:
        raise UserError(
            f'--to=huggingface: {adapted} does not support '
            'model.merged_attention=False. Convert the original checkpoint with '
            '--to_encoder_decoder=merged, and train that.'
        )
    return adapted


def _save(
    folder: Path, documents: Mapping[str, Any], arrays: Mapping[str, jax.Array]
) -> None:
    from safetensors import SafetensorError
    from safetensors.flax import save_file

    arrays = {**arrays, **tables_of_positions(documents[CONFIG])}
    for name, value in documents.items():
        storage.write_json(folder / name, value)
    file = folder / 'model.safetensors'
    try:
        save_file(arrays, file, metadata={'format': 'pt'})
    except SafetensorError as error:
        raise UserError(f'cannot write {file}: {error}') from None


def tables_of_positions(config: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns the sinusoids that Transformers stores as arrays of such a model."""
    if config['model_type'] not in ('marian', 'pegasus'):
        return {}
    d_model = config['d_model']
    position = np.arange(config['max_position_embeddings'])[:, None]
    angle = position / 10000 ** (np.arange(0, d_model, 2)[None] / d_model)
    table_TD = np.concatenate([np.sin(angle), np.cos(angle)], 1, dtype=np.float32)
    stacks = 'model.encoder', 'model.decoder'
    return {f'{x}.embed_positions.weight': jnp.asarray(table_TD) for x in stacks}


def find_family(trained: Trained) -> FamilyModel:
    """Returns the model in the form of the first family that supports it."""
    own = rewrite.plain(trained.model, trained.config.model, trained.variables)
    reasons = []
    for name in load.FAMILIES.names():
        family = load.FAMILIES.find(name).cls
        architecture = str(own.config.architecture)
        if family.fields.get('architecture', architecture) != architecture:
            continue
        try:
            return _to_family(family, own, trained.model)
        except ValueError as error:
            reasons.append(str(error))
    # Names a field once, even if several families don't support it.
    by_field = {
        reason.split('=')[0].split()[-1]: reason for reason in reversed(reasons)
    }
    raise UserError(f'--to=huggingface: {"; ".join(reversed(by_field.values()))}')


def _to_family(family: type[Family], own: ConvertedModel, model: Model) -> FamilyModel:
    given = rewrite.towards(own, family.fields)
    # The arrays' names affect the meaning of a config, such as T5's output matrix.
    names = [family.arrays.get(name, name) for name in given.variables['params']]
    described = Described(given.config, model.vocab_size, model.special_tokens)
    described = family.read(family.write(described, names), names)
    given = given._replace(config=described.config)
    given = rewrite.with_biases(given, described.vocab_size)
    return FamilyModel(family, described, given.variables)


def _check_logits(trained: Trained, found: FamilyModel) -> None:
    """Raises UserError if a family's logits differ, on random sentences.

    PyTorch's layer normalization has another ε, which matters if variances are small.
    """
    source = draw_tokens(trained.model, 16)
    inputs = draw_tokens(trained.model, 15)
    theirs = builder.build(*found.described)
    ours = logits(trained.model, trained.variables, source, inputs)
    other = logits(theirs, found.variables, source, inputs)
    difference = float(abs(ours - other).max())
    if difference <= max(_TOLERANCE, _SHARE * float(abs(ours).max())):
        return
    config = trained.config.model
    raise UserError(
        f'--to=huggingface: model.norm={config.norm} with model.init={config.init} is '
        f'not supported: the logits of {found.family.__name__} differ by '
        f'{difference:.1g}'
    )


def _to_own_family(trained: Trained) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    found = find_family(trained)
    _check_logits(trained, found)
    with user_errors('--to=huggingface: '):
        config, arrays = load.to_pretrained(
            found.described, found.variables, found.family.model_types[0]
        )
    if trained.model.max_length is None and 'max_position_embeddings' in config:
        # Transformers limits its table of sinusoids; ours has no limit.
        rows = max(config['max_position_embeddings'], _longest(trained))
        config['max_position_embeddings'] = rows
    if 'num_decoder_layers' in config:
        # `generate` reads the depth of T5's cache from this name only.
        config['decoder_layers'] = config['num_decoder_layers']
    return config, arrays


def _longest(trained: Trained) -> int:
    most = max(_MIN_MAX_LENGTH, trained.longest)
    return min(most, trained.model.max_length or most)


def _generation(trained: Trained) -> dict[str, Any]:
    return {
        'pad_token_id': PAD,
        'eos_token_id': EOS,
        'bos_token_id': BOS,
        'decoder_start_token_id': BOS,
        'forced_eos_token_id': EOS,
        'suppress_tokens': [PAD, BOS],
        'max_length': _longest(trained),
        'num_beams': 1,
        'do_sample': False,
    }


def _byte_pair_encoding(trained: Trained) -> SentencePiece:
    found = trained.tokenizer
    if (
        isinstance(found, SentencePiece)
        and found.model_type == 'bpe'
        and not (found.byte_fallback or found.symbols)
    ):
        return found
    raise UserError(
        f'--to=huggingface: tokenizer={trained.config.tokenizer} is not supported. It '
        'must be a sentencepiece of model_type="bpe", without byte_fallback, '
        'user_defined_symbols and sentinels.'
    )


def _write_tokenizer(tokenizer: SentencePiece, folder: Path) -> None:
    # Imported here, since an extra installs it.
    import tokenizers
    from tokenizers import decoders, models, normalizers, processors

    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    pieces = tokenizer.pieces(list(range(tokenizer.vocab_size)))
    scores = {piece: model.get_score(i) for i, piece in enumerate(pieces)}
    special = pieces[: UNK + 1]  # PAD, EOS, BOS and UNK
    for piece in special:
        del scores[piece]
    fast = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=_merges(scores),
            unk_token=pieces[UNK],
            fuse_unk=True,
        )
    )
    # `base.normalize`, then SentencePiece's space symbols.
    steps = [
        normalizers.NFC(),
        normalizers.Replace(_SPACE, '_'),
        normalizers.Replace(tokenizers.Regex(_WHITESPACE), ' '),
        normalizers.Strip(),
        normalizers.Prepend(_SPACE),
        normalizers.Replace(' ', _SPACE),
    ]
    fast.normalizer = normalizers.Sequence(steps)
    end = pieces[EOS]
    fast.post_processor = processors.TemplateProcessing(
        single=f'$A {end}', pair=f'$A {end} $B:1 {end}:1', special_tokens=[(end, EOS)]
    )
    # Tokens to text, without the space before the first word.
    steps = [decoders.Replace(_SPACE, ' '), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens(special)
    # tokenizers' own `save` raises a bare Exception on a full disk.
    storage.write(folder / 'tokenizer.json', fast.to_str(pretty=True))
    settings = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'pad_token': pieces[PAD],
        'eos_token': end,
        'bos_token': pieces[BOS],
        'unk_token': pieces[UNK],
        'clean_up_tokenization_spaces': False,
        # A special token's name in a text is ordinary characters.
        'split_special_tokens': True,
        'model_input_names': ['input_ids', 'attention_mask'],
    }
    storage.write_json(folder / _TOKENIZER, settings)


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((left, right))
    return merges
