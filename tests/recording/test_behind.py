"""Work behind a run: in order, all done at the end, and never lost."""

import sys
import threading
import time

import pytest

from sinklens.recording.behind import ROOM, Behind


def test_all_is_done_in_order_in_another_thread() -> None:
    done: list[tuple[int, int]] = []
    with Behind() as behind:
        for number in range(20):
            behind.do(lambda number=number: done.append((number, threading.get_ident())))
    assert [number for number, _ in done] == list(range(20))
    assert threading.get_ident() not in {thread for _, thread in done}


def test_the_run_waits_when_too_much_is_waiting() -> None:
    gate, begun = threading.Event(), []

    def run() -> None:
        with Behind() as behind:
            for number in range(ROOM + 4):
                behind.do(gate.wait)
                begun.append(number)

    running = threading.Thread(target=run)
    running.start()
    deadline = time.monotonic() + 10
    while len(begun) < ROOM + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(begun) == ROOM + 1
    gate.set()
    running.join(10)
    assert len(begun) == ROOM + 4


def test_an_error_ends_the_run_and_what_follows_is_not_begun() -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), Behind() as behind:
        behind.do(lambda: done.append(0))
        behind.do(fail)
        for number in range(1, 50):
            behind.do(lambda number=number: done.append(number))
    assert done[0] == 0
    assert len(done) < 50


def test_an_error_at_the_end_is_heard() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), Behind() as behind:
        behind.do(fail)


def test_an_error_of_the_run_is_the_one_that_is_raised() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(KeyboardInterrupt), Behind() as behind:
        behind.do(fail)
        raise KeyboardInterrupt


def test_threads_take_turns_as_before_afterwards() -> None:
    usual = sys.getswitchinterval()
    with Behind():
        assert sys.getswitchinterval() < usual
    with pytest.raises(ZeroDivisionError), Behind() as behind:
        behind.do(lambda: print(1 // 0))
    assert sys.getswitchinterval() == usual
    first, second = Behind(), Behind()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() < usual
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual
