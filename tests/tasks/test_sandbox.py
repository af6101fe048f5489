"""The sandbox: ordinary programs run, and attacks are held by every means that works here."""

import ctypes
import errno
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sinklens.errors import UsageError
from sinklens.tasks import sandbox
from sinklens.tasks.sandbox import Limits, Outcome, Program, SandboxError, how, run

QUICK = Limits(seconds=1.0)


@pytest.fixture(params=["bubblewrap", "namespaces"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each means in turn; the second is reached by hiding the first."""
    wanted: str = request.param
    if wanted == "namespaces":
        monkeypatch.setenv("PATH", "")
    if how() != wanted:
        reason = sandbox._trouble(wanted, shutil.which("bwrap"))
        assert "does not isolate" not in str(reason)
        pytest.skip(f"{wanted} does not work here: {reason}")
    return wanted


def attack(body: str, *arguments: Any, limits: Limits = QUICK, unsafe: bool = False) -> Outcome:
    """One call of a function with this body; `os` is imported."""
    lines = "\n    ".join(body.strip().splitlines())
    names = ", ".join("abc"[: len(arguments)])
    source = f"import os\ndef f({names}):\n    {lines}\n"
    return run([Program(source=source, entry="f", calls=[arguments])], limits=limits, unsafe=unsafe)[0]


def test_programs_run(means: str) -> None:
    double = Program(source="def f(x):\n    return x * 2", entry="f", calls=[[3], [[1, 2]], ["a"], [0.5]])
    types = Program(source="def f(x):\n    return [True, 1, 1.0, None, 'é']", entry="f", calls=[[0]])
    library = Program(source="import math, json\ndef f(x):\n    return math.isqrt(x)", entry="f", calls=[[99]])
    outcomes = run([double, types, library])
    assert outcomes[0] == Outcome(values=(6, [1, 2, 1, 2], "aa", 1.0), error=None)
    assert [type(value) for value in outcomes[1].values[0]] == [bool, int, float, type(None), str]
    assert outcomes[2].values == (9,)
    assert run([]) == []


def test_a_failing_program_tells_why_and_harms_no_other(means: str) -> None:
    sources = {
        "def f(x):\n    return 1 / x": "ZeroDivisionError: division by zero",
        "def f(x):\n    return (": "SyntaxError",
        "def g(x):\n    return x": "KeyError: 'f'",
        "def f(x):\n    return {x}": "TypeError: returned a value of type set",
        "def f(x):\n    raise SystemExit(3)": "SystemExit: 3",
        "def f(x):\n    return f(x)": "RecursionError",
        "import os\nos._exit(0)": "no answer that can be read",
        "import os\nos.abort()": "no answer that can be read",
    }
    programs = [Program(source=source, entry="f", calls=[[0]]) for source in sources]
    fine = Program(source="def f(x):\n    return x", entry="f", calls=[[0]])
    outcomes = run([program for bad in programs for program in (bad, fine)])
    for outcome, words in zip(outcomes[::2], sources.values(), strict=True):
        assert outcome.values == ()
        assert words in (outcome.error or "")
    assert outcomes[1::2] == [Outcome(values=(0,), error=None)] * len(programs)


def test_files_of_the_host_are_not_there(means: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    hidden = ["/etc/passwd", "/etc/shadow", "/home", "/proc/1/environ", "/proc/self", str(secret), __file__]
    assert all(os.path.lexists(path) for path in (str(secret), "/etc/passwd"))
    assert attack("return [path for path in a if os.path.lexists(path)]", hidden).values == ([],)
    assert attack("open(a).read()", str(secret)).error is not None
    shown = attack("return sorted(os.listdir('/'))").values[0]
    assert set(shown) <= {
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "tmp",
        "usr",
        sandbox._binds()[-1].split("/")[1],
    }
    assert attack("return os.listdir('/etc') + os.listdir('/tmp')").values[0] in ([], ["ld.so.cache"])


def test_the_environment_of_the_caller_is_not_there(means: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKLENS_SECRET", "token")
    names = attack("return sorted(os.environ)").values[0]
    assert set(names) <= {"LC_CTYPE", "PWD"}  # both made inside


def test_no_open_file_is_inherited(means: str) -> None:
    """Standard streams and the pipe of the answer, whatever the caller has open."""
    body = """
found = []
for fd in range(256):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
return [len(found), *(os.fstat(fd).st_rdev == os.stat('/dev/null').st_rdev for fd in found[:3])]
"""
    with open(__file__, "rb") as mine:
        os.set_inheritable(mine.fileno(), True)
        assert attack(body).values == ([4, True, True, True],)


def test_shared_memory_of_the_host_is_not_there(means: str) -> None:
    libc = ctypes.CDLL(None)
    key = secrets.randbelow(2**30) + 1
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    try:
        body = "import ctypes\nreturn ctypes.CDLL(None).shmget(a, 4096, 0o666) >= 0"
        assert attack(body, key, unsafe=True).values == (True,)
        assert attack(body, key).values == (False,)
    finally:
        libc.shmctl(segment, 0, None)


def test_no_network(means: str) -> None:
    """Neither the loopback of the host nor a socket in its abstract namespace; a plain child reaches both."""
    abstract = "\0" + secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as by_port, socket.socket(socket.AF_UNIX) as by_name:
        by_name.bind(abstract)
        by_name.listen()
        targets = [("AF_INET", by_port.getsockname()), ("AF_UNIX", abstract)]
        body = """
import socket
reached = []
for family, address in a:
    with socket.socket(getattr(socket, family)) as s:
        s.settimeout(0.3)
        try:
            s.connect(tuple(address) if family == "AF_INET" else address)
            reached.append(family)
        except OSError:
            pass
return reached
"""
        assert attack(body, targets).values == ([],)
        assert attack(body, targets, unsafe=True).values == (["AF_INET", "AF_UNIX"],)


def test_nothing_can_be_written(means: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    body = """
made = []
for folder in a:
    for make in (lambda p: os.close(os.open(p, os.O_CREAT | os.O_WRONLY)), os.mkdir):
        try:
            make(folder + '/made')
            made.append(folder)
        except OSError:
            pass
return made
"""
    folders = ["/", "/tmp", "/dev", "/etc", "/usr", "/usr/lib", "/var/tmp", str(tmp_path), sandbox._binds()[-1], "."]
    assert attack(body, folders).values == ([],)
    assert not list(tmp_path.iterdir())


def test_a_fork_bomb_does_not_get_off_the_ground(means: str) -> None:
    assert "BlockingIOError" in (attack("while True:\n    os.fork()").error or "")
    threads = "import threading\nthreading.Thread(target=print).start()"
    assert "can't start new thread" in (attack(threads).error or "")


def test_an_endless_loop_is_ended(means: str) -> None:
    begin = time.monotonic()
    assert attack("while True:\n    pass").error == "not done after 1 s"
    assert attack("import signal\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True:\n    pass").error is not None
    assert time.monotonic() - begin < 10


def test_a_program_that_hides_behind_a_closed_pipe_is_ended(means: str) -> None:
    begin = time.monotonic()
    assert attack("os.closerange(0, 99)\nwhile True:\n    pass", limits=Limits(seconds=30)).values == ()
    assert time.monotonic() - begin < 10


def test_memory_is_limited(means: str) -> None:
    limits = Limits(seconds=1.0, memory=128 * 2**20)
    assert "MemoryError" in (attack("return len(bytes(a))", 2**28, limits=limits).error or "")
    assert "MemoryError" in (attack("x = []\nwhile True:\n    x.append(bytes(2**20))", limits=limits).error or "")
    assert attack("return len(bytes(a))", 2**24, limits=limits).values == (2**24,)


def test_output_is_capped(means: str) -> None:
    assert attack("return 'x' * 10**6").error == "more than 65536 bytes returned"
    assert attack("print('x' * 10**6)\nos.write(2, b'y' * 10**6)\nreturn 1").values == (1,)
    assert attack("return 10**5000").error is not None
    assert "not done" in (attack("while True:\n    print('x' * 10**6)").error or "")


def test_no_process_outside_can_be_killed(means: str) -> None:
    """Neither the caller nor a bystander, by number or all at once; and the driver, process 1, outlives it too."""
    body = """
import signal
for pid in (*a, -1, 1, 0, os.getppid()):
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
return os.getpid()
"""
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        victim = Program(source="import os\ndef f(a):\n    " + "\n    ".join(body.splitlines()), entry="f",
                         calls=[[[os.getpid(), os.getppid(), bystander.pid]]])  # fmt: skip
        fine = Program(source="def f():\n    return 1", entry="f", calls=[[]])
        assert run([victim, fine], limits=QUICK)[1].values == (1,)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.communicate()


def test_the_driver_cannot_be_read_or_traced(means: str) -> None:
    """PTRACE_ATTACH (16) to process 1 is refused, so no program reads what the others answer."""
    body = "import ctypes\nreturn ctypes.CDLL(None).ptrace(16, a, 0, 0)"
    assert attack(body, 1).values == (-1,)


def test_no_namespace_gives_a_program_rights(means: str) -> None:
    """In a user namespace of its own a program would be root, and mount what it likes."""
    body = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
tried = [libc.unshare(flag) for flag in (0x10000000, 0x10020000, 0x20000, 0x40000000)]
tried.append(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
tried.append(libc.mount(b"proc", b"/dev", b"proc", 0, None))
try:
    open("/tmp/made", "w").write("x")
    tried.append(0)
except OSError:
    tried.append(-1)
return [*tried, os.getuid()]
"""
    assert attack(body).values == ([-1] * 7 + [65534],)


def test_calls_that_reach_into_the_kernel_are_denied(means: str) -> None:
    """Of other processes' memory, keys, programs for the kernel, and rings of calls."""
    body = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
seen = []
for number in a:
    libc.syscall(number, 0, 0, 0, 0, 0, 0)
    seen.append(ctypes.get_errno())
return seen
"""
    from sinklens.tasks.sandbox_driver import DENIED

    if os.uname().machine not in DENIED:
        pytest.skip("no filter for this machine")
    numbers = DENIED[os.uname().machine][1:]
    assert attack(body, list(numbers)).values == ([errno.EPERM] * len(numbers),)


def test_links_and_dots_lead_nowhere(means: str, tmp_path: Path) -> None:
    """No link can be made, and no way up from the root, or through a process, ends at the host's files."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    tmp_path.chmod(0o777)
    body = """
reached = []
for link in ("/tmp/link", a + "/link", "link"):
    for make in (os.symlink, os.link):
        try:
            make(a + "/secret", link)
            reached.append(link)
        except OSError:
            pass
root = os.open("/", os.O_RDONLY)
ways = ["../" * 40 + "etc/passwd", "/proc/self/root/etc/passwd", "/proc/1/cwd/etc/passwd", "/usr/../../etc/passwd"]
for way in ways:
    for folder in (None, root):
        try:
            os.close(os.open(way, os.O_RDONLY, dir_fd=folder))
            reached.append(way)
        except OSError:
            pass
return reached
"""
    assert attack(body, str(tmp_path)).values == ([],)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_daemon_is_not_left_behind(means: str) -> None:
    """Neither the old way (fork twice, a session of its own) nor by a program that is started; the next sees nobody."""
    body = """
import signal, subprocess
left = []
env = "/usr/bin/env"
for start in (os.fork, lambda: os.posix_spawn(env, ["env"], {}), lambda: subprocess.Popen([env]).pid):
    try:
        left.append(start())
    except OSError:
        pass
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
return left
"""
    assert attack(body).values == ([],)
    alone = "import os\ndef f():\n    return [n for n in range(2, 400) if n != os.getpid() and there(n)]\n"
    alone += (
        "def there(n):\n    try:\n        os.kill(n, 0)\n        return True\n    except OSError:\n        return False"
    )
    lines = "\n    ".join(body.strip().splitlines())
    first = Program(source=f"import os\ndef f():\n    {lines}", entry="f", calls=[[]])
    second = Program(source=alone, entry="f", calls=[[]])
    assert [outcome.values for outcome in run([first, second], limits=QUICK)] == [([],), ([],)]


def test_a_program_that_ignores_every_signal_is_ended(means: str) -> None:
    begin = time.monotonic()
    body = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, lambda *_: None)
    except (OSError, ValueError):
        pass
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
while True:
    pass
"""
    assert attack(body).error == "not done after 1 s"
    assert time.monotonic() - begin < 10


def test_a_secret_in_the_callers_home_or_memory_is_not_there(means: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what the caller, or the program before, holds in memory."""
    secret = secrets.token_hex(16)
    monkeypatch.setenv("SINKLENS_SECRET", secret)
    home = Path.home() / f".sinklens-test-{secrets.token_hex(4)}"
    home.write_text(secret)
    try:
        body = """
found = []
for name in (a, "~/.ssh", "/proc/1/environ", "/proc/1/mem", "/proc/self/mem", "/dev/mem", "/sys"):
    try:
        open(os.path.expanduser(name), "rb").close()
        found.append(name)
    except OSError:
        found += [name] if os.path.isdir(os.path.expanduser(name)) else []
return found
"""
        assert attack(body, str(home)).values == ([],)
        first = Program(source=f"kept = {secret!r}\ndef f():\n    return 1", entry="f", calls=[[]])
        search = "import gc\ndef f(half, other):\n    return any(half + other in str(one) for one in gc.get_objects())"
        second = Program(source=search, entry="f", calls=[[secret[:16], secret[16:]]])
        assert [outcome.values for outcome in run([first, second])] == [(1,), (False,)]
    finally:
        home.unlink()


def test_a_forged_answer_is_what_the_program_said_and_no_more(means: str) -> None:
    body = """
for fd in range(3, 32):
    try:
        os.write(fd, a.encode())
    except OSError:
        pass
os._exit(0)
"""
    assert attack(body, '{"values": [1], "error": null}') == Outcome(values=(1,), error=None)
    for text in ("{", "[]", "1", '{"values": 1, "error": null}', '{"values": [], "error": 5}', "[" * 60000, "\n\n{}"):
        assert attack(body, text).values == ()
    assert attack(body, '{"values": [], "error": "\\u001b[2J"}').error == "?[2J"


def test_nothing_runs_as_root_or_with_a_capability(means: str) -> None:
    calls = "libc.chroot(b'/usr'), libc.sethostname(b'x', 1), libc.setuid(0)"
    body = f"import ctypes\nlibc = ctypes.CDLL(None)\nreturn [os.getuid(), os.getgid(), os.getgroups(), {calls}]"
    assert attack(body).values == ([65534, 65534, [], -1, -1, -1],)


def test_another_user_gets_a_sandbox_too(means: str) -> None:
    """Started by a user without rights; needs root to become one, and an interpreter that others can read."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if os.geteuid() != 0 or system is None or setpriv is None:
        pytest.skip("needs root, setpriv and a system interpreter")
    version = subprocess.run([system, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False)
    if version.returncode:
        pytest.skip("the system interpreter is older than 3.11")
    package = Path(sandbox.__file__).parent
    folder = Path(subprocess.run(["/usr/bin/mktemp", "-d"], capture_output=True, check=True).stdout.decode().strip())
    try:
        inner = folder / "sinklens" / "tasks"
        inner.mkdir(parents=True)
        for source in (package / "../errors.py", *package.glob("sandbox*.py")):
            target = (inner.parent if source.name == "errors.py" else inner) / source.name
            target.write_bytes(source.read_bytes())
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        probe = "import os\ndef f():\n    return [os.getuid(), os.access('/', os.W_OK), os.path.exists('/etc/passwd')]"
        code = (
            f"import sys\nsys.path.insert(0, {str(folder)!r})\nfrom sinklens.tasks.sandbox import *\n"
            f"print(how(), run([Program(source={probe!r}, entry='f', calls=[[]])])[0].values)"
        )
        command = [setpriv, "--reuid=4321", "--regid=4321", "--clear-groups", system, "-B", "-c", code]
        path = {"PATH": os.environ["PATH"]}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=path, cwd="/")
        if "no sandbox to run" in done.stderr:
            pytest.skip(f"users without rights get none here: {done.stderr[-300:]}")
        assert done.stdout.strip() == f"{means} ([65534, False, False],)", done.stderr
    finally:
        shutil.rmtree(folder)


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_trouble", lambda means, _: f"{means} is forbidden")
    program = Program(source="def f():\n    return 1", entry="f", calls=[[]])
    assert how() is None
    with pytest.raises(SandboxError, match=r"namespaces: namespaces is forbidden\. Install bubblewrap .* --unsafe"):
        run([program])
    assert run([program], unsafe=True)[0].values == (1,)


def test_a_means_that_does_not_work_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The probe really runs: a bwrap that fails, and one that does not isolate, are both found out."""
    assert sandbox._trouble("bubblewrap", None) == "bwrap is not on the PATH"
    fake = tmp_path / "bwrap"
    monkeypatch.setenv("PATH", str(tmp_path))
    fake.write_text("#!/bin/sh\necho no permission >&2\nexit 1\n")
    fake.chmod(0o755)
    assert "no permission" in (sandbox._trouble.__wrapped__("bubblewrap", str(fake)) or "")
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    assert "does not isolate" in (sandbox._trouble.__wrapped__("bubblewrap", str(fake)) or "")


def test_a_sandbox_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch, means: str) -> None:
    begin = time.monotonic()
    monkeypatch.setattr(sandbox, "START_SECONDS", -30.0)
    with pytest.raises(SandboxError, match=f"the {means} sandbox did not answer in time and was ended"):
        attack("while True:\n    pass", limits=Limits(seconds=30))
    assert time.monotonic() - begin < 10


def test_unsafe_still_limits_time_memory_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKLENS_SECRET", "token")
    assert "SINKLENS_SECRET" not in attack("return list(os.environ)", unsafe=True).values[0]
    assert attack("while True:\n    pass", unsafe=True).error == "not done after 1 s"
    assert "MemoryError" in (attack("return len(bytes(a))", 2**30, unsafe=True).error or "")


def test_many_programs_take_seconds(means: str) -> None:
    begin = time.monotonic()
    program = Program(source="def f(x):\n    return x + 1", entry="f", calls=[[n] for n in range(10)])
    assert all(outcome.values == tuple(range(1, 11)) for outcome in run([program] * 200))
    assert time.monotonic() - begin < 20


def test_nothing_is_left_behind(means: str) -> None:
    """The processes of a run end with it, also when the caller is interrupted."""
    script = (
        "from sinklens.tasks.sandbox import *\n"
        "run([Program(source='def f():\\n    while True: pass', entry='f', calls=[[]])] * 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(sandbox.__file__).parents[2])}
    caller = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (begun := descendants(caller.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    begun |= descendants(caller.pid)
    caller.send_signal(signal.SIGINT)
    caller.wait(timeout=20)
    while any(map(alive, begun)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert begun
    assert not [pid for pid in begun if alive(pid)]


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found |= {int(child)} | descendants(int(child))
    return found


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_limits_are_checked() -> None:
    for seconds in (0, -0.5, float("inf"), float("nan")):
        with pytest.raises(UsageError, match=f"seconds is {seconds}; give a number above 0"):
            Limits(seconds=seconds)
    with pytest.raises(UsageError, match="memory is -1"):
        Limits(memory=-1)


def test_the_documentation_names_tests_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 15
    assert named <= set(globals())


def test_the_example_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    if how() is None:
        pytest.skip("no sandbox works here")
    *lines, last = code[1].strip().splitlines()
    call, shown = last.split("  # ")
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    assert repr(eval(call, space)) == shown
