"""Builds a small model around a component."""

from typing import Any

from flaxformer_lite.config import builder, spec, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.config.spec import Spec
from flaxformer_lite.models.base import Model
from flaxformer_lite.testing import rows

# d_k, d_v and d_model / num_heads all differ, so that confusing them fails.
SIZES: dict[str, Any] = dict(
    d_model=12, num_layers=1, num_heads=2, d_k=4, d_v=3, d_ff=16
)


def kind_of(part: Spec) -> str:
    """Returns the `model` config field of a component, by its base class.

    Raises:
      ValueError: No field accepts it, or the name exists in several folders.
    """
    return spec.kind_of(part, variants.FOLDERS)


def model_with(part: Spec, kind: str) -> Model:
    """Returns a small model with a component, with scanned layers if it has any.

    An attention is tested in all roles of an encoder-decoder that it supports, and
    other components in a decoder-only model. A block is tested in two layers.

    Raises:
      ValueError: As `builder.build`.
    """
    fields = {kind: part, 'scan_layers': True}
    cls = variants.folder(kind).find(part).cls
    if kind not in ('attention', 'architecture') or getattr(cls, 'causal_only', False):
        fields['architecture'] = 'decoder_only'
    if kind == 'block':
        fields['num_layers'] = 2
    return small_model(**fields)


def small_model(**fields: Any) -> Model:
    """Returns a model that compiles fast, with fields of a `model` config.

    model = small_model(norm='rms', num_layers=2)
    """
    return builder.build(ModelConfig().with_values(SIZES | fields), rows.VOCAB_SIZE)
