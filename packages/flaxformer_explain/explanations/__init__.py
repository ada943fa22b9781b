"""Methods that explain what a model computes, built on `interventions`.

| method | function |
|---|---|
| logit lens, tuned lens | `logit_lens`, `fit_tuned_lens` |
| direct logit attribution | `logit_attribution` |
| gradient × input | `gradient_times_input` |
| integrated gradients | `integrated_gradients` |
| attention rollout | `attention_rollout` |
| activation patching | `activation_patching` |
| attribution patching | `attribution_patching` |
| linear probe | `fit_probe` |

Gradients and patching explain a metric: a function of the logits BTV that returns a
number per row, B. `label_log_p` and `logit_difference` return such functions.

Functions take a model, its variables {'params': …} and batches of `make_batch`, whose
rows may be packed. Compile them with `jax.jit` and a static `model`. Dropout is off.
"""

from flaxformer_explain.explanations.lens import Translators as Translators
from flaxformer_explain.explanations.lens import fit_tuned_lens as fit_tuned_lens
from flaxformer_explain.explanations.lens import lens_kl as lens_kl
from flaxformer_explain.explanations.lens import logit_lens as logit_lens
from flaxformer_explain.explanations.logit_attribution import (
    LogitAttribution as LogitAttribution,
)
from flaxformer_explain.explanations.logit_attribution import (
    logit_attribution as logit_attribution,
)
from flaxformer_explain.explanations.metrics import Metric as Metric
from flaxformer_explain.explanations.metrics import label_log_p as label_log_p
from flaxformer_explain.explanations.metrics import logit_difference as logit_difference
from flaxformer_explain.explanations.patching import (
    activation_patching as activation_patching,
)
from flaxformer_explain.explanations.patching import (
    attribution_patching as attribution_patching,
)
from flaxformer_explain.explanations.probes import Probe as Probe
from flaxformer_explain.explanations.probes import fit_probe as fit_probe
from flaxformer_explain.explanations.rollout import (
    attention_rollout as attention_rollout,
)
from flaxformer_explain.explanations.token_attribution import (
    TokenAttribution as TokenAttribution,
)
from flaxformer_explain.explanations.token_attribution import (
    gradient_times_input as gradient_times_input,
)
from flaxformer_explain.explanations.token_attribution import (
    integrated_gradients as integrated_gradients,
)
