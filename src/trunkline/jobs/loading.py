"""`module:app`, as the command line names an app."""

from __future__ import annotations

import importlib
import os
import sys

from trunkline.errors import SettingsError
from trunkline.jobs.app import App


def load(place: str) -> App:
    """The app of a module; modules of the current directory are found first."""
    module, _, name = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as exc:
        # a module that is missing inside it is another matter
        if exc.name is None or not (module == exc.name or module.startswith(f"{exc.name}.")):
            raise
        raise SettingsError(f"there is no module {module!r} here", hint="name it as module:app, from its directory") from exc
    app = getattr(found, name or "app", None)
    if not isinstance(app, App):
        raise SettingsError(f"{module!r} has no App called {name or 'app'!r}", hint="name it as module:app")
    return app
