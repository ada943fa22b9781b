"""Models of T5-small's size in each family, written by Transformers, for `families`.

    python -m benchmarks.family_models FAMILY FOLDER

Writes a checkpoint with random weights, a batch, and its results. Exits with an error
unless the results here are the same.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

SENTENCES, LENGTH = 8, 64  # lengths go from LENGTH / 2 to LENGTH
CHECKPOINT, BATCH, EXPECTED = 'checkpoint', 'batch.npz', 'expected.npz'
TOLERANCE = 1e-5  # relative to the largest logit
IGNORED = -100  # label of padding in Transformers

VOCABULARY = 32_128
T5_LIKE = dict(
    vocab_size=VOCABULARY,
    d_model=512,
    d_kv=64,
    d_ff=2048,
    num_layers=6,
    num_decoder_layers=6,
    num_heads=8,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
)
GATED = T5_LIKE | dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False)
BART_LIKE = dict(
    vocab_size=VOCABULARY,
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
    max_position_embeddings=512,
    dropout=0.1,
    bos_token_id=0,
    pad_token_id=1,
    eos_token_id=2,
    # Not the end token: untrained tied embeddings repeat their input, and would end.
    decoder_start_token_id=3,
    forced_eos_token_id=2,
)
MARIAN = BART_LIKE | dict(
    bos_token_id=None,
    pad_token_id=VOCABULARY - 1,
    eos_token_id=0,
    decoder_start_token_id=VOCABULARY - 1,
    forced_eos_token_id=0,
    activation_function='swish',
)
PEGASUS = BART_LIKE | dict(
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
    forced_eos_token_id=1,
)
GEMMA_STACK = dict(
    vocab_size=VOCABULARY,
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    intermediate_size=2048,
    query_pre_attn_scalar=64,
    dropout_rate=0.1,
)
T5_GEMMA = dict(
    encoder=GEMMA_STACK,
    decoder=GEMMA_STACK,
    vocab_size=VOCABULARY,
    dropout_rate=0.1,
    decoder_start_token_id=2,
)
# Family → class in Transformers, and its config.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    't5': ('T5ForConditionalGeneration', T5_LIKE),
    't5_v1_1': ('T5ForConditionalGeneration', GATED),
    'mt5': ('MT5ForConditionalGeneration', GATED),
    'umt5': ('UMT5ForConditionalGeneration', GATED),
    'bart': ('BartForConditionalGeneration', BART_LIKE),
    'mbart': ('MBartForConditionalGeneration', BART_LIKE),
    'm2m100': ('M2M100ForConditionalGeneration', BART_LIKE),
    'marian': ('MarianMTModel', MARIAN),
    'pegasus': ('PegasusForConditionalGeneration', PEGASUS),
    't5gemma': ('T5GemmaForConditionalGeneration', T5_GEMMA),
}


def main() -> None:
    family, folder = sys.argv[1], Path(sys.argv[2])
    write(family, folder)
    compare(folder)


def write(family: str, folder: Path) -> None:
    import torch
    import transformers

    name, settings = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**settings)).eval()
    model.save_pretrained(folder / CHECKPOINT)
    batch = random_batch(model.config)
    np.savez(folder / BATCH, **batch)
    with torch.inference_mode():
        out = model(**as_tensors(batch))
    np.savez(
        folder / EXPECTED,
        hidden=out.encoder_last_hidden_state,
        logits=out.logits,
    )


def random_batch(config: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = np.linspace(LENGTH // 2, LENGTH, SENTENCES, dtype=int)
    batch = {}
    for name in ('source', 'labels'):
        tokens = rng.integers(4, VOCABULARY - 1, (SENTENCES, LENGTH), np.int32)
        for row, length in zip(tokens, lengths, strict=True):
            row[length - 1] = config.eos_token_id
            row[length:] = config.pad_token_id
        batch[name] = tokens
    return batch | {
        'padding': np.array(config.pad_token_id),
        'start': np.array(config.decoder_start_token_id),
    }


def as_tensors(batch: Any) -> dict[str, Any]:
    import torch

    source, labels = (torch.from_numpy(batch[k]).long() for k in ('source', 'labels'))
    padding, start = int(batch['padding']), int(batch['start'])
    # Given, since mBART would start each target with its last token.
    inputs = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=start)
    return dict(
        input_ids=source,
        attention_mask=source != padding,
        decoder_input_ids=inputs,
        labels=labels.masked_fill(labels == padding, IGNORED),
    )


def as_trained_on(batch: Any) -> Any:
    import flaxformer_lite

    tokens = {'bos': int(batch['start']), 'padding': int(batch['padding'])}
    return flaxformer_lite.make_batch(batch['source'], batch['labels'], **tokens)


def compare(folder: Path) -> None:
    import jax

    import flaxformer_checkpoints

    model, variables = flaxformer_checkpoints.from_pretrained(folder / CHECKPOINT)
    given = np.load(folder / BATCH)
    batch = as_trained_on(given)
    found = {
        'hidden': jax.jit(encode, static_argnums=0)(model, variables, given['source']),
        'logits': jax.jit(model.apply)(variables, batch['source'], batch['inputs']),
    }
    expected = np.load(folder / EXPECTED)
    for name, real in (('hidden', given['source']), ('logits', given['labels'])):
        is_token = real != given['padding']
        theirs = expected[name][is_token]
        difference = np.abs(found[name][is_token] - theirs).max()
        largest = np.abs(theirs).max()
        print(f'{name}: {difference:.1e} of {largest:.3g}', file=sys.stderr)
        if not difference < TOLERANCE * largest:
            raise SystemExit(f'{name} differ by {difference} of {largest}')


def encode(model: Any, variables: Any, source_BS: Any) -> Any:
    """Runs only the encoder, unlike `prefill`."""
    from flaxformer_lite.masks import AttentionContext, TokenBatch

    def of_tokens(model, tokens_BS):
        source = TokenBatch.from_tokens(tokens_BS, model.special_tokens.padding)
        context = AttentionContext(
            positions_BT=source.positions_BT,
            mask_BHTS=source.segment_mask(source),
            valid_BT=source.valid_BT,
        )
        return model.encoder_stack(model.embed(model.source_VD, tokens_BS), context)[0]

    return model.apply(variables, source_BS, method=of_tokens)


if __name__ == '__main__':
    main()
