"""umT5 (Chung et al. 2023, "UniMax")."""

from flaxformer_checkpoints.families._entries import Spec
from flaxformer_checkpoints.families.base import in_layers
from flaxformer_checkpoints.families.t5 import T5


class Umt5(T5):
    """T5 v1.1 with separate relative biases in each layer."""

    model_types = ('umt5',)
    architecture = 'UMT5ForConditionalGeneration'
    fields = {
        **T5.fields,
        'positions': Spec(
            't5(per_layer=True)',
            buckets='relative_attention_num_buckets',
            max_distance='relative_attention_max_distance',
        ),
    }
    defaults = {**T5.defaults, 'feed_forward_proj': 'gated-gelu'}
    arrays = {
        **T5.arrays,
        **in_layers(
            '{stack}.block.{layer}.layer.0.SelfAttention.',
            {'self_attention/positions/table': 'relative_attention_bias.weight'},
        ),
    }
    computed = ()
