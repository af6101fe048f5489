"""Operations that make one number of two, and how a docstring may word them."""

from sinklens.tasks.program_operation import PRODUCT, SUM, Operation

PAIR_OPERATIONS = (
    Operation(
        name="larger",
        takes="pair",
        gives="number",
        code="max({a}, {b})",
        compute=lambda v, _: max(v),
        steps=("take the larger of {v}", "take the maximum of {v}", "pick the bigger of {v}", "pick the larger of {v}"),
        nouns=("the larger of {v}", "the maximum of {v}", "the bigger of {v}", "the bigger value of {v}"),
    ),
    Operation(
        name="smaller",
        takes="pair",
        gives="number",
        code="min({a}, {b})",
        compute=lambda v, _: min(v),
        steps=(
            "take the smaller of {v}",
            "take the minimum of {v}",
            "pick the lesser of {v}",
            "pick the smaller of {v}",
        ),
        nouns=("the smaller of {v}", "the minimum of {v}", "the lesser of {v}", "the lesser value of {v}"),
    ),
    Operation(
        name="together",
        takes="pair",
        gives="number",
        code="{a} + {b}",
        level=SUM,
        compute=lambda v, _: v[0] + v[1],
        steps=("add {v}", "take the sum of {v}", "add up {v}", "take the total of {v}"),
        nouns=("the sum of {v}", "the total of {v}", "the result of adding {v}", "the result of the sum of {v}"),
    ),
    Operation(
        name="product",
        takes="pair",
        gives="number",
        code="{a} * {b}",
        level=PRODUCT,
        compute=lambda v, _: v[0] * v[1],
        steps=("multiply {v}", "take the product of {v}", "multiply {v} together", "find the product of {v}"),
        nouns=(
            "the product of {v}",
            "the result of multiplying {v}",
            "what multiplying {v} gives",
            "the result of the product of {v}",
        ),
    ),
    Operation(
        name="distance",
        takes="pair",
        gives="number",
        code="abs({a} - {b})",
        compute=lambda v, _: abs(v[0] - v[1]),
        steps=(
            "take the distance between {v}",
            "find how far apart {v} are",
            "take the absolute difference of {v}",
            "find the absolute difference between {v}",
        ),
        nouns=(
            "the distance between {v}",
            "the absolute difference of {v}",
            "how far apart {v} are",
            "the absolute difference between {v}",
        ),
    ),
)
