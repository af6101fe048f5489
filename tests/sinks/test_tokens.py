"""Classes of tokens, and how tokens are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.sinks.tokens import CLASSES, classify_token, display

KNOWN = {
    "newline": ["\n", "\n\n", " \n", "\r\n", "\t\n ", "\u2028"],
    "space": [" ", "   ", "\t", "\u00a0"],
    "digit": ["7", " 42", "2024", "٣", "½"],
    "punctuation": [".", " ,", ").", '"', "->", ".\n\n", " +", "$", "…", "。", "🙂"],
    "special": ["", "<|eot_id|>", "<|start_header_id|>", "<\uff5cend\uff5c>"],
    "word": ["sink", " the", "istant", "x1", "3rd", "'s", "é", "词", "\ufffd", " \ufffd", "े", "<s>x"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in KNOWN.items() for text in texts])
def test_known_texts(name: str, text: str) -> None:
    assert classify_token(text) == name


def test_flags_come_first() -> None:
    assert classify_token("\n", special=True) == "special"
    assert classify_token("<|mdm_mask|>", mask=True, special=True) == "mask"


@given(text=st.text(), special=st.booleans(), mask=st.booleans())
def test_every_text_has_a_class(text: str, special: bool, mask: bool) -> None:
    name = classify_token(text, special=special, mask=mask)
    assert name in CLASSES
    if name in ("newline", "space"):
        assert text.isspace()
    if name == "punctuation":
        assert not any(character.isalnum() for character in text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\n", r"\n"),
        ("\n\n", r"\n\n"),
        (" the", "␣the"),
        ("\t", r"\t"),
        ("\\n", r"\\n"),
        ("\u200b", r"\u200b"),
        ("\x00", r"\x00"),
        ("␣", r"\u2423"),
        ("", "∅"),
        ("<|eot_id|>", "<|eot_id|>"),
        ("é词", "é词"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert display(text) == shown


@given(one=st.text(max_size=4), other=st.text(max_size=4))
def test_shown_texts_are_visible_and_distinct(one: str, other: str) -> None:
    assert display(one).isprintable() and " " not in display(one) and display(one)
    assert (display(one) == display(other)) == (one == other)
