"""The paper's base model (Table 3, first row): what a `model` config is where it says nothing."""

import difflib
from collections.abc import Mapping
from typing import Any

# `configs/wmt_base.py` says what each field is, and what it means that one is None.
MODEL: Mapping[str, Any] = dict(
    d_model=512,
    num_layers=6,
    num_heads=8,
    d_k=None,
    d_v=None,
    d_ff=2048,
    dropout=0.1,
    architecture='encoder_decoder',
    attention='softmax',
    decoder_attention=None,
    cross_attention=None,
    projections=True,
    num_kv_heads=None,
    positions='sinusoidal',
    decoder_positions=None,
    cross_positions='none',
    norm='layer',
    decoder_norm=None,
    residual='post_norm',
    decoder_residual=None,
    feed_forward='relu',
    decoder_feed_forward=None,
    parallel=False,
    dropout_kind='elements',
    head_dropout=0.0,
    layer_drop=0.0,
    init=None,
    tie='three',
    scale_embeddings=True,
    dtype='float32',
)


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """A `model` config with the fields that it leaves out.

    Raises:
      ValueError: there is no field of a name that it gives.
    """
    for name in config:
        if name not in MODEL:
            near = difflib.get_close_matches(name, MODEL, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise ValueError(f'a model has no field {name!r}{hint}')
    return {**MODEL, **config}
