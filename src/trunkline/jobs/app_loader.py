"""Loads an app from its command line form `module:app`."""

from __future__ import annotations

import importlib
import os
import sys

from trunkline.errors import SettingsError
from trunkline.jobs.app import App


def load(place: str) -> App:
    """Import an app. Modules of the current directory take precedence."""
    module, _, name = place.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in module.split(".")) or module.endswith(".py"):
        guess = module.removesuffix(".py").strip("./").replace("/", ".") or "shop"
        raise SettingsError(f"{place!r} does not name an app", hint=f"Use module:app, such as {guess}:{name}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except Exception as exc:
        # not for a missing module that this module imports
        if isinstance(exc, ModuleNotFoundError) and exc.name and f"{module}.".startswith(f"{exc.name}."):
            raise SettingsError(
                f"there is no module {module!r} in {os.getcwd()} or among the installed packages",
                hint="Change to the directory of its file, or set PYTHONPATH.",
            ) from exc
        raise SettingsError(
            f"module {module!r} cannot be imported: {type(exc).__name__}: {exc}", hint="Set TRUNKLINE_DEBUG=1 to see where."
        ) from exc
    app = getattr(imported, name, None)
    if isinstance(app, App):
        return app
    others = [f"{module}:{each}" for each, value in vars(imported).items() if isinstance(value, App)]
    hint = f"The module has {' and '.join(others)}." if others else "Create one: app = trunkline.jobs.App()"
    raise SettingsError(f"module {module!r} has no App called {name!r}", hint=hint)
