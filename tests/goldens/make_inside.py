"""Records what Transformers computes inside of some checkpoints in `families/`.

    python tests/goldens/make_inside.py

Each `inside.npz` has values for the batch of `golden.npz`, by the names of
`flaxformer_lite.interventions`:

- `lens`: the logits, LBTV, if the stream before each decoder layer replaces the output
  of the last layer, then the model's logits.
- `…/resid_pre`: the stream before each layer, BTD.
- `…_attention/pattern`: the attention weights, BHTS.
- `…_attention/z`, `…_attention/result`: each head's input to the output projection,
  BTHU, and its term of the output, BTHD.

Values are computed in float64 and stored in float32. Only this script needs PyTorch and
Transformers.
"""

from pathlib import Path

import numpy as np
import torch
import transformers

FAMILIES = Path(__file__).with_name('families')
NAMES = 'bart', 't5', 'umt5'
# Names of attentions and of their output projections in Transformers.
OURS = {
    'self_attn.out_proj': 'self_attention',
    'encoder_attn.out_proj': 'cross_attention',
    'layer.0.SelfAttention.o': 'self_attention',
    'layer.1.EncDecAttention.o': 'cross_attention',
}


def make(name: str) -> None:
    folder = FAMILIES / name
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, attn_implementation='eager', dtype=torch.float64
    ).eval()
    with np.load(folder / 'golden.npz') as golden:
        source, inputs, logits = (
            torch.tensor(golden[x]) for x in ('source', 'inputs', 'logits')
        )
    padding = model.config.pad_token_id
    is_token = inputs != padding
    is_token[:, 0] = True
    arguments = dict(
        input_ids=source.long(),
        attention_mask=source != padding,
        decoder_input_ids=inputs.long(),
        decoder_attention_mask=is_token,
        use_cache=False,
    )
    with torch.no_grad():
        found = inside(model, arguments)
    assert abs(found['lens'][-1] - logits)[is_token].max() < 1e-5
    stored = {key: x.numpy().astype(np.float32) for key, x in found.items()}
    np.savez_compressed(folder / 'inside.npz', **stored)
    print(f'{name}: {", ".join(stored)}')


def inside(model, arguments) -> dict[str, torch.Tensor]:
    found = {}
    core = getattr(model, 'model', model)
    stacks = {'encoder': core.encoder, 'decoder': core.decoder}
    hooks = []
    for stack, module in stacks.items():
        for i, layer in enumerate(layers_of(module)):
            for path, ours in OURS.items():
                projection = dict(layer.named_modules()).get(path)
                if projection is not None:
                    name = f'{stack}/layer_{i}/{ours}'
                    heads = heads_of(model, stack)
                    hook = keep_heads(found, name, heads)
                    hooks.append(projection.register_forward_pre_hook(hook))
    out = model(**arguments, output_hidden_states=True, output_attentions=True)
    for hook in hooks:
        hook.remove()
    patterns = {
        'encoder/self': out.encoder_attentions,
        'decoder/self': out.decoder_attentions,
        'decoder/cross': out.cross_attentions,
    }
    for kind, layers in patterns.items():
        stack, attention = kind.split('/')
        for i, pattern in enumerate(layers):
            found[f'{stack}/layer_{i}/{attention}_attention/pattern'] = pattern
    streams = {
        'encoder': out.encoder_hidden_states,
        'decoder': out.decoder_hidden_states,
    }
    for stack, states in streams.items():
        for i, state in enumerate(states[:-1]):
            found[f'{stack}/layer_{i}/resid_pre'] = state
    lens = [
        logits_of(model, arguments, stacks['decoder'], state)
        for state in out.decoder_hidden_states[:-1]
    ]
    return found | {'lens': torch.stack([*lens, out.logits])}


def layers_of(stack):
    return stack.block if hasattr(stack, 'block') else stack.layers


def heads_of(model, stack) -> int:
    config = model.config
    return getattr(config, f'{stack}_attention_heads', config.num_attention_heads)


def keep_heads(found, name: str, heads: int):
    def hook(projection, arguments):
        (x_BTF,) = arguments
        z_BTHU = x_BTF.unflatten(-1, (heads, -1))
        weight_DHU = projection.weight.unflatten(-1, (heads, -1))
        found[f'{name}/z'] = z_BTHU
        found[f'{name}/result'] = torch.einsum('bthu,dhu->bthd', z_BTHU, weight_DHU)

    return hook


def logits_of(model, arguments, decoder, state) -> torch.Tensor:
    """Returns the logits if `state` is the output of the last decoder layer."""

    def replace(layer, given, output):
        return (state, *output[1:]) if isinstance(output, tuple) else state

    hook = layers_of(decoder)[-1].register_forward_hook(replace)
    logits = model(**arguments).logits
    hook.remove()
    return logits


if __name__ == '__main__':
    for chosen in NAMES:
        make(chosen)
