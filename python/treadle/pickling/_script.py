"""A worker's ``__main__``: the script whose process started the worker, run when somebody asks for it.

Pickles that name ``__main__`` (``pickle.load`` of the script's own classes), and ``import __main__``, find
what ``multiprocessing`` would have them find: the script as ``__mp_main__``. It runs once in a process, and
not before something asks for a name that is not there otherwise.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing import process
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from treadle import _core
from treadle.pickling._mp_main import SPAWNED

__all__ = [
    "Main",
    "Script",
    "become_worker",
    "install",
    "reduce_own",
    "refuse_while_imported",
    "write",
]

logger = logging.getLogger("treadle.worker")

_MAIN = "__main__"

_ADVICE = "put what tasks look up by name into a module that workers can import"


class Script(NamedTuple):
    """What a process runs: a file, or a module (``python -m``), or nothing that can be imported."""

    path: str | None = None
    module: str | None = None
    #: Why there is nothing.
    missing: str = ""

    @classmethod
    def of_process(cls) -> Script:
        """Return that of this process, by the rules of ``multiprocessing``."""
        main = sys.modules.get(_MAIN)
        if isinstance(main, Main):
            return main.script
        name = getattr(getattr(main, "__spec__", None), "name", None)
        if name is not None:
            if name == _MAIN or name.endswith(f".{_MAIN}"):
                return cls(missing=f"workers do not import the __main__.py of a package ({name})")
            return cls(module=name)
        path = getattr(main, "__file__", None)
        if path is None or os.path.splitext(os.path.basename(path))[0] == "ipython":
            return cls(
                missing="workers import nothing of a notebook, an interactive session, standard input or "
                "`python -c`"
            )
        # The directory may be another one by now.
        began_in = getattr(process, "ORIGINAL_DIR", None) or os.getcwd()
        return cls(path=os.path.abspath(os.path.join(began_in, path)))

    @property
    def name(self) -> str:
        """What people call it."""
        return self.path or (f"python -m {self.module}" if self.module else "of this process")

    @property
    def package(self) -> str:
        """Of a module: where its relative imports begin."""
        return (self.module or "").rpartition(".")[0]

    def code(self) -> CodeType:
        """Read it.

        Raises
        ------
        Exception
            It is not there any more, or is no Python.
        """
        if self.module is not None:
            spec = find_spec(self.module)
            found = getattr(spec and spec.loader, "get_code", lambda _name: None)(self.module)
            if found is None:
                raise ImportError(f"no module {self.module} is found", name=self.module)
            code: CodeType = found
            return code
        assert self.path is not None
        if self.path.endswith(".pyc"):
            from importlib.machinery import SourcelessFileLoader

            read = SourcelessFileLoader(SPAWNED, self.path).get_code(SPAWNED)
            assert read is not None
            return read
        with io.open_code(self.path) as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)


class Main(ModuleType):
    """The module ``__main__`` of a worker process; an engine's namespace is its dictionary."""

    # Not in the dictionary, which is the user's.
    __slots__ = ("_failure", "_module", "_own", "script")

    def __init__(self, script: Script, own: ModuleType) -> None:
        super().__init__(_MAIN)
        self.script = script
        self._own = own
        self._module: ModuleType | None = None
        self._failure = script.missing
        for name in ("__file__", "__spec__"):
            # Found on the class: an engine that is reset forgets what is in the dictionary.
            vars(self).pop(name, None)

    def __repr__(self) -> str:
        return f"<module {_MAIN!r} of a worker{self._reason()}>"

    def _reason(self) -> str:
        return f": {self._failure}; {_ADVICE}" if self._failure else ""

    def __dir__(self) -> Sequence[str]:
        return sorted({*vars(self), *(vars(self._module) if self._module is not None else ())})

    @property
    def ran(self) -> ModuleType | None:
        """What the script has made here, if it ran."""
        return self._module

    # What `multiprocessing` reads, to have its own children import the script: if somebody needs it here.

    @property
    def __spec__(self) -> Any:  # type: ignore[override]
        if self._module is None:
            return getattr(self._own, "__spec__", None)
        return find_spec(self.script.module) if self.script.module else None

    @property
    def __file__(self) -> str:  # type: ignore[override]
        if self._module is None or self.script.path is None:
            raise AttributeError(f"module {_MAIN!r} has no attribute '__file__'")
        return self.script.path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {_MAIN!r} has no attribute {name!r}")
        found = _received(name)
        if found is not None:
            return found
        # Whoever pickles wants to know whether the name is there, and can do without.
        module = None if _core.is_pickling() else self._run()
        try:
            return getattr(module, name)
        except AttributeError:
            raise AttributeError(
                f"module {_MAIN!r} of a worker has no attribute {name!r}{self._reason()}"
            ) from None

    def _run(self) -> ModuleType | None:
        """Return the script's module, which runs it once; None, if it cannot be had."""
        if self._failure:
            return None
        if self._module is None:
            try:
                # The import system's own lock sees threads that would wait for each other.
                module = importlib.import_module(SPAWNED)
            except Exception as error:
                self._failure = (
                    f"workers cannot import the script {self.script.name}: "
                    f"{type(error).__name__}: {error}"
                )
                logger.warning("%s", self._failure, exc_info=error)
                return None
            if module.__spec__ is not None and not getattr(module.__spec__, "_initializing", False):
                self._module = module
            return module
        return self._module


class _Spec(ModuleSpec):
    """That of the script as a module; relative imports of a module begin at its package."""

    def __init__(self, script: Script) -> None:
        super().__init__(SPAWNED, _Loader(script), origin=script.path)
        self._package = script.package

    @property
    def parent(self) -> str:
        """The package."""
        return self._package


class _Loader(Loader):
    def __init__(self, script: Script) -> None:
        self._script = script

    def create_module(self, _spec: ModuleSpec) -> None:
        """Have an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the script."""
        code = self._script.code()
        module.__file__ = code.co_filename
        _importing.script = self._script
        try:
            exec(code, vars(module))
        except SystemExit as error:
            # It would end the task's thread, or the worker.
            raise ImportError(f"it ends by SystemExit({error.code!r})") from error
        finally:
            _importing.script = None


class _Finder(MetaPathFinder):
    def __init__(self, script: Script) -> None:
        self._script = script

    def find_spec(self, fullname: str, *_more: Any) -> ModuleSpec | None:
        """Return the script's spec, for the name that its module has."""
        if fullname != SPAWNED or self._script.missing or _core.is_pickling():
            return None
        return _Spec(self._script)


class _Importing(threading.local):
    #: What the thread imports.
    script: Script | None = None


_importing = _Importing()


def _received(name: str) -> type | None:
    """Return the class of a script that came last by this name, by value: tasks know it as that."""
    from treadle._compat.cloudpickle import classes_by_id

    came = [
        found
        for reference in classes_by_id.valuerefs()
        if isinstance(found := reference(), type)
        and (found.__module__, found.__qualname__) == (_MAIN, name)
    ]
    if not came:
        return None
    # A decorator may have made another class of it, whose methods still refer to the one before.
    return next((found for found in came if _refers_to(found, came[-1])), came[-1])


def _refers_to(one: type, other: type) -> bool:
    """Whether the methods of a class hold another one."""
    functions = (value for value in vars(one).values() if isinstance(value, FunctionType))
    cells = (cell for function in functions for cell in function.__closure__ or ())
    return one is not other and any(_content(cell) is other for cell in cells)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def write(path: str) -> None:
    """Write down what this process's workers are to know of it: its script, and its arguments."""
    known = {**Script.of_process()._asdict(), "argv": [str(part) for part in sys.argv]}
    file = Path(path)
    file.touch(mode=0o600)
    file.write_text(json.dumps(known))


def become_worker(path: str | None) -> None:
    """Be a worker of the process that has written the file; of none, if there is no file."""
    if path is None:
        install(Script(missing="a worker that was started by itself imports no client's script"))
        return
    known = json.loads(Path(path).read_text())
    sys.argv[:] = known.pop("argv")
    install(Script(**known))


def install(script: Script) -> None:
    """Let a script be what ``__main__`` is here."""
    # `multiprocessing` has made it another name of this process's own.
    sys.modules.pop(SPAWNED, None)
    sys.meta_path.append(_Finder(script))
    sys.modules[_MAIN] = Main(script, sys.modules[_MAIN])


def refuse_while_imported(what: str, *, spawned: bool = False) -> None:
    """See that no script is being imported: for this worker by this thread.

    Parameters
    ----------
    what
        What is not to be made then.
    spawned
        And not for this child of ``multiprocessing``, either.

    Raises
    ------
    RuntimeError
        One is: each process that imports it would make as much again.
    """
    script = _importing.script
    if script is None:
        if not spawned or not getattr(process.current_process(), "_inheriting", False):
            return
        # `multiprocessing` has it there while it runs.
        script = Script(path=getattr(sys.modules.get(SPAWNED), "__file__", None))
    name = script.name
    raise RuntimeError(
        f"the script {name} makes {what} when it is imported, as a process that it has started does now: "
        "put what it shall do when it is run, and not when it is imported, under "
        '`if __name__ == "__main__":`'
    )


def reduce_own(obj: Any, dumps: Callable[[Any], bytes]) -> tuple[Any, ...] | None:
    """Reduce what the script has defined in this worker, so that it is the script's own elsewhere, too.

    ``dumps`` pickles it by value, for processes that do not run the script.
    """
    main = sys.modules.get(_MAIN)
    if not isinstance(main, Main) or main.ran is None:
        return None
    if getattr(obj, "__module__", None) != SPAWNED or _in(main.ran, obj.__qualname__) is not obj:
        return None
    return _own_or_made, (main.script.path, main.script.module, obj.__qualname__, dumps(obj))


def _own_or_made(path: str | None, module: str | None, name: str, pickled: bytes) -> Any:
    """Return what this process's own run of a script has made, or make it."""
    here = Script.of_process()
    if (path, module) == (here.path, here.module):
        main: Any = sys.modules.get(_MAIN)
        found = _in(main.ran if isinstance(main, Main) else main, name)
        if found is not None:
            return found
    import pickle

    return pickle.loads(pickled)


def _in(module: ModuleType | None, name: str) -> Any:
    """Return what a module has under a qualified name, or None."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
