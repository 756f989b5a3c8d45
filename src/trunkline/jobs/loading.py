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
    name = name or "app"
    if not all(part.isidentifier() for part in module.split(".")) or module.endswith(".py"):
        guess = module.removesuffix(".py").strip("./").replace("/", ".") or "shop"
        raise SettingsError(f"{place!r} does not name an app", hint=f"write module:app, such as {guess}:{name}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as exc:
        # a module that is missing inside it is another matter
        if isinstance(exc, ModuleNotFoundError) and exc.name and f"{module}.".startswith(f"{exc.name}."):
            raise SettingsError(
                f"there is no module {module!r} in {os.getcwd()} or among the installed packages",
                hint="go to the directory of its file, or set PYTHONPATH",
            ) from exc
        raise SettingsError(
            f"module {module!r} cannot be imported: {type(exc).__name__}: {exc}", hint="TRUNKLINE_DEBUG=1 shows where"
        ) from exc
    app = getattr(found, name, None)
    if isinstance(app, App):
        return app
    others = [f"{module}:{each}" for each, value in vars(found).items() if isinstance(value, App)]
    hint = f"it has {' and '.join(others)}" if others else "make one: app = trunkline.jobs.App()"
    raise SettingsError(f"module {module!r} has no App called {name!r}", hint=hint)
