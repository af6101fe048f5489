"""Puts a command into fresh Linux namespaces, where bubblewrap is not installed. Standard library alone.

    python -I -S sandbox_namespaces.py 'PLAN'

PLAN is JSON: binds and devices (paths), base (a folder to mount on), uid, command.

New user, mount, process, network, ipc, host name and cgroup namespaces. The root is an empty tmpfs with read-only binds
of the named paths and nothing else: no /proc, no /home, nowhere to write. The command is process 1, has the given user
id and no capability. Started by root, that id is another user outside as well; started by anyone else, it is that user.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

NEW_USER, NEW_MOUNT, NEW_PID, NEW_NET = 0x10000000, 0x00020000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS, NEW_CGROUP = 0x08000000, 0x04000000, 0x02000000
NEW_NAMESPACES = NEW_USER | NEW_MOUNT | NEW_PID | NEW_NET | NEW_IPC | NEW_UTS | NEW_CGROUP
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x40000, 0x2, 0x4
MNT_DETACH = 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2)."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def main() -> None:
    plan = json.loads(sys.argv[1])
    die_with_parent()
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(from_child)
        os.close(to_child)
        _leave(lambda: _child(plan, to_parent, from_parent))
    os.close(to_parent)
    if os.read(from_child, 1):  # it is in its namespaces
        map_user(child, plan["uid"])
        os.write(to_child, b".")
    sys.exit(_exit_code(child))


def _child(plan: dict[str, Any], to_parent: int, from_parent: int) -> None:
    die_with_parent()
    check(libc.unshare(NEW_NAMESPACES), "unshare")
    os.write(to_parent, b".")
    os.close(to_parent)
    if not os.read(from_parent, 1):
        raise OSError("the user could not be mapped")
    first = os.fork()  # the process namespace begins with the next child
    if first == 0:
        _leave(lambda: _first(plan))
    os._exit(_exit_code(first))


def _first(plan: dict[str, Any]) -> None:
    die_with_parent()
    build_root(plan)
    with suppress(OSError):
        socket.sethostname("sandbox")
    if os.getuid() != plan["uid"]:
        os.setgroups([])
        os.setresgid(*[plan["uid"]] * 3)
        os.setresuid(*[plan["uid"]] * 3)
    die_with_parent()  # a change of user forgets it
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    os.execve(plan["command"][0], plan["command"], {})  # drops the capabilities: the user is not root


def map_user(child: int, uid: int) -> None:
    """Root maps itself, to build the tree, and the user that the command gets; others can map only themselves."""
    if os.geteuid() == 0:
        users = groups = f"0 0 1\n{uid} {uid} 1\n"
    else:
        users, groups = f"{uid} {os.geteuid()} 1\n", f"{uid} {os.getegid()} 1\n"
        _write(f"/proc/{child}/setgroups", "deny")
    _write(f"/proc/{child}/uid_map", users)
    _write(f"/proc/{child}/gid_map", groups)


def build_root(plan: dict[str, Any]) -> None:
    """A tmpfs becomes the root; from the old one, while it is still there, come the binds."""
    base = plan["base"].encode()
    mount(b"none", b"/", flags=MS_REC | MS_PRIVATE)
    mount(b"tmpfs", base, kind=b"tmpfs", flags=MS_NOSUID | MS_NODEV, data=b"size=1m,mode=755")
    os.mkdir(base + b"/old")
    check(libc.pivot_root(base, base + b"/old"), "pivot_root")
    os.chdir("/")
    with suppress(OSError):  # no further user namespaces, where /proc/sys can be written
        _write("/old/proc/sys/user/max_user_namespaces", "0")
    for path in plan["binds"]:
        _bind(path, READ_ONLY | NO_SUID | NO_DEVICES)
    for path in plan["devices"]:
        _bind(path, NO_SUID)
    check(libc.umount2(b"/old", MNT_DETACH), "umount")
    os.rmdir("/old")
    os.makedirs("/tmp", exist_ok=True)
    restrict("/", READ_ONLY | NO_SUID | NO_DEVICES, recursive=False)


def _bind(path: str, attributes: int) -> None:
    source = "/old" + path
    if os.path.islink(source):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source.encode(), path.encode(), flags=MS_BIND | MS_REC)
    restrict(path, attributes, recursive=True)


def mount(source: bytes, target: bytes, *, kind: bytes | None = None, flags: int, data: bytes | None = None) -> None:
    check(libc.mount(source, target, kind, ctypes.c_ulong(flags), data), f"mount {target.decode()}")


def restrict(path: str, attributes: int, *, recursive: bool) -> None:
    wanted = MountAttributes(set=attributes)
    flags = AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    check(
        libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(wanted), size),
        f"mount_setattr {path}",
    )


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


def _leave(action: Any) -> None:
    """What a forked child does; it never returns into the code of its parent."""
    try:
        action()
    except BaseException as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
