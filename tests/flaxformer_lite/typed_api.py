# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Uses each public name as a user would; pyright checks it in strict mode.

Two rules are off, because optax has no type marker and jaxlib no stubs of its C++
classes, which occur in the signatures of JAX.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

import flaxformer_lite as fl

Batch = Mapping[str, jax.Array]
TrainStep = Callable[
    [fl.TrainState, Batch, jax.Array], tuple[fl.TrainState, fl.Metrics]
]

VOCAB_SIZE = 12
SOURCES = [[5, 6, 1], [7, 1]]
TARGETS = [[8, 9, 1], [10, 1]]


class Euclidean(fl.attention.Attention):
    """Scores −‖q − k‖²."""

    def scores(self, q_BTHK: jax.Array, kv: fl.attention.KeyValues) -> jax.Array:
        key_BSHK = jnp.moveaxis(kv.key_BGKS, 3, 1)
        difference_BTSHK = q_BTHK[:, :, None] - key_BSHK[:, None]
        square_BTSH = jnp.square(difference_BTSHK).sum(-1)
        return -jnp.moveaxis(square_BTSH, 3, 1)


class Sharpened(fl.attention.ScaledDotProduct):
    """Squared weights, which sum to 1."""

    def weights(self, scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
        return super().weights(2 * scores_BHTS, mask_BHTS)


class Absolute(fl.norms.Norm):
    """Divides by the mean absolute value."""

    def normalize(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD / (jnp.abs(x_BTD).mean(-1, keepdims=True) + 1e-6)


class Halved(fl.residual.Residual):
    """x + f(x) / 2."""

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        return x_BTD + self.dropout(y_BTD) / 2


class Recency(fl.positions.Positions):
    """Bias −|i − j| of the scores."""

    def bias(
        self, query_positions_BT: jax.Array, key_positions_BS: jax.Array
    ) -> jax.Array:
        offset_BTS = query_positions_BT[:, :, None] - key_positions_BS[:, None]
        return -jnp.abs(offset_BTS)[:, None].astype(jnp.float32)


class Softplus(fl.feed_forward.FeedForward):
    def activation(self, h_BTF: jax.Array) -> jax.Array:
        return jax.nn.softplus(h_BTF)


class GatedSoftplus(fl.feed_forward.Gated):
    def activation(self, h_BTF: jax.Array) -> jax.Array:
        return jax.nn.softplus(h_BTF)


class Orthogonal(fl.init.Init):
    def matrix(self, key: jax.Array, fan_in: int, fan_out: int, name: str) -> jax.Array:
        return nn.initializers.orthogonal()(key, (fan_in, fan_out))


class Doubled(fl.dense.Dense):
    """Two times x W + b."""

    def product(self, x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
        return 2 * super().product(x_ND, w_DF)


class Brier(fl.losses.Loss):
    """Squared difference between probabilities and labels."""

    weight: float = 1.0

    def __call__(self, logits: jax.Array, batch: Batch) -> jax.Array:
        label_BTV = jax.nn.one_hot(batch['labels'], logits.shape[-1])
        square_BTV = (jax.nn.softmax(logits) - label_BTV) ** 2
        return self.weight * square_BTV.sum(-1)


class WordPenalty(fl.decoding.BeamSearch):
    """Subtracts a constant per token."""

    def score(self, log_p: jax.Array, length: jax.Array) -> jax.Array:
        return log_p - 0.1 * length


class Likeliest(fl.decoding.Strategy):
    def choose(
        self,
        state: fl.decoding.SearchState,
        logits_BNV: jax.Array,
        total_BNV: jax.Array,
    ) -> jax.Array:
        return logits_BNV[:, 0].argmax(-1)[:, None].astype(jnp.int32)


class Banned(fl.decoding.Processor):
    """Never generates a token."""

    token: int

    def __call__(
        self, logits_BNV: jax.Array, tokens_BNL: jax.Array, step: jax.Array, eos: int
    ) -> jax.Array:
        return logits_BNV.at[:, :, self.token].set(-jnp.inf)


class Constant(fl.schedules.Schedule):
    rate: float = 1e-3

    def __call__(self, count: ArrayLike) -> jax.Array:
        return jnp.asarray(self.rate)


def small_transformer() -> fl.Transformer:
    return fl.Transformer(
        vocab_size=VOCAB_SIZE,
        d_model=8,
        num_layers=1,
        num_heads=2,
        d_ff=16,
        attention=Euclidean(),
        norm=fl.norms.RMSNorm(),
        dropout=fl.DropoutRates(0.1, layers=0.1),
        embeddings=fl.Embeddings(tie='decoder'),
        projections=fl.Projections(bias=True),
    )


def components() -> list[fl.Model]:
    """Returns a model with each component."""
    causal: list[fl.attention.Attention] = [
        fl.attention.Forgetting(),
        fl.attention.Linear(),
    ]
    attentions: list[fl.attention.Attention] = [
        fl.attention.Additive(width=4),
        fl.attention.Bilinear(),
        fl.attention.Blockwise(),
        fl.attention.Cosine(),
        fl.attention.Differential(),
        fl.attention.DifferentialV2(),
        fl.attention.Flash(),
        fl.attention.Gated(),
        fl.attention.Local(window=4),
        fl.attention.ReLU(),
        fl.attention.Sigmoid(),
        fl.attention.Sink(),
        fl.attention.Softmax(cap=30.0),
        fl.attention.TalkingHeads(),
        Euclidean(),
        Sharpened(),
    ]
    positions: list[fl.positions.Positions] = [
        fl.positions.ALiBi(),
        fl.positions.Learned(),
        fl.positions.NoPositions(),
        fl.positions.Rotary(),
        fl.positions.Shaw(),
        fl.positions.Sinusoidal(),
        fl.positions.SinusoidalT2T(),
        fl.positions.T5(),
        fl.positions.TransformerXL(),
        Recency(),
    ]
    norms: list[fl.norms.Norm] = [
        fl.norms.BatchNorm(momentum=0.9),
        fl.norms.DynamicTanh(),
        fl.norms.Identity(),
        fl.norms.LayerNorm(epsilon=1e-5),
        fl.norms.RMSNorm(offset=1.0),
        fl.norms.ScaleNorm(),
        Absolute(),
    ]
    residuals: list[fl.residual.Residual] = [
        fl.residual.DeepNorm(),
        fl.residual.HyperConnections(),
        fl.residual.LayerScale(),
        fl.residual.ManifoldHyperConnections(),
        fl.residual.NGPT(),
        fl.residual.NoResidual(),
        fl.residual.PostNorm(),
        fl.residual.PreNorm(),
        fl.residual.ReZero(),
        fl.residual.SandwichNorm(),
        Halved(),
    ]
    feed_forwards: list[fl.feed_forward.FeedForward] = [
        fl.feed_forward.GatedTanh(),
        fl.feed_forward.GEGLU(),
        fl.feed_forward.GELU(),
        fl.feed_forward.Linear(),
        fl.feed_forward.MixtureOfExperts(),
        fl.feed_forward.ReLU(),
        fl.feed_forward.SiLU(),
        fl.feed_forward.SquaredReLU(),
        fl.feed_forward.SwiGLU(),
        Softplus(),
        GatedSoftplus(),
    ]
    return [
        *(fl.Transformer(vocab_size=VOCAB_SIZE, attention=x) for x in attentions),
        *(fl.DecoderOnly(vocab_size=VOCAB_SIZE, attention=x) for x in causal),
        *(fl.Transformer(vocab_size=VOCAB_SIZE, positions=x) for x in positions),
        *(fl.Transformer(vocab_size=VOCAB_SIZE, norm=x) for x in norms),
        *(fl.Transformer(vocab_size=VOCAB_SIZE, residual=x) for x in residuals),
        *(fl.Transformer(vocab_size=VOCAB_SIZE, feed_forward=x) for x in feed_forwards),
        *models(),
    ]


def models() -> list[fl.Model]:
    """Returns models of each architecture, with each block, initializer and matrix."""
    blocks: list[fl.blocks.Block] = [
        fl.blocks.Parallel(),
        fl.blocks.Sequential(),
        fl.blocks.ValueResidual(learned=True),
    ]
    initializers: list[fl.init.Init] = [
        fl.init.DeepNorm(),
        fl.init.Kaiming(),
        fl.init.MuP(base=4),
        fl.init.Normal(std=0.01),
        fl.init.Xavier(),
        Orthogonal(),
    ]
    matrices: list[fl.dense.Dense] = [
        fl.dense.Dense(),
        fl.dense.LoRA(rank=2),
        Doubled(),
    ]
    tokens = fl.SpecialTokens(padding=0, bos=2, eos=1)
    return [
        *(fl.DecoderOnly(vocab_size=VOCAB_SIZE, block=x) for x in blocks),
        *(fl.PrefixLM(vocab_size=VOCAB_SIZE, initializer=x) for x in initializers),
        *(fl.MultiTokenTransformer(vocab_size=VOCAB_SIZE, dense=x) for x in matrices),
        fl.RecurrentEncoderDecoder(vocab_size=VOCAB_SIZE, special_tokens=tokens),
        fl.Transformer(
            vocab_size=VOCAB_SIZE,
            norm=[fl.norms.LayerNorm(), fl.norms.RMSNorm()],
            decoder=fl.DecoderOverrides(num_layers=2),
            cross=fl.CrossOverrides(attention=fl.attention.Cosine()),
        ),
    ]


def compiled_step(
    model: fl.Model, optimizer: optax.GradientTransformation
) -> TrainStep:
    losses: list[fl.losses.Loss] = [
        fl.losses.CrossEntropy(label_smoothing=0.1),
        fl.losses.ZLoss(weight=1e-4),
        fl.losses.Focal(gamma=1.0),
        Brier(weight=0.5),
    ]
    loss = fl.losses.Sum(tuple(losses))
    return jax.jit(fl.make_train_step(model, optimizer, loss=loss, frozen='encoder'))


def train(model: fl.Model, key: jax.Array) -> fl.TrainState:
    schedules: list[fl.schedules.Schedule] = [
        fl.schedules.Noam(d_model=8, warmup=10),
        fl.schedules.Cosine(steps=10, peak=1e-3),
        Constant(),
    ]
    optimizer = optax.adam(schedules[0])
    batch = fl.make_batch(SOURCES, TARGETS, model=model)
    state = fl.init_state(model, optimizer, key, frozen='encoder')
    step = compiled_step(model, optimizer)
    state, metrics = step(state, batch, key)
    loss_per_token(metrics)
    return state


def loss_per_token(metrics: fl.Metrics) -> jax.Array:
    return metrics.sums.loss / metrics.sums.tokens


def losses_of_several_passes(teacher: fl.Model, variables: Any) -> list[fl.losses.Loss]:
    return [
        fl.losses.Distillation(teacher=teacher, teacher_variables=variables),
        fl.losses.RDrop(weight=0.5),
    ]


def float16_state(key: jax.Array) -> fl.TrainState:
    model = fl.Transformer(
        vocab_size=VOCAB_SIZE, d_model=8, num_layers=1, num_heads=2, dtype=jnp.float16
    )
    optimizer = optax.sgd(0.1)
    variables = fl.init_state(model, optimizer, key).variables
    scale = fl.LossScale.for_model(model)
    return fl.TrainState.create(variables, optimizer, loss_scale=scale)


def evaluate(model: fl.Model, variables: Any) -> jax.Array:
    batch = fl.make_batch(SOURCES, TARGETS, model=model)
    sums = fl.loss_sums(model, variables, batch, fl.losses.CrossEntropy())
    scores: fl.TokenScores = fl.log_probs(model, variables, batch)
    return sums.loss - scores.log_p.sum() + scores.entropy.sum()


def decode(model: fl.Model, variables: Any, key: jax.Array) -> fl.decoding.DecodeResult:
    strategies: list[fl.decoding.Strategy] = [
        fl.decoding.BeamSearch(beams=2, alpha=0.6),
        fl.decoding.DiverseBeamSearch(beams=2, groups=2),
        fl.decoding.Greedy(),
        fl.decoding.MBR(samples=2),
        fl.decoding.Sample(top_p=0.9),
        WordPenalty(beams=2),
        Likeliest(),
    ]
    processors: list[fl.decoding.Processor] = [
        fl.decoding.ForcedPrefix(tokens=(5,)),
        fl.decoding.MinLength(length=2),
        fl.decoding.NoRepeatNgram(size=2),
        Banned(token=7),
    ]
    return fl.generate(
        model,
        variables,
        SOURCES,
        strategies[-1],
        max_length=4,
        processors=processors,
        key=key,
    )


def best_texts(result: fl.decoding.DecodeResult) -> list[tuple[int, ...]]:
    return [result.of_row(1, row)[0][0] for row in range(len(result.tokens))]


class NoState(NamedTuple):
    """The state of a model that only reads the last token."""

    rows_B: jax.Array

    def allocate(self, hypotheses: int, tokens: int) -> 'NoState':
        return self


def search_with_a_model_of_your_own() -> fl.decoding.SearchTrace:
    def decode_step(
        token_BN: jax.Array, state: NoState, beam: fl.decoding.BeamState
    ) -> tuple[jax.Array, NoState]:
        return jax.nn.one_hot(token_BN + 1, VOCAB_SIZE), state

    inputs = fl.decoding.DecodeInputs(
        decode_step, NoState(jnp.arange(1)), jnp.array([3]), bos=2, eos=1, length=3
    )
    return fl.decoding.BeamSearch(beams=2).search(inputs).trace()


def formulas_of_decoding(logits_BV: jax.Array) -> jax.Array:
    filtered_BV = fl.decoding.filter_logits(logits_BV, top_k=2)
    return filtered_BV / fl.decoding.length_penalty(3, 0.6)


def average(model: fl.Model, variables: Any) -> jax.Array:
    ensemble = fl.Ensemble([(model, variables), (model, variables)])
    batch = fl.make_batch(SOURCES, TARGETS)
    scores = fl.log_probs(ensemble.model, ensemble.variables, batch)
    return scores.log_p


def look_inside(model: fl.Model, variables: Any) -> tuple[jax.Array, jax.Array]:
    batch = fl.make_batch(SOURCES, TARGETS, model=model)
    record: fl.Record = fl.record(model, variables, batch)
    stats = fl.attention_stats(model, variables, batch)
    return stats['encoder']['entropy'], record.weights['decoder cross'][0]


def halve(value: jax.Array, where: fl.interventions.Where) -> jax.Array:
    return value / 2 if where.layer == 0 else value


def intervened_logits(
    model: fl.Model, variables: Any, batch: Batch
) -> Callable[[fl.interventions.Interventions], jax.Array]:
    """Returns a compiled function that takes the interventions as an argument."""

    def logits(changes: fl.interventions.Interventions) -> jax.Array:
        with fl.intervene(changes):
            found: Any = model.apply(variables, batch['source'], batch['inputs'])
        return found

    return jax.jit(logits)


def intervene(model: fl.Model, variables: Any) -> jax.Array:
    batch = fl.make_batch(SOURCES, TARGETS, model=model)
    model, variables = fl.interventions.with_separate_layers(model, variables)
    record = fl.record(model, variables, batch)
    name = 'encoder/layer_0/self_attention/z'
    actions: list[fl.interventions.Intervention] = [
        halve,
        fl.interventions.add(0.1),
        fl.interventions.from_record(record),
        fl.interventions.mean_ablate(record.values[name]),
        fl.interventions.scale(0.0, heads=[1]),
        fl.interventions.set_to(0.0),
    ]
    changes = {name: actions[4]}
    with fl.interventions.intervene(changes):
        fl.log_probs(model, variables, batch)
    logits = intervened_logits(model, variables, batch)
    return logits(fl.interventions.as_pytree(changes))


class Probe(nn.Module):
    """A module of your own that names an activation."""

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        return fl.interventions.tap(self, 'probe', 2 * x_BTD)


def from_a_config() -> fl.Model:
    config = fl.config.ModelConfig().with_values({'num_layers': 1, 'd_model': 8})
    component: fl.config.Component = fl.config.Component.of('local(window=64)')
    fl.config.entity_encoder(config)
    return fl.config.build({'attention': component, 'num_layers': 1}, VOCAB_SIZE)


def encode_a_set(key: jax.Array) -> jax.Array:
    encoder = fl.EntityEncoder(d_model=8, num_layers=1, num_heads=2, d_ff=16)
    features_BTF, present_BT = jnp.ones((1, 2, 3)), jnp.array([[True, False]])
    variables = encoder.init(key, features_BTF, present_BT)
    encoded_BTD: Any = encoder.apply(variables, features_BTF, present_BT)
    return encoded_BTD


def sizes() -> int:
    return fl.Sizes(d_model=16, num_heads=2).num_layers


def without_tuned_operations(x: jax.Array) -> jax.Array:
    with fl.ops.use_reference():
        return x


def shard(state: fl.TrainState) -> fl.TrainState:
    mesh = jax.make_mesh((1,), fl.sharding.AXES[:1])
    return jax.device_put(state, fl.sharding.state_shardings(state, mesh))


def double(x_BT: jax.Array) -> jax.Array:
    return 2 * x_BT


def shard_rows(x_BT: jax.Array) -> jax.Array:
    x_BT = fl.sharding.map_rows(double, (), (fl.sharding.place(x_BT, 'BT'),))
    if fl.sharding.is_divided(len(x_BT)):
        x_BT = fl.sharding.by_device(double, PartitionSpec(), PartitionSpec())(x_BT)
    return fl.sharding.gather(x_BT, ('embedding',))


def contracts() -> Sequence[fl.testing.Finding]:
    findings = [
        *fl.testing.check(Absolute(), quick=True),
        *fl.testing.findings(Euclidean(), quick=True),
        *fl.testing.model_findings(fl.testing.small_model(norm='rms'), quick=True),
        *fl.testing.loss_findings(Brier()),
        *fl.testing.processor_findings(Banned(token=7)),
        *fl.testing.strategy_findings(Likeliest()),
        *fl.testing.schedule_findings(Constant()),
        *fl.testing.optimizer_findings(lambda: optax.sgd(0.1)),
    ]
    try:
        return fl.testing.require(findings, 'my components')
    except fl.testing.BrokenContract:
        return fl.testing.broken(findings)


def use_everything(key: jax.Array) -> None:
    """Calls the functions above that can be traced."""
    model = small_transformer()
    variables = train(model, key).variables
    losses_of_several_passes(model, variables)
    shard(float16_state(key))
    evaluate(model, variables)
    decode(model, variables, key)
    search_with_a_model_of_your_own()
    formulas_of_decoding(jnp.zeros((1, VOCAB_SIZE)))
    average(model, variables)
    look_inside(model, variables)
    intervene(model, variables)
    Probe().apply({}, jnp.ones((1, 1, 2)))
    encode_a_set(key)
    without_tuned_operations(shard_rows(jnp.ones((2, 3))))
