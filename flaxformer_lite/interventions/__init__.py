"""Named activations, and functions that change them while a model runs.

Names are paths such as 'decoder/layer_1/self_attention/z'. A layer of a stack has:

| name | axes | TransformerLens |
|---|---|---|
| resid_pre | BTD | hook_resid_pre |
| resid_mid | BTD | hook_resid_mid: after self-attention |
| resid_mid_cross | BTD | hook_resid_mid_cross: after cross-attention |
| resid_post | BTD | hook_resid_post |
| attn_out, cross_attn_out, mlp_out | BTD | hook_attn_out, hook_mlp_out |
| self_attention/q, k | BTHK | attn.hook_q, hook_k |
| self_attention/v | BTHU | attn.hook_v |
| self_attention/scores | BHTS | attn.hook_attn_scores, before the mask |
| self_attention/pattern | BHTS | attn.hook_pattern: the weights |
| self_attention/z | BTHU | attn.hook_z: each head before the output projection |
| self_attention/result | BTHD | attn.hook_result: each head's term of the output |
| cross_attention/… | | the same, for cross-attention |
| mlp_pre, mlp_post | BTF | mlp.hook_pre, mlp.hook_post: around the activation |

`encoder/embed` and `decoder/embed` are the inputs of the stacks, `…/ln_final` their
outputs (BTD), and `logits` are the model's (BTV). Modules name them with `taps.tap`.
Components lack activations that they don't compute. `blockwise` and `flash` have no
scores and no pattern, and a mixture has no mlp_pre and mlp_post. The parallel block has
no stream between its sublayers. A recurrent model has only `logits`.

`intervene` applies functions to activations. Ready-made functions are `set_to`, `add`,
`scale`, `mean_ablate` and `from_record`. A function of your own, an `Intervention`,
gets the value and a `Where`. Modules name their activations by `tap`. `as_pytree` makes
`Interventions` an argument of `jax.jit`. `with_separate_layers` gives the layers of a
model that scans or shares them their own names.
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.interventions.actions import add as add
    from flaxformer_lite.interventions.actions import from_record as from_record
    from flaxformer_lite.interventions.actions import mean_ablate as mean_ablate
    from flaxformer_lite.interventions.actions import scale as scale
    from flaxformer_lite.interventions.actions import set_to as set_to
    from flaxformer_lite.interventions.context import as_pytree as as_pytree
    from flaxformer_lite.interventions.context import intervene as intervene
    from flaxformer_lite.interventions.context import (
        with_separate_layers as with_separate_layers,
    )
    from flaxformer_lite.interventions.names import Intervention as Intervention
    from flaxformer_lite.interventions.names import Interventions as Interventions
    from flaxformer_lite.taps import Where as Where
    from flaxformer_lite.taps import tap as tap
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
