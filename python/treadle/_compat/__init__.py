"""What Treadle relies on in Dask, distributed and ipyparallel beyond what they document.

Their private parts are imported here and nowhere else (``tests/test_compat.py`` checks that). Each is
a :class:`Contact`: where it is, what Treadle does with it, and which attributes it must have. It is
imported when a module asks for it, so that nobody pays for a library that is not used:

>>> from treadle._compat.dask import TaskRef

and checked then. What is missing raises ``ImportError``, which says whether the library is too old or
too new, and what to install.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["Contact", "Library"]


class Contact(NamedTuple):
    """Something private of a library.

    ``place`` is ``"module:name"``, or ``"module"`` for a module. ``use`` completes "Treadle needs it
    to …". ``has`` names attributes that it must have.
    """

    place: str
    use: str
    has: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, str]:
        """The module, and the name in it (empty: the module itself)."""
        module, _, name = self.place.partition(":")
        return module, name


class Library:
    """A library, the releases of it that were tested, and what Treadle uses of its private parts.

    Parameters
    ----------
    name
        The package.
    oldest, newest
        The releases between which it was tested. An older one is refused; a newer one is tried.
    requirement
        What to install if the library is missing, as ``pip install`` takes it.
    contacts
        The contacts by the names that modules import.
    """

    def __init__(
        self,
        name: str,
        oldest: str,
        newest: str,
        requirement: str,
        contacts: Mapping[str, Contact],
    ) -> None:
        self.name = name
        self.oldest = oldest
        self.newest = newest
        self.requirement = requirement
        self.contacts = contacts
        self._found: dict[str, Any] = {}
        self._version = ""

    def __repr__(self) -> str:
        return f"Library({self.name})"

    @property
    def version(self) -> str:
        """The installed release.

        Raises
        ------
        ImportError
            The library is not installed, or is older than what Treadle was tested with.
        """
        if not self._version:
            try:
                version = str(import_module(self.name).__version__)
            except ModuleNotFoundError as error:
                if error.name != self.name:
                    raise
                raise ImportError(
                    f"Treadle needs {self.name} here, which is not installed: "
                    f"pip install '{self.requirement}'",
                    name=self.name,
                ) from error
            if _numbers(version) < _numbers(self.oldest):
                raise ImportError(
                    f"{self.name} {version} is too old for this Treadle, which needs {self.oldest} "
                    f"or newer: pip install '{self.requirement}'",
                    name=self.name,
                )
            self._version = version
        return self._version

    def find(self, name: str) -> Any:
        """Import a contact.

        Raises
        ------
        AttributeError
            There is no contact of that name.
        ImportError
            The installed release does not have it as Treadle needs it.
        """
        contact = self.contacts.get(name)
        if contact is None:
            raise AttributeError(f"no contact of {self.name} has the name {name!r}")
        version = self.version
        module, attribute = contact.parts
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            # Its own modules are gone; what they import in turn is another matter.
            if not (error.name or "").startswith(f"{self.name}."):
                raise
            raise self._changed(contact, f"no module {error.name}", version) from error
        if attribute:
            try:
                found = getattr(found, attribute)
            except AttributeError as error:
                raise self._changed(contact, f"no {module}.{attribute}", version) from error
        for part in contact.has:
            if not hasattr(found, part):
                raise self._changed(contact, f"no {module}.{attribute}.{part}", version)
        return found

    def loaded(self, name: str) -> Any:
        """Return a contact, or None while nobody has imported its module."""
        found = self._found.get(name)
        if found is None and self.contacts[name].parts[0] in sys.modules:
            found = self._found[name] = self.find(name)
        return found

    def _changed(self, contact: Contact, missing: str, version: str) -> ImportError:
        beginning = f"{self.name} {version} has {missing}, which Treadle needs to {contact.use}"
        if _numbers(version) > _numbers(self.newest):
            end = (
                f"it is newer than {self.newest}, the newest that this Treadle was tested with: "
                f"install a newer Treadle, or pip install '{self.name}<={self.newest}'"
            )
        else:
            end = (
                f"releases from {self.oldest} to {self.newest} were tested, so something has changed "
                f"it: pip install --force-reinstall '{self.name}=={version}'"
            )
        return ImportError(f"{beginning}; {end}", name=self.name)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``2026.8.0+3.gabcdef`` has (2026, 8, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
