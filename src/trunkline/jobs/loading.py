"""`module:app`, as the command line names an app."""

from __future__ import annotations

import importlib
import os
import sys

from trunkline.errors import SettingsError
from trunkline.jobs.app import App

_HOW = "name it as module:app, from its directory"


def load(place: str) -> App:
    """The app of a module; modules of the current directory are found first."""
    module, _, name = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as exc:
        # a module that is missing inside it is another matter
        if isinstance(exc, ModuleNotFoundError) and exc.name and f"{module}.".startswith(f"{exc.name}."):
            raise SettingsError(
                f"there is no module {module!r} here", hint="name it as module:app, from its directory"
            ) from exc
        raise SettingsError(
            f"module {module!r} cannot be imported: {type(exc).__name__}: {exc}", hint="TRUNKLINE_DEBUG=1 shows where"
        ) from exc
    app = getattr(found, name or "app", None)
    if not isinstance(app, App):
        raise SettingsError(f"{module!r} has no App called {name or 'app'!r}", hint=_HOW)
    return app
