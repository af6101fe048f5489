"""MMaDA (8B Base, MixCoT): LLaDA's transformer over text ids and image codes.

Two things differ from LLaDA: one newline, not two, after each chat header; and padding, which the original
masks in pairs with the lowest finite number, so that rows of padded queries come out uniform.
"""

from pathlib import Path

from sinklens.models.fields import Fields
from sinklens.models.llada import header_chat, plan_family
from sinklens.models.native import Blueprint


def plan(folder: Path, fields: Fields, source: str) -> Blueprint:
    return plan_family("mmada", folder, fields, source, padding="uniform", chat_format=header_chat("\n"))
