"""The templates, compiled when the worker starts."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trunkline import __version__
from trunkline.server.console import charts, icons, ruler, shapes

_HERE = Path(str(resources.files("trunkline.server.console")))
STATIC = _HERE / "static"
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class StaticFile:
    """A file of the console, with the hash that its address carries."""

    __slots__ = ("body", "etag", "kind")

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.etag = hashlib.sha256(self.body).hexdigest()[:16]
        self.kind = KINDS[path.suffix]


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """Return the files by name. They are read once."""
    return {path.name: StaticFile(path) for path in sorted(STATIC.iterdir()) if path.suffix in KINDS}


class Pages:
    """Renders templates. `base`: the path of the console as browsers see it; `paths`: those of the routes that exist."""

    def __init__(self, base: str, paths: Container[str]) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            cache_size=-1,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(shapes.FILTERS)
        self._environment.globals.update(
            base=base,
            version=__version__,
            icon=icons.icon,
            logo=icons.LOGO,
            charts=charts,
            ruler=ruler,
            state_of=shapes.state,
            known_page=lambda path: f"/console{path}" in paths,
            static=lambda name: f"{base}/static/{name}?v={static_files()[name].etag}",
        )
        self._environment.globals["ui"] = self._environment.get_template("parts.html").module
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def render(self, template: str, values: dict[str, Any]) -> str:
        return self._environment.get_template(template).render(values)

    def render_block(self, template: str, block: str, values: dict[str, Any]) -> Markup:
        """Render one block of a template alone."""
        found = self._environment.get_template(template)
        return Markup("".join(found.blocks[block](found.new_context(values))))  # noqa: S704  # nosec B704: rendered with autoescape

    def blocks(self, template: str) -> list[str]:
        return sorted(self._environment.get_template(template).blocks)
