"""What the oldest versions that are allowed cannot do: skipped by `make test-lowest`, each with its reason.

A plug-in of pytest. What sinklens itself refuses there, with the advice to upgrade, is skipped where it comes up.
"""

from collections.abc import Generator
from typing import Any

import pytest

ADVICE = "upgrade transformers"

# Part of a test's name to why it is not run there.
KNOWN = {
    "t5": "transformers 4.56: T5 computes attention by hand, and is refused in words",
    "modernbert": "transformers 4.56: ModernBERT has functions of its own, and is refused in words",
    "test_flex_attention": "torch 2.6 compiles FlexAttention always, which is refused in words",
    "test_an_eager_function_of_another_name": "transformers 4.56: the test's model (Llama 4) needs 5",
    "test_logits_are_transformers_own[llama]": "torch 2.6: two loads of the same weights differ in the last bit",
    "dream-entropy_t0.4_top_p0.9_seeded": "torch 2.6 draws other numbers from the same seed",
    "dream-maskgit_plus_alg_temp_seeded": "torch 2.6 draws other numbers from the same seed",
    "test_golden_seeds_replay_while_the_caller_draws": "torch 2.6 draws other numbers from the same seed",
    "test_expected_attention_is_that_of_a_gaussian": "transformers 4.56: the test reads rope_parameters, which 5 has",
    "high-mmada": "torch 2.6: topk, which the test compares with, breaks ties otherwise; ours takes the lower position",
    "test_the_manifest_says_what_ran": "the wheel of torch 2.6 names its build in one place only",
    "test_detect_sinks_agrees_on_attention[False]": "torch 2.6 draws other weights from the same seed",
    "test_transparent_and_deep_images_must_be_fitted[I;16": "older Pillow: the mode has another name",
    "test_custom_code_runs_when_asked": "torch 2.6: two loads of the same weights differ in the last bit",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part, reason in KNOWN.items():
            if part in item.name:
                item.add_marker(pytest.mark.skip(reason=reason))


def _unless_refused() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        if ADVICE in str(error):
            pytest.skip(str(error).strip().splitlines()[0])
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _unless_refused())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _unless_refused())
