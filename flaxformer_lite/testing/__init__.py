"""Contracts that every component must satisfy, built-in or user-defined.

`check(MyAttention())` tests a component of a model, a decoding strategy, a logits
processor, a loss or a whole model. It raises `BrokenContract` with the smallest
counterexample. `findings` returns each result as a `Finding`;
`broken` and `require` select those that fail. `model_findings`, `loss_findings`,
`optimizer_findings`, `processor_findings`, `schedule_findings` and `strategy_findings`
test one kind. `small_model` is a model to test with.
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.testing.contracts import check as check
    from flaxformer_lite.testing.contracts import findings as findings
    from flaxformer_lite.testing.contracts import model_findings as model_findings
    from flaxformer_lite.testing.decoding import (
        processor_findings as processor_findings,
    )
    from flaxformer_lite.testing.decoding import strategy_findings as strategy_findings
    from flaxformer_lite.testing.finding import BrokenContract as BrokenContract
    from flaxformer_lite.testing.finding import Finding as Finding
    from flaxformer_lite.testing.finding import broken as broken
    from flaxformer_lite.testing.finding import require as require
    from flaxformer_lite.testing.losses import loss_findings as loss_findings
    from flaxformer_lite.testing.parts import small_model as small_model
    from flaxformer_lite.testing.updates import optimizer_findings as optimizer_findings
    from flaxformer_lite.testing.updates import schedule_findings as schedule_findings
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
