"""Makes the checkpoints in `families/`, and what Transformers computes of them.

    python tests/goldens/make_families.py [FAMILY …]

Each folder is what `save_pretrained` of Transformers writes of a small model with
random weights, whose sizes differ wherever the family lets them. Beside it,
`golden.npz` has a batch; the `logits`; the mean `loss` over the labels that are not
padding; its `gradients/…` by their names. `decoded.json` has the tokens of greedy and
beam search. Computed in float64, stored in float32. PyTorch and Transformers are needed
to make them, and not to test with them.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

VOCAB = 17
LIMIT = 9  # tokens of a target
BEAMS = 3
IGNORED = -100
BART = dict(
    vocab_size=VOCAB,
    d_model=8,
    encoder_layers=2,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=4,
    encoder_ffn_dim=10,
    decoder_ffn_dim=6,
    max_position_embeddings=20,
    scale_embedding=True,
    bos_token_id=0,
    pad_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
    forced_eos_token_id=2,
    dropout=0.1,
    attention_dropout=0.05,
    activation_dropout=0.02,
)
T5 = dict(
    vocab_size=VOCAB,
    d_model=8,
    d_kv=3,
    d_ff=10,
    num_layers=2,
    num_decoder_layers=1,
    num_heads=2,
    relative_attention_num_buckets=6,
    relative_attention_max_distance=9,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
    forced_eos_token_id=1,
)
FAMILIES = {
    'bart': ('Bart', BART | dict(activation_function='gelu', forced_bos_token_id=0)),
    'mbart': ('MBart', BART | dict(activation_function='gelu', forced_bos_token_id=5)),
    'm2m100': (
        'M2M100',
        BART | dict(activation_function='relu', forced_bos_token_id=6),
    ),
    'marian': (
        'Marian',
        BART
        | dict(
            activation_function='swish',
            pad_token_id=VOCAB - 1,
            eos_token_id=0,
            bos_token_id=None,
            decoder_start_token_id=VOCAB - 1,
            forced_eos_token_id=0,
        ),
    ),
    'pegasus': (
        'Pegasus',
        BART
        | dict(
            activation_function='relu',
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=1,
        ),
    ),
    't5': ('T5', T5 | dict(feed_forward_proj='relu')),
    't5_untied': (
        'T5',
        T5 | dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False),
    ),
    'mt5': ('MT5', T5 | dict(feed_forward_proj='gated-gelu')),
    'umt5': (
        'UMT5',
        T5 | dict(feed_forward_proj='gated-gelu', num_layers=3, num_decoder_layers=2),
    ),
}
GEMMA = dict(
    vocab_size=VOCAB,
    hidden_size=12,
    query_pre_attn_scalar=5,
    attn_logit_softcapping=1.0,
    final_logit_softcapping=2.0,
)
FAMILIES['t5gemma'] = (
    'T5Gemma',
    dict(
        vocab_size=VOCAB,
        encoder=GEMMA
        | dict(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            intermediate_size=10,
            num_hidden_layers=3,
            layer_types=['sliding_attention', 'full_attention', 'sliding_attention'],
            sliding_window=3,
        ),
        decoder=GEMMA
        | dict(
            hidden_size=8,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=4,
            intermediate_size=6,
            num_hidden_layers=2,
            layer_types=['full_attention', 'sliding_attention'],
            sliding_window=4,
        ),
        decoder_start_token_id=2,
    ),
)
GEMMA_3 = dict(
    vocab_size=VOCAB,
    hidden_size=12,
    query_pre_attn_scalar=5,
    rope_parameters={
        'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
        'full_attention': {
            'rope_type': 'linear',
            'rope_theta': 1000.0,
            'factor': 2.0,
        },
    },
)
FAMILIES['t5gemma2'] = (
    'T5Gemma2',
    dict(
        encoder=dict(
            text_config=GEMMA_3
            | dict(
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=6,
                intermediate_size=10,
                layer_types=['sliding_attention', 'full_attention', 'full_attention'],
                sliding_window=8,
            ),
            vision_config=dict(
                model_type='siglip_vision_model',
                hidden_size=4,
                intermediate_size=2,
                num_hidden_layers=1,
                num_attention_heads=1,
                image_size=2,
                patch_size=1,
            ),
            mm_tokens_per_image=1,
            eoi_token_index=VOCAB,  # in no text
        ),
        decoder=GEMMA_3
        | dict(
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=4,
            intermediate_size=6,
            layer_types=['full_attention', 'sliding_attention'],
            sliding_window=2,
            final_logit_softcapping=2.0,
        ),
        decoder_start_token_id=2,
    ),
)
# The first token of targets, where the family is told it.
FORCED = {'bart': 0, 'mbart': 5, 'm2m100': 6}


class EndAtLimit(transformers.LogitsProcessor):
    """The last token is the end token, whose probability counts as any other's.

    Transformers' own `forced_eos_token_id` gives it for nothing.
    """

    def __init__(self, end: int):
        self.end = end

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < LIMIT:
            return scores
        ends = torch.full_like(scores, -torch.inf)
        ends[:, self.end] = scores[:, self.end]
        return ends


def make(name: str) -> None:
    for seed in itertools.count():
        model = random_model(name, seed)
        greedy, _ = decoded(model.double(), name, 1)
        beam, scores = decoded(model, name, BEAMS)
        # Weights of which decoding says something.
        if len({tuple(row) for row in beam}) > 1 and greedy != beam:
            break
    model = random_model(name, seed)
    folder = Path(__file__).with_name('families') / name
    model.save_pretrained(folder)
    golden = computed(model.double())
    golden = {
        key: x if x.dtype == np.int32 else x.astype(np.float32)
        for key, x in golden.items()
    }
    np.savez_compressed(folder / 'golden.npz', **golden)
    texts = {'greedy': greedy, 'beam': beam, 'beam_scores': scores}
    (folder / 'decoded.json').write_text(json.dumps(texts) + '\n', encoding='utf-8')
    print(f'{name}: seed {seed}, loss {golden["loss"]:.6f}, {texts}')


def random_model(name: str, seed: int):
    kind, settings = FAMILIES[name]
    suffix = 'MTModel' if kind == 'Marian' else 'ForConditionalGeneration'
    config = getattr(transformers, f'{kind}Config')(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, kind + suffix)(config).eval()
    if name == 't5_untied':
        # As its checkpoints have it; Transformers ties what is not in a file.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    randomise(model)
    return model


def randomise(model) -> None:
    """Weights large enough that each of them matters."""
    buffers = [x for n, x in model.named_buffers() if n == 'final_logits_bias']
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue  # sinusoids
            is_gain = 'norm' in name and name.endswith('weight')
            is_embedding = 'embed' in name or 'shared' in name or 'lm_head' in name
            # T5 does not divide its scores, and those of Gemma are capped.
            of_matrices = 0.4 if 'T5' in type(model).__name__ else 0.8
            scale = 0.1 if is_gain else 0.4 if is_embedding else of_matrices
            p.normal_(1.0 if is_gain else 0.0, scale)
        for buffer in buffers:
            buffer.normal_(0.0, 0.4)


def decoded(model, name: str, beams: int) -> tuple[list[list[int]], list[float]]:
    """The tokens before the end token, and the log-probability with it."""
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    start = model.config.decoder_start_token_id
    source = rows(sources(end), pad)
    out = model.generate(
        input_ids=source,
        attention_mask=source != pad,
        max_length=LIMIT + 1,
        do_sample=False,
        num_beams=beams,
        length_penalty=0.0,
        early_stopping=False,
        forced_bos_token_id=FORCED.get(name),
        forced_eos_token_id=None,
        # What is never chosen here.
        bad_words_ids=[[token] for token in {pad, start} - {end}],
        logits_processor=transformers.LogitsProcessorList([EndAtLimit(end)]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    texts = [row[: row.index(end)] for row in out.sequences[:, 1:].tolist()]
    return texts, [] if beams == 1 else out.sequences_scores.tolist()


def computed(model) -> dict[str, np.ndarray]:
    config = model.config
    pad, end = config.pad_token_id, config.eos_token_id
    source = rows(sources(end), pad)
    labels = rows([[8, 9, 3, end], [11, 5, 12, 6, 7, end], [4, end]], pad)
    start = torch.full((3, 1), config.decoder_start_token_id)
    inputs = torch.cat([start, labels[:, :-1]], 1)
    out = model(
        input_ids=source,
        attention_mask=source != pad,
        decoder_input_ids=inputs,
        decoder_attention_mask=torch.cat([start == start, labels[:, :-1] != pad], 1),
        labels=labels.masked_fill(labels == pad, IGNORED),
        use_cache=False,
    )
    out.loss.backward()
    golden = {
        'source': integers(source),
        'inputs': integers(inputs),
        'labels': integers(labels),
        'logits': out.logits.detach().numpy(),
        'loss': out.loss.detach().numpy(),
    }
    for parameter, p in model.named_parameters():
        if p.grad is not None:
            # Files of T5Gemma 2 have no `text_model.`
            in_file = parameter.replace('.text_model.', '.')
            golden[f'gradients/{in_file}'] = p.grad.numpy()
    return golden


def sources(end: int) -> list[list[int]]:
    return [[3, 4, 9, 7, end], [10, 4, end], [8, end]]


def rows(sentences: list[list[int]], pad: int) -> torch.Tensor:
    length = max(map(len, sentences))
    return torch.tensor([row + [pad] * (length - len(row)) for row in sentences])


def integers(x: torch.Tensor) -> np.ndarray:
    return x.numpy().astype(np.int32)


if __name__ == '__main__':
    for chosen in sys.argv[1:] or FAMILIES:
        make(chosen)
