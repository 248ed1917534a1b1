"""A process in which the Triton kernels run on the CPU, by Triton's interpreter: for machines without a GPU, and for tests.

The interpreter is chosen by TRITON_INTERPRET when triton is first imported, and other libraries import it too, so a process that is
already running cannot switch. A wild pointer kills an interpreted process without a trace; here it kills the child, and the parent
says so. Arguments and results travel by pickle over pipes. Must not know what it calls.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import pickle
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

DEATH_NOTE_CHARS = 4000

_LENGTH = struct.Struct("<Q")


class InterpretedProcessDied(RuntimeError):
    """The child ended during a call; the message has the end of what it wrote to its standard error."""


class InterpretedProcess:
    """A child process, started by the first call and again after it died. A context manager that ends it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> InterpretedProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def call(self, module: str, function: str, *arguments: object, **named: object) -> Any:
        """What module.function(*arguments, **named) returns in the child. module: a name, or the path of a .py file."""
        return self._exchange(module, function, arguments, named)[0]

    def arguments_after(self, module: str, function: str, *arguments: object, **named: object) -> tuple[Any, ...]:
        """The positional arguments as the call left them in the child, for functions that write in place."""
        return self._exchange(module, function, arguments, named)[1]

    def _exchange(self, module: str, function: str, arguments: tuple[object, ...], named: dict[str, object]) -> tuple[Any, tuple[Any, ...]]:
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(child.stdin, (module, function, arguments, named))
            answer = _receive(child.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise InterpretedProcessDied(self.end())
        result: tuple[Any, tuple[Any, ...]] = pickle.loads(answer)
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the child; end() closes it
        command = [sys.executable, "-m", __name__]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment)
        return self._child

    def end(self) -> str:
        """End the child; returns its exit code and the end of its standard error."""
        if self._child is None or self._errors is None:
            return ""
        self._child.communicate()  # closes its input, on which it ends
        self._errors.seek(0)
        note = self._errors.read().decode(errors="replace")[-DEATH_NOTE_CHARS:]
        self._errors.close()
        code = self._child.returncode
        self._child = self._errors = None
        return f"exit code {code}: {note}"


@cache
def shared_process() -> InterpretedProcess:
    """One child for all callers of this process that need none of their own, for its start is slow; it ends with this process."""
    process = InterpretedProcess()
    atexit.register(process.end)
    return process


def _send(stream: IO[bytes], message: object) -> None:
    """The length first, so that a message that cannot be read by the other side does not spoil the next one."""
    content = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """One pickled message; None when the other side has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (content_len,) = _LENGTH.unpack(head)
    content = stream.read(content_len)
    return content if len(content) == content_len else None


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _serve() -> None:
    """Answer calls until the input ends; an exception ends the process, and its traceback is what the parent reports."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    while (message := _receive(sys.stdin.buffer)) is not None:
        name, function, arguments, named = pickle.loads(message)
        result = getattr(_module(name), function)(*arguments, **named)
        _send(answers, (result, arguments))


if __name__ == "__main__":
    _serve()
