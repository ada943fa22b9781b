"""Creates the checkpoints in `families/` and records what Transformers computes.

    python tests/goldens/make_families.py [FAMILY …]

Each folder is the output of Transformers' `save_pretrained` for a small random model,
whose sizes differ wherever the family allows. It also holds `golden.npz`, with a batch,
its `logits`, the mean `loss` over non-padding labels and its `gradients/…`.
`decoded.json` has the tokens of greedy and beam search. Values are computed in float64
and stored in float32. Only this script needs PyTorch and Transformers.
"""

import copy
import itertools
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

VOCAB = 17
LIMIT = 9  # tokens of a target
BEAMS = 3
IGNORED = -100


class Case(NamedTuple):
    """A model of Transformers.

    Attributes:
      kind: Prefix of its class names.
      settings: Arguments of its config.
      first: First token of targets, if the family forces one.
      is_decoder_only: Whether the target continues the source.
    """

    kind: str
    settings: dict[str, Any]
    first: int | None = None
    is_decoder_only: bool = False


def bart(kind: str, activation: str, *, first: int | None = None, **tokens) -> Case:
    sizes = dict(
        vocab_size=VOCAB,
        d_model=8,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=10,
        decoder_ffn_dim=6,
        max_position_embeddings=20,
    )
    rates = dict(dropout=0.1, attention_dropout=0.05, activation_dropout=0.02)
    tokens = dict(pad=1, bos=0, eos=2, decoder_start=2, forced_eos=2) | tokens
    if first is not None:
        tokens['forced_bos'] = first
    named = {f'{name}_token_id': token for name, token in tokens.items()}
    others = dict(activation_function=activation, scale_embedding=True)
    return Case(kind, sizes | rates | named | others, first)


def t5(kind: str, network: str, **others) -> Case:
    settings = dict(
        vocab_size=VOCAB,
        d_model=8,
        d_kv=3,
        d_ff=10,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=2,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=9,
        feed_forward_proj=network,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=1,
    )
    return Case(kind, settings | others)


ENCODER = dict(
    vocab_size=VOCAB,
    hidden_size=12,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    intermediate_size=10,
    query_pre_attn_scalar=5,
)
DECODER = dict(
    vocab_size=VOCAB,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    intermediate_size=6,
    query_pre_attn_scalar=5,
    layer_types=['full_attention', 'sliding_attention'],
    final_logit_softcapping=2.0,
)


def t5gemma() -> Case:
    caps = dict(attn_logit_softcapping=1.0, final_logit_softcapping=2.0)
    turns = ['sliding_attention', 'full_attention', 'sliding_attention']
    encoder = ENCODER | caps | dict(layer_types=turns, sliding_window=3)
    decoder = DECODER | caps | dict(hidden_size=8, sliding_window=4)
    stacks = dict(encoder=encoder, decoder=decoder)
    return Case('T5Gemma', dict(vocab_size=VOCAB, decoder_start_token_id=2) | stacks)


ROPE = dict(
    rope_parameters={
        'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
        'full_attention': {
            'rope_type': 'linear',
            'rope_theta': 1000.0,
            'factor': 2.0,
        },
    }
)


def gemma3() -> Case:
    turns = ['sliding_attention', 'full_attention', 'sliding_attention']
    settings = ENCODER | ROPE | dict(layer_types=turns, sliding_window=3)
    return Case('Gemma3', settings, is_decoder_only=True)


def t5gemma2() -> Case:
    turns = ['sliding_attention', 'full_attention', 'full_attention']
    encoder = dict(
        text_config=ENCODER | ROPE | dict(layer_types=turns, sliding_window=8),
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
        eoi_token_index=VOCAB,  # occurs in no text
    )
    decoder = DECODER | ROPE | dict(sliding_window=2)
    stacks = dict(encoder=encoder, decoder=decoder)
    return Case('T5Gemma2', stacks | dict(decoder_start_token_id=2))


PAD = VOCAB - 1  # as in Marian
FAMILIES = {
    'bart': bart('Bart', 'gelu', first=0),
    'mbart': bart('MBart', 'gelu', first=5),
    'm2m100': bart('M2M100', 'relu', first=6),
    'marian': bart(
        'Marian', 'swish', pad=PAD, bos=None, eos=0, decoder_start=PAD, forced_eos=0
    ),
    'pegasus': bart('Pegasus', 'relu', pad=0, eos=1, decoder_start=0, forced_eos=1),
    't5': t5('T5', 'relu'),
    't5_untied': t5('T5', 'gated-gelu', tie_word_embeddings=False),
    'mt5': t5('MT5', 'gated-gelu'),
    'umt5': t5('UMT5', 'gated-gelu', num_layers=3, num_decoder_layers=2),
    'gemma3': gemma3(),
    't5gemma': t5gemma(),
    't5gemma2': t5gemma2(),
}


class Batch(NamedTuple):
    """Unpadded sources and targets, each with its end token."""

    sources: list[list[int]]
    targets: list[list[int]]


def golden_batch(end: int) -> Batch:
    return Batch(
        [[3, 4, 9, 7, end], [10, 4, end], [8, end]],
        [[8, 9, 3, end], [11, 5, 12, 6, 7, end], [4, end]],
    )


class EndAtLimit(transformers.LogitsProcessor):
    """Forces the end token at the limit and counts its probability.

    Transformers' `forced_eos_token_id` gives it a log-probability of 0.
    """

    def __init__(self, end: int, limit: int):
        self.end = end
        self.limit = limit

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < self.limit:
            return scores
        ends = torch.full_like(scores, -torch.inf)
        ends[:, self.end] = scores[:, self.end]
        return ends


def make(name: str) -> None:
    for seed in itertools.count():
        model = random_model(name, seed).double()
        batch = golden_batch(model.config.eos_token_id)
        texts = decoded(model, batch, FAMILIES[name])
        # Chooses weights for which greedy and beam search differ, and texts differ.
        if texts['greedy'] != texts['beam'] and len(set(map(tuple, texts['beam']))) > 1:
            break
    folder = Path(__file__).with_name('families') / name
    random_model(name, seed).save_pretrained(folder)
    golden = computed(model, batch, FAMILIES[name].is_decoder_only)
    np.savez_compressed(folder / 'golden.npz', **golden)
    (folder / 'decoded.json').write_text(json.dumps(texts) + '\n', encoding='utf-8')
    print(f'{name}: seed {seed}, loss {golden["loss"]:.6f}, {texts}')


def random_model(name: str, seed: int):
    case = FAMILIES[name]
    settings = copy.deepcopy(case.settings)
    suffix = 'MTModel' if case.kind == 'Marian' else 'ForConditionalGeneration'
    config_class = f'{case.kind}Config'
    if case.is_decoder_only:
        suffix, config_class = 'ForCausalLM', f'{case.kind}TextConfig'
    config = getattr(transformers, config_class)(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, case.kind + suffix)(config).eval()
    if settings.get('tie_word_embeddings') is False:
        # As in checkpoints; Transformers ties matrices that a file lacks.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    randomise(model)
    return model


def randomise(model) -> None:
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


def decoded(model, batch: Batch, case: Case) -> dict[str, list]:
    """Returns the tokens without the end token, and log-probabilities including it."""
    greedy, _ = generated(model, batch, case, 1)
    beam, scores = generated(model, batch, case, BEAMS)
    return {'greedy': greedy, 'beam': beam, 'beam_scores': scores}


def generated(model, batch: Batch, case: Case, beams: int) -> tuple[list, list]:
    if not case.is_decoder_only:
        return search(model, batch.sources, 1, case.first, beams)
    start = model.config.bos_token_id
    prompts = [[*source, start] for source in batch.sources]
    found = [search(model, [x], len(x), case.first, beams) for x in prompts]
    return [texts[0] for texts, _ in found], [x for _, scores in found for x in scores]


def search(model, prompts: list[list[int]], given: int, first: int | None, beams: int):
    """Returns texts and scores; the results begin with `given` tokens of the prompt."""
    pad, end, start = special_tokens(model.config)
    source = rows(prompts, pad)
    out = model.generate(
        input_ids=source,
        attention_mask=source != pad,
        max_length=given + LIMIT,
        do_sample=False,
        num_beams=beams,
        length_penalty=0.0,
        early_stopping=False,
        forced_bos_token_id=first,
        forced_eos_token_id=None,
        # Tokens that must never be chosen.
        bad_words_ids=[[token] for token in {pad, start} - {end}],
        logits_processor=transformers.LogitsProcessorList(
            [EndAtLimit(end, given + LIMIT - 1)]
        ),
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = out.sequences[:, given:].tolist()
    scores = [] if beams == 1 else out.sequences_scores.tolist()
    return [row[: row.index(end)] for row in found], scores


def special_tokens(config) -> tuple[int, int, int]:
    start = getattr(config, 'decoder_start_token_id', None)
    start = config.bos_token_id if start is None else start
    return config.pad_token_id, config.eos_token_id, start


def computed(model, batch: Batch, is_decoder_only: bool) -> dict[str, np.ndarray]:
    pad, _, start = special_tokens(model.config)
    source, labels = (rows(side, pad) for side in batch)
    first = torch.full((len(labels), 1), start)
    inputs = torch.cat([first, labels[:, :-1]], 1)
    forward = continued if is_decoder_only else translated
    logits, loss = forward(model, source, inputs, labels, pad)
    loss.backward()
    golden = dict(source=source, inputs=inputs, labels=labels)
    golden |= dict(logits=logits, loss=loss)
    for parameter, p in model.named_parameters():
        if p.grad is not None:
            # Files of T5Gemma 2 have no `text_model.`
            in_file = parameter.replace('.text_model.', '.')
            golden[f'gradients/{in_file}'] = p.grad
    return {name: stored(x) for name, x in golden.items()}


def translated(model, source, inputs, labels, pad: int):
    real = labels != pad
    out = model(
        input_ids=source,
        attention_mask=source != pad,
        decoder_input_ids=inputs,
        decoder_attention_mask=torch.cat([real[:, :1] | True, real[:, :-1]], 1),
        labels=labels.masked_fill(~real, IGNORED),
        use_cache=False,
    )
    return out.logits, out.loss


def continued(model, source, inputs, labels, pad: int):
    """Runs each row alone, as one text without padding."""
    real = labels != pad
    logits = torch.zeros(*labels.shape, VOCAB, dtype=torch.float64)
    for i, length in enumerate(real.sum(1)):
        text = torch.cat([source[i][source[i] != pad], inputs[i, :length]])
        out = model(input_ids=text[None], use_cache=False)
        logits[i, :length] = out.logits[0, -length:]
    loss = torch.nn.functional.cross_entropy(logits[real], labels[real])
    return logits, loss


def rows(sentences: list[list[int]], pad: int) -> torch.Tensor:
    length = max(map(len, sentences))
    return torch.tensor([row + [pad] * (length - len(row)) for row in sentences])


def stored(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy().astype(np.float32 if x.is_floating_point() else np.int32)


if __name__ == '__main__':
    for chosen in sys.argv[1:] or FAMILIES:
        make(chosen)
