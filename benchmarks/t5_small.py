"""T5-small's shape with random weights, written by Transformers: for `families`.

    python -m benchmarks.t5_small FOLDER

Writes the checkpoint, a batch, and what Transformers computes of it; stops unless it is
the same here.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

SENTENCES, LENGTH = 8, 64  # of which source and target have a half to the whole
CHECKPOINT, BATCH, EXPECTED = 'checkpoint', 'batch.npz', 'expected.npz'
TOLERANCE = 1e-5  # of the largest logit
IGNORED = -100  # Transformers' label of padding


def main() -> None:
    folder = Path(sys.argv[1])
    write(folder)
    compare(folder)


def write(folder: Path) -> None:
    """T5-small with random weights, a batch, and what Transformers computes of it."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(decoder_start_token_id=0)  # all else is T5-small's
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(folder / CHECKPOINT)
    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(2, config.vocab_size, (SENTENCES, LENGTH), np.int32)
        for name in ('source', 'labels')
    }
    for tokens in batch.values():
        for row, length in zip(
            tokens, np.linspace(LENGTH // 2, LENGTH, SENTENCES, dtype=int), strict=True
        ):
            row[length - 1] = 1
            row[length:] = 0
    np.savez(folder / BATCH, **batch)
    given = as_tensors(batch)
    with torch.inference_mode():
        out = model(**given)
    np.savez(
        folder / EXPECTED,
        hidden=out.encoder_last_hidden_state,
        logits=out.logits,
        loss=out.loss,
    )


def as_tensors(batch: Any) -> dict[str, Any]:
    """A batch as a model of Transformers takes it."""
    import torch

    source, labels = (torch.from_numpy(batch[k]).long() for k in ('source', 'labels'))
    return dict(
        input_ids=source,
        attention_mask=source != 0,
        labels=labels.masked_fill(labels == 0, IGNORED),
    )


def compare(folder: Path) -> None:
    """Stops unless the encoder and the logits are those of Transformers."""
    import jax

    import flaxformer_lite

    model, variables = flaxformer_lite.from_pretrained(folder / CHECKPOINT)
    given = np.load(folder / BATCH)
    batch = flaxformer_lite.make_batch(given['source'], given['labels'], bos=0)
    found = {
        'hidden': jax.jit(encode, static_argnums=0)(model, variables, given['source']),
        'logits': jax.jit(model.apply)(variables, batch['source'], batch['inputs']),
    }
    expected = np.load(folder / EXPECTED)
    for name, real in (('hidden', given['source']), ('logits', given['labels'])):
        theirs = expected[name][real != 0]
        difference = np.abs(found[name][real != 0] - theirs).max()
        largest = np.abs(theirs).max()
        print(f'{name}: {difference:.1e} of {largest:.3g}', file=sys.stderr)
        if not difference < TOLERANCE * largest:
            raise SystemExit(f'{name} differ by {difference} of {largest}')


def encode(model: Any, variables: Any, source_BS: Any) -> Any:
    """The encoder alone; `prefill` also projects the decoder's keys and values."""
    from flaxformer_lite.masks import AttentionContext, TokenBatch

    def of_tokens(model, tokens_BS):
        source = TokenBatch.from_tokens(tokens_BS, model.special_tokens.padding)
        context = AttentionContext(
            positions_BT=source.positions_BT,
            mask_BHTS=source.segment_mask(source),
            valid_BT=source.valid_BT,
        )
        return model.encoder(model.embed(model.source_VD, tokens_BS), context)[0]

    return model.apply(variables, source_BS, method=of_tokens)


if __name__ == '__main__':
    main()
