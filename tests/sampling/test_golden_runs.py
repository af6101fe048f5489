"""Every recorded run of the original samplers, canvas by canvas."""

import pytest
import torch
from recorded_runs import FAMILIES, Case, cases

from sinklens.sampling.generate import generate, steps

every_case = pytest.mark.parametrize("case", cases(*FAMILIES), ids=lambda case: f"{case.family}-{case.name}")


@every_case
def test_generate_replays_the_original(checkpoint, case: Case) -> None:
    out = generate(
        checkpoint(case.family), case.prompt, case.sampler, attention_mask=case.attention_mask, seed=case.seed
    )
    assert out.canvases is not None
    assert torch.equal(out.canvases, case.canvases)
    assert torch.equal(out.ids, case.output)
    assert out.steps == len(case.canvases) - 1


@every_case
def test_steps_tell_what_changed(checkpoint, case: Case) -> None:
    model = checkpoint(case.family)
    before = case.canvases[0]
    committed = []
    for step in steps(model, case.prompt, case.sampler, attention_mask=case.attention_mask, seed=case.seed):
        assert torch.equal(step.canvas, case.canvases[step.index + 1])
        assert torch.equal(step.committed, step.canvas != before)
        masked = before == model.spec.mask_id
        assert not (step.committed & ~masked).any()
        assert not step.confidence[~masked].isfinite().any()
        if getattr(case.sampler, "alg", None) != "origin":
            assert step.confidence[step.committed].isfinite().all()
        before = step.canvas
        committed.append(step.committed.sum(dim=1).tolist())
    assert len(committed) == len(case.canvases) - 1
    if case.tokens_per_step is not None:
        assert committed == [[count] * len(case.prompt) for count in case.tokens_per_step]
