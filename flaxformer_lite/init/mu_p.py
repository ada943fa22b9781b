"""The maximal update parametrisation (Yang et al. 2021, "Tensor Programs V", table 8)."""

import dataclasses

from flaxformer_lite.init.base import Init, uniform
from flaxformer_lite.ranges import Size


@dataclasses.dataclass(frozen=True)
class MuP(Init):
    """Xavier at the base width; at m times it, rates and scales at which Adam learns alike.

    | | begins | its rate | |
    |---|---|---|---|
    | matrices | as Xavier | 1 / m | |
    | query | 1 / √m of that | m^−1.5 | so that scores are as if divided by d_k |
    | embeddings | N(0, 1 / d_model) | 1 / √m | they are scaled by √d_model |
    | logits | times 1 / √m | | |
    | biases, norms | as ever | 1 | |

    m is of d_model, over the `base` at which the learning rate was found. d_ff is to be given with
    it, as is num_heads or not: d_k is taken to grow, unless it is given; then scores need nothing.
    The learning rate's schedule should not depend on d_model, as `cosine` does not and `noam` does.
    """

    d_model: Size
    d_k_given: bool
    base: Size = 128

    @property
    def _times(self) -> tuple[float, float]:
        """m, of d_model, and that of d_k."""
        m = self.d_model / self.base
        return m, 1.0 if self.d_k_given else m

    @property
    def logits(self):
        return self._times[0] ** -0.5

    def matrix(self, key, fan_in, fan_out, name):
        scale = self._times[1] ** -0.5 if name == 'query' else 1.0
        return scale * uniform(key, fan_in, fan_out, 2 / (fan_in + fan_out))

    def rate(self, path):
        m, m_k = self._times
        if len(path) == 1:
            return m**-0.5
        if path[-1] == 'kernel':
            return m**-1 * (m_k**-0.5 if path[-2] == 'query' else 1.0)
        # What some attentions have of their own: from d_k to d_k, or of a recurrent model's states.
        if path[-1] in ('query', 'key', 'form', 'energy'):
            return m_k**-1 if 'attend' in path else m**-1
        return 1.0
