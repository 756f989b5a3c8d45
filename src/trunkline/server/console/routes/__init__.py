"""The routes of the console: each module of this package adds its `ROUTES`."""

from __future__ import annotations

import importlib
import pkgutil

from litestar.handlers import HTTPRouteHandler


def _found() -> list[HTTPRouteHandler]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [route for name in names for route in importlib.import_module(f"{__name__}.{name}").ROUTES]


ROUTES = _found()
PATHS = frozenset(path for route in ROUTES for path in route.paths)
