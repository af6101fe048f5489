"""Runs inside the sandbox: one child for each program, one at a time, under limits. Standard library alone.

`sinklens.tasks.sandbox` starts this text with `python -I -S -c`. Standard input brings records, each an eight-digit
length and JSON: first the settings, then the programs, read one by one, so that no child holds a later one. Standard
output takes one line of JSON for each. A child can lie about what its calls returned, and gains nothing: the values to
expect never come in here.

As process 1 of its own process namespace the driver cannot be killed from within, and ends whatever a program left.
"""

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import Any

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
SECCOMP_MODE_FILTER = 2
# Machine: its number, then unshare, setns, mount, umount2, pivot_root, chroot, ptrace, process_vm_readv and _writev,
# bpf, perf_event_open, userfaultfd, io_uring_setup, add_key, request_key, keyctl, fsopen, open_tree, move_mount.
DENIED = {
    "x86_64": (
        0xC000003E, 272, 308, 165, 166, 155, 161, 101, 310, 311, 321, 298, 323, 425, 248, 249, 250, 430, 428, 429,
    ),
    "aarch64": (
        0xC00000B7, 97, 268, 40, 39, 41, 51, 117, 270, 271, 280, 241, 282, 425, 217, 218, 219, 430, 428, 429,
    ),
}  # fmt: skip


def main() -> None:
    settings = _next_record()
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(*[settings["uid"]] * 3)
        os.setresuid(*[settings["uid"]] * 3)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no child may read or trace this process
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    alone = settings["alone"] and os.getpid() == 1
    while (program := _next_record()) is not None:
        answer, error = _run(program, settings["limits"], alone)
        line = json.dumps({"answer": answer.decode("utf-8", "replace"), "error": error})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _next_record() -> Any:
    length = _read(8)
    return json.loads(_read(int(length))) if length else None


def _read(count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := os.read(0, count - len(data))):
        data += chunk
    return data


def _run(program: dict[str, Any], limits: dict[str, Any], alone: bool) -> tuple[bytes, str | None]:
    """What the child wrote, and why it did not end by itself."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(program, limits, write, alone)
    os.close(write)
    answer, error = _collect(read, limits)
    os.close(read)
    _end(pid, alone)
    return answer, error


def _collect(read: int, limits: dict[str, Any]) -> tuple[bytes, str | None]:
    deadline = time.monotonic() + limits["seconds"]
    data = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            break
        chunk = os.read(read, 65536)
        if not chunk:
            return data, None
        data += chunk
        if len(data) > limits["output"]:
            return b"", f"more than {limits['output']} bytes returned"
    return b"", f"not done after {limits['seconds']:g} s"


def _end(pid: int, alone: bool) -> None:
    """Kill the child and, in a process namespace of our own, everything else in it."""
    for kill, whom in ((os.killpg, pid), (os.kill, pid), (os.kill, -1)):
        if whom == -1 and not alone:
            continue  # outside of a namespace this would be every process of the user
        try:
            kill(whom, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os.waitpid(pid, 0)
    while alone:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _child(program: dict[str, Any], limits: dict[str, Any], write: int, alone: bool) -> None:
    """Run the program, write its answer and leave; never returns."""
    try:
        os.setpgid(0, 0)
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(3, write)
        os.closerange(write + 1, 256)
        _limit(limits)
        if not _deny_calls() and alone:
            os._exit(1)  # no answer: the probe finds out
        answer = json.dumps(_call(program)).encode()
        while answer:
            answer = answer[os.write(write, answer) :]
    finally:
        os._exit(0)


def _limit(limits: dict[str, Any]) -> None:
    seconds = int(limits["seconds"]) + 1
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),  # not one more: neither process nor thread
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _deny_calls() -> bool:
    """A filter (seccomp) without which a program could make a user namespace, and have all rights inside it."""
    machine = os.uname().machine
    if machine not in DENIED:
        return True
    arch, *numbers = DENIED[machine]
    load, jump, above, leave = 0x20, 0x15, 0x35, 0x06  # BPF: LD W ABS, JMP JEQ K, JMP JGE K, RET K
    steps = [(load, 0, 0, 4), (jump, 1, 0, arch), (leave, 0, 0, 0x00050001), (load, 0, 0, 0)]
    for code, number in ((above, 0x40000000), *((jump, number) for number in numbers)):  # from there on: x32's calls
        steps += [(code, 0, 1, number), (leave, 0, 0, 0x00050001)]  # ERRNO | EPERM
    steps.append((leave, 0, 0, 0x7FFF0000))  # ALLOW
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(text)))
    return bool(ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0)


def _call(program: dict[str, Any]) -> dict[str, Any]:
    """Values of the calls up to the first that fails."""
    values: list[Any] = []
    space: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(program["source"], "<program>", "exec"), space)
        for arguments in program["calls"]:
            values.append(_plain(space[program["entry"]](*arguments)))
    except BaseException as error:  # a program may raise anything, SystemExit included
        return {"values": values, "error": f"{type(error).__name__}: {error}"[:200]}
    return {"values": values, "error": None}


def _plain(value: Any) -> Any:
    """The value if JSON keeps its type, else an error."""
    if type(value) is list:
        return [_plain(entry) for entry in value]
    if type(value) in (bool, int, float, str, type(None)):
        return value
    raise TypeError(f"returned a value of type {type(value).__name__}")


if __name__ == "__main__":
    main()
