"""An engine's namespace, and what runs code in it: IPython's shell, where there is one."""

from __future__ import annotations

import ast
import base64
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from treadle.pickling._script import Main
from treadle.worker._outputs import Outputs

__all__ = ["Executed", "PlainShell", "make_shell"]


class Executed(NamedTuple):
    """How the execution of code went."""

    number: int
    error: BaseException | None
    traceback: list[str]


class PlainShell:
    """A dictionary, and Python's own ``exec``.

    Parameters
    ----------
    outputs
        Returns where outputs of the running cast go.
    """

    def __init__(self, outputs: Callable[[], Outputs]) -> None:
        self._outputs = outputs
        self.namespace: dict[str, Any] = {}
        self._count = 0
        self.reset()

    def reset(self) -> None:
        """Forget all names."""
        self.namespace.clear()
        self.namespace.update(__name__="__main__", __builtins__=__builtins__)

    def execute(self, code: str, silent: bool) -> Executed:
        """Run code; unless silent, its last line's value is displayed."""
        if not silent:
            self._count += 1
        try:
            tree = ast.parse(code, "<cast>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cast>", "exec"), self.namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cast>", "eval"), self.namespace)
                if value is not None and not silent:
                    self._show(value)
        except BaseException as error:
            return Executed(self._count, error, self.format(error, 1))
        return Executed(self._count, None, [])

    def _show(self, value: Any) -> None:
        self.namespace["_"] = value
        content = {"data": {"text/plain": repr(value)}, "metadata": {}}
        self._outputs().add("execute_result", {**content, "execution_count": self._count})

    def format(self, error: BaseException, hidden: int) -> list[str]:
        """Return the lines of a traceback, without its first frames."""
        frames = _without(error.__traceback__, hidden)
        return "".join(traceback.format_exception(type(error), error, frames)).splitlines()


def make_shell(outputs: Callable[[], Outputs], directory: str, own_process: bool) -> Any:
    """Return IPython's shell for a process of its own, and a plain one otherwise.

    IPython has one shell in a process: in a user's own, it is the user's.
    """
    if not own_process:
        return PlainShell(outputs)
    try:
        import IPython  # noqa: F401
    except ImportError:
        return PlainShell(outputs)
    return _ipython_shell(outputs, directory)


def _ipython_shell(outputs: Callable[[], Outputs], directory: str) -> Any:
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type
    from traitlets.config import Config

    class Hook(DisplayHook):  # type: ignore[misc]
        """Makes the value of a cell a result."""

        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            content = {"data": _as_text(format_dict), "metadata": md_dict or {}}
            outputs().add("execute_result", {**content, "execution_count": self.prompt_count})

        def finish_displayhook(self) -> None:
            self._is_active = False

    class Publisher(DisplayPublisher):  # type: ignore[misc]
        """Makes what is displayed output."""

        def publish(
            self,
            data: Any,
            metadata: Any = None,
            source: Any = None,
            *,
            transient: Any = None,
            update: bool = False,
            **_kwargs: Any,
        ) -> None:
            del source
            kind = "update_display_data" if update else "display_data"
            content = {"data": _as_text(data), "metadata": metadata or {}}
            outputs().add(kind, {**content, "transient": transient or {}})

        def clear_output(self, wait: bool = False) -> None:
            outputs().add("clear_output", {"wait": wait})

    class Shell(InteractiveShell):  # type: ignore[misc]
        """IPython's shell in an engine."""

        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)

        @property
        def namespace(self) -> dict[str, Any]:
            names: dict[str, Any] = self.user_ns
            return names

        def execute(self, code: str, silent: bool) -> Executed:
            self._lines: list[str] = []
            count = self.execution_count
            done = self.run_cell(code, store_history=not silent, silent=silent)
            return Executed(count, done.error_before_exec or done.error_in_exec, self._lines)

        def format(self, error: BaseException, hidden: int) -> list[str]:
            self._lines = []
            frames = _without(error.__traceback__, hidden)
            self.showtraceback((type(error), error, frames), tb_offset=0)
            return self._lines

        def showtraceback(self, *args: Any, **options: Any) -> None:
            try:
                super().showtraceback(*args, **options)
            except BaseException as another:
                # A method of the user's class may raise anything.
                self._lines = [f"its traceback cannot be shown: {type(another).__name__}"]

        def _showtraceback(self, _kind: Any, _error: Any, lines: Any) -> None:
            self._lines = lines.splitlines() if isinstance(lines, str) else list(lines)

        def reset(self, new_session: bool = False, aggressive: bool = False) -> None:
            super().reset(new_session, aggressive)

        def enable_gui(self, gui: Any = None) -> None:
            """Do nothing: figures are displayed."""

        def ask_exit(self) -> None:
            """Do nothing: the engine is the worker's."""

    config = Config()
    # Engines share a home directory: nothing of theirs is kept there.
    config.HistoryManager.enabled = False
    config.InteractiveShell.ipython_dir = os.path.join(directory, "ipython")
    main = sys.modules["__main__"]
    # Unpickling names in `__main__` finds the engine's first.
    shell = Shell.instance(config=config, user_module=main if isinstance(main, Main) else None)
    if shell.user_module is not main:
        sys.modules["__main__"] = shell.user_module
        shell.user_module.__dict__.setdefault("__spec__", getattr(main, "__spec__", None))
    # What is displayed in functions, outside of cells, goes through the same hook.
    sys.displayhook = shell.displayhook
    return shell


def _without(frames: TracebackType | None, count: int) -> TracebackType | None:
    """Return a traceback without its first frames, but for one that has no others."""
    for _ in range(count):
        if frames is not None and frames.tb_next is not None:
            frames = frames.tb_next
    return frames


def _as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return a bundle of representations as notebooks have it: bytes in base 64."""
    return {
        kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for kind, value in data.items()
    }
