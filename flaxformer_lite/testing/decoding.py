"""Contracts of decoding strategies and logits processors."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.result import DecodeResult
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.generation import DecodingOptions, decode_rows
from flaxformer_lite.scoring import log_probs
from flaxformer_lite.special_tokens import DEFAULT_TOKENS
from flaxformer_lite.testing import models, rows
from flaxformer_lite.testing.finding import (
    Finding,
    from_counterexamples,
    from_differences,
)
from flaxformer_lite.testing.parts import small_model
from flaxformer_lite.training.batch import make_batch

LENGTH = 7  # maximum target length, including the end token
SHAPE = (3, 2, rows.VOCAB_SIZE)  # shape of the processors' logits
ROUNDING = 1e-4


def strategy_findings(strategy: Strategy) -> list[Finding]:
    """Tests each contract of a decoding strategy on a small model."""
    model = small_model()
    variables = models.random_variables(model)
    sources = [source for source, _ in rows.PAIRS]

    @jax.jit
    def decode(numbers_B, source_BS):
        options = DecodingOptions(strategy, length=LENGTH)
        max_len_B = jnp.full(len(numbers_B), LENGTH)
        key = jax.random.key(0)
        return decode_rows(
            model, options, variables, key, source_BS, max_len_B, numbers_B
        )

    with models.exact_products():
        padded_BS = make_batch(sources, sources)['source']
        numbers_B = jnp.arange(len(sources))
        found = decode(numbers_B, padded_BS)
        single_results = [decode(i[None], padded_BS[i][None]) for i in numbers_B]
        found, single_results = jax.device_get((found, single_results))
        expected = _teacher_forced(model, variables, found, sources)
        return [
            from_counterexamples('every sentence has a result', _without_result(found)),
            from_counterexamples(
                'results are tokens, an end token and padding', _unfinished(found)
            ),
            from_counterexamples('results are sorted by score', _unordered(found)),
            from_counterexamples(
                'a higher log-probability does not score lower', _falling(strategy)
            ),
            from_differences(
                'scores are `score` of the log-probability of teacher forcing',
                ROUNDING,
                _wrong_scores(strategy, found, expected),
            ),
            from_counterexamples(
                'other rows have no effect', _changed(found, single_results)
            ),
        ]


def _teacher_forced(model, variables, found, sources) -> list[float]:
    results = list(_results(found))
    if not results:
        return []
    targets = [_until_padding(tokens) for _, _, tokens, _ in results]
    batch = make_batch([sources[i] for i, *_ in results], targets)
    scored = jax.jit(functools.partial(log_probs, model))(variables, batch)
    return scored.log_p.sum(-1).tolist()


def _results(found: DecodeResult) -> Iterator[tuple[int, int, list[int], float]]:
    for i, hypotheses in enumerate(found.exists.tolist()):
        for j, exists in enumerate(hypotheses):
            if exists:
                tokens_L = found.tokens[i, j]
                score = found.scores[i, j]
                yield i, j, tokens_L.tolist(), float(score)


def _until_padding(tokens: list[int]) -> list[int]:
    end = DEFAULT_TOKENS.eos
    if end not in tokens:
        return tokens
    return tokens[: tokens.index(end) + 1]


def _without_result(found: DecodeResult) -> Iterator[str]:
    for i, exists_N in enumerate(found.exists):
        if not exists_N[0]:
            yield f'sentence {i} has none'


def _unfinished(found: DecodeResult) -> Iterator[str]:
    end = DEFAULT_TOKENS.eos
    padding = DEFAULT_TOKENS.padding
    for _, _, tokens, _ in _results(found):
        length = tokens.index(end) + 1 if end in tokens else len(tokens) + 1
        text = tokens[: length - 1]
        rest = tokens[length:]
        has_tokens_after_end = any(token != padding for token in rest)
        if length > LENGTH or padding in text or has_tokens_after_end:
            yield f'{tokens} (end token {end}, padding {padding})'


def _unordered(found: DecodeResult) -> Iterator[str]:
    before: dict[int, float] = {}
    for i, j, _, score in _results(found):
        if score > before.get(i, float('inf')):
            yield f'sentence {i}: {before[i]:.3f}, then result {j} with {score:.3f}'
        before[i] = score


def _falling(strategy: Strategy) -> Iterator[str]:
    log_p = jnp.arange(-8.0, 1.0)
    for length in range(1, LENGTH + 1):
        scores = [float(strategy.score(x, jnp.int32(length))) for x in log_p]
        for lower, higher, x in zip(scores, scores[1:], log_p, strict=False):
            if higher < lower:
                yield (
                    f'{length} tokens with log-probability {x:.0f} score {lower:.3f}, '
                    f'with {x + 1:.0f} {higher:.3f}'
                )


def _wrong_scores(strategy, found, log_p) -> Iterator[tuple[float, str]]:
    for (_, _, tokens, score), expected in zip(_results(found), log_p, strict=True):
        target = _until_padding(tokens)
        expected = strategy.score(jnp.float32(expected), jnp.int32(len(target)))
        yield abs(score - float(expected)), f'the score of {target} differs by {{}}'


def _changed(found: DecodeResult, single_results: list[DecodeResult]) -> Iterator[str]:
    for i, own in enumerate(single_results):
        batched = found.tokens[i].tolist()
        there = own.tokens[0].tolist()
        if batched != there:
            yield f'sentence {i}: {batched[0]} in the batch, {there[0]} alone'


def processor_findings(processor: Processor) -> list[Finding]:
    """Tests each contract of a processor on random logits and tokens."""
    keys = jax.random.split(jax.random.key(0), 3)
    logits_BNV = jax.random.normal(keys[0], SHAPE)
    first = 3  # the first id that isn't a special token
    tokens = functools.partial(
        jax.random.randint, shape=(*SHAPE[:2], LENGTH), minval=first, maxval=SHAPE[2]
    )
    tokens_BNL = tokens(keys[1])
    others_BNL = tokens(keys[2])

    @jax.jit
    def process(step, logits_BNV, tokens_BNL):
        return processor(logits_BNV, tokens_BNL, step, DEFAULT_TOKENS.eos)

    found = []
    other = []
    reversed_batches = []
    for step in range(LENGTH):
        is_past_L = jnp.arange(LENGTH) < step
        found.append(process(step, logits_BNV, tokens_BNL))
        noisy_BNL = jnp.where(is_past_L, tokens_BNL, others_BNL)
        other.append(process(step, logits_BNV, noisy_BNL))
        reverse = process(step, logits_BNV[::-1, ::-1], tokens_BNL[::-1, ::-1])
        reversed_batches.append(reverse[::-1, ::-1])
    later_effects = _differing(found, other)
    of_others = _differing(found, reversed_batches)
    return [
        from_counterexamples(
            'logits keep their shape, in float32', _other_shape(found)
        ),
        from_counterexamples('some token stays possible', _without_tokens(found)),
        from_counterexamples(
            'no probability exceeds 1', _above_probability_one(found, logits_BNV)
        ),
        from_counterexamples('later tokens have no effect', later_effects),
        from_counterexamples('other hypotheses have no effect', of_others),
    ]


def _other_shape(found: list[jax.Array]) -> Iterator[str]:
    for logits in found:
        if (logits.shape, logits.dtype) != (SHAPE, jnp.float32):
            yield f'{SHAPE} became {logits.dtype}{list(logits.shape)}'


def _without_tokens(found: list[jax.Array]) -> Iterator[str]:
    for step, logits_BNV in enumerate(found):
        is_number = ~jnp.isnan(logits_BNV).any() & (logits_BNV < jnp.inf).all()
        if not is_number or not jnp.isfinite(logits_BNV.max(-1)).all():
            yield f'no finite logit after {step} tokens'


def _above_probability_one(
    found: list[jax.Array], logits_BNV: jax.Array
) -> Iterator[str]:
    log_z_BN1 = jax.nn.logsumexp(logits_BNV, -1, keepdims=True)
    for step, processed_BNV in enumerate(found):
        if processed_BNV.shape == SHAPE:
            above = float((processed_BNV - log_z_BN1).max())
            if above > ROUNDING:
                yield f'the log-probability is {above:.3f} after {step} tokens'


def _differing(one: list[jax.Array], other: list[jax.Array]) -> Iterator[str]:
    for step, (x, y) in enumerate(zip(one, other, strict=True)):
        if x.shape == y.shape and not (x == y).all():
            yield f'logits differ after {step} tokens'
