"""Chat templates of strangers: one that does not end is ended, one that says nothing is refused, in words."""

import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import sinklens as sl
from sinklens.cli import main
from sinklens.errors import ModelError
from sinklens.models import templates
from sinklens.models.catalog import ZOO

HELLO = [{"role": "user", "content": "Hello"}]
ENDLESS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
NOTHING = "{% if messages | length > 99 %}{{ messages }}{% endif %}"


@pytest.fixture(scope="module")
def model() -> Any:
    return sl.load("tiny-llama")


def with_template(folder: Path, template: str) -> Path:
    shutil.copytree(ZOO / "tiny-llama", folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_template_that_does_not_end_is_ended(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert templates.SECONDS <= 5
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    model.tokenizer.chat_template = ENDLESS
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"the chat template of tiny-llama fails \(not done after 0.5 seconds\); give"):
        model.chat(HELLO)
    assert time.monotonic() - began < 20  # of a machine that has other things to do


def test_what_other_threads_compute_does_not_count() -> None:
    """The timer runs for all of them."""
    busy = threading.Event()
    others = [threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(busy.is_set, True)]) for _ in range(3)]
    for thread in others:
        thread.start()
    try:
        began = time.thread_time()
        with templates._limited(0.4):
            while time.thread_time() - began < 0.2:
                pass
        with pytest.raises(TimeoutError, match=r"not done after 0.2 seconds"), templates._limited(0.2):
            while time.thread_time() - began < 9:
                pass
    finally:
        busy.set()
        for thread in others:
            thread.join()


def test_alarms_of_others_are_left_as_they_were(model: Any) -> None:
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    before = signal.signal(signal.SIGVTALRM, handler := lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 7)
        assert len(model.chat(HELLO))
        model.tokenizer.chat_template = "{{ 1 / 0 }}"
        with pytest.raises(ModelError, match="fails"):
            model.chat(HELLO)
        left, again = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        assert 900 < left <= 1000.1 and again == pytest.approx(7, abs=0.1)
        assert signal.getsignal(signal.SIGVTALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_other_threads_chat_too(model: Any) -> None:
    """Without a limit: signals are for the main thread."""
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    said: list[Any] = []
    thread = threading.Thread(target=lambda: said.append(model.chat(HELLO).tolist()))
    thread.start()
    thread.join()
    assert said == [model.chat(HELLO).tolist()]


def test_a_template_that_says_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_template(tmp_path / "mute", NOTHING)
    message = f"the chat template of {folder} renders to no tokens; give ids, or text without chat"
    sampler = sl.AutoregressiveSampler(length=2)
    with pytest.raises(ModelError, match=message):
        sl.trace(sl.load(folder), "Hello", sampler, to=tmp_path / "trace", chat=True)
    with pytest.raises(SystemExit) as end:
        main(["generate", str(folder), "--prompt", "Hello", "--chat", "--length", "2", "--device", "cpu"])
    told = capsys.readouterr()
    assert (end.value.code, told.out) == (1, "") and f"error: {message}\n" in told.err
