"""What is drawn while a generation runs, and when nothing is."""

from io import StringIO

from rich.console import Console

from sinklens.cli.live import Alphabet, CanvasDisplay, CountDisplay, draw

MASK = 9


def styles(text: object) -> list[tuple[str, str]]:
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]  # type: ignore[attr-defined]


def test_masked_new_and_old_positions_look_different() -> None:
    text = draw([[1, 2, MASK]], [[1, MASK, MASK]], Alphabet(mask_id=MASK, decode=lambda token: "abc"[token - 1]))
    assert text.plain == "ab░"
    assert styles(text) == [("b", "bold green"), ("░", "dim")]


def test_ids_are_shown_where_there_is_no_tokenizer_and_markup_is_only_text() -> None:
    assert draw([[11, MASK], [12, 13]], None, Alphabet(mask_id=MASK, decode=None)).plain == "11 ░ \n12 13 "
    assert draw([[1]], None, Alphabet(mask_id=MASK, decode=lambda _: "[bold]")).plain == "[bold]"


def test_what_ends_a_text_is_one_sign_however_its_token_is_written() -> None:
    alphabet = Alphabet(mask_id=MASK, eos_id=0, decode=lambda token: ["<|endoftext|>", "so"][token])
    assert draw([[1, 0, 0, MASK]], None, alphabet).plain == "so∎∎░"
    assert draw([[0, MASK]], None, Alphabet(mask_id=MASK, eos_id=0, decode=None)).plain == "0 ░ "


def test_a_row_that_grows_highlights_its_new_end() -> None:
    text = draw([[1, 2]], [[1]], Alphabet(mask_id=None, decode=None))
    assert styles(text) == [("2 ", "bold green")]


def test_the_canvas_is_drawn_on_a_terminal() -> None:
    screen = StringIO()
    display = CanvasDisplay(
        Console(file=screen, force_terminal=True, width=40), Alphabet(mask_id=MASK, decode=lambda token: f"t{token}")
    )
    display.show([[1, MASK]], step=1, steps=2)
    display.show([[1, 2]], step=2, steps=2)
    display.close()
    assert "step 1/2" in screen.getvalue() and "step 2/2" in screen.getvalue() and "t2" in screen.getvalue()


def test_frames_that_come_too_fast_are_left_out_but_not_the_last() -> None:
    screen = StringIO()
    display = CanvasDisplay(Console(file=screen, force_terminal=True, width=40), Alphabet(mask_id=MASK, decode=None))
    for step in range(1, 101):
        display.show([[step]], step=step, steps=100)
    display.close()
    assert screen.getvalue().count("step ") < 50
    assert "step 100/100" in screen.getvalue()


def test_a_short_run_says_nothing_and_a_long_one_a_line_every_ten_seconds() -> None:
    now, screen = [0.0], StringIO()
    display = CountDisplay(Console(file=screen, width=40), clock=lambda: now[0])
    for step, moment in enumerate([0.5, 1.9, 2.1, 5.0, 12.0, 12.2], 1):
        now[0] = moment
        display.show([[1]], step=step, steps=9)
    display.close()
    assert screen.getvalue().splitlines() == ["step 3/9", "step 6/9"]


def test_a_long_run_gets_a_bar_on_a_terminal() -> None:
    now, screen = [0.0], StringIO()
    display = CountDisplay(Console(file=screen, force_terminal=True, width=60), clock=lambda: now[0])
    display.show([[1]], step=1, steps=9)
    assert screen.getvalue() == ""
    now[0] = 3.0
    display.show([[1]], step=4, steps=9)
    display.show([[1]], step=5, steps=9)
    display.close()
    assert "step 5/9" in screen.getvalue()


def test_the_label_says_which_prompt_runs_and_a_new_one_starts_afresh() -> None:
    now, lines = [3.0], StringIO()
    count = CountDisplay(Console(file=lines, width=40), clock=lambda: now[0])
    now[0] = 6.0
    count.show([[1]], step=3, steps=9, label="[1/2] ")
    assert lines.getvalue() == "[1/2] step 3/9\n"
    screen = StringIO()
    display = CanvasDisplay(Console(file=screen, force_terminal=True, width=40), Alphabet(mask_id=MASK, decode=None))
    display.show([[1, 2]], step=2, steps=2, label="[1/2] ")
    display.show([[3, 4]], step=2, steps=2, label="[2/2] ")
    display.close()
    frame = screen.getvalue().rpartition("[2/2] step 2/2")[2]
    assert "\x1b[1;32m3" in frame  # new, though the same place held a token in the prompt before
