"""The icons, as parts of an SVG of 16 by 16."""

from __future__ import annotations

from markupsafe import Markup

_SHAPES = {
    "overview": (
        '<rect x="2" y="2" width="5" height="7" rx="1"/>'
        '<rect x="9" y="2" width="5" height="4" rx="1"/>'
        '<rect x="2" y="11" width="5" height="3" rx="1"/>'
        '<rect x="9" y="8" width="5" height="6" rx="1"/>'
    ),
    "topics": '<path d="M2 4h12M2 8h12M2 12h8"/>',
    "groups": (
        '<circle cx="5.5" cy="5.5" r="2.5"/>'
        '<circle cx="11.5" cy="6.5" r="2"/>'
        '<path d="M1.5 13c.4-2.4 2-3.5 4-3.5s3.600 1.100 4 3.500M11.500 10.500c1.700 0 2.700.9 3 2.500"/>'
    ),
    "queues": '<path d="M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3"/>',
    "dead": '<circle cx="8" cy="8" r="6"/><path d="m6 6 4 4m0-4-4 4"/>',
    "jobs": '<rect x="2" y="3" width="12" height="10" rx="2"/><path d="m6.500 6 3.500 2-3.500 2z"/>',
    "webhooks": '<path d="M6 3H4a2 2 0 0 0-2 2v7a2 2 0 0 0 2 2h7a2 2 0 0 0 2-2v-2M9 2h5v5M14 2 7 9"/>',
    "schedules": '<circle cx="8" cy="8" r="6"/><path d="M8 4.500V8l2.500 1.500"/>',
    "pipelines": (
        '<circle cx="3.500" cy="8" r="1.500"/>'
        '<circle cx="12.500" cy="4" r="1.500"/>'
        '<circle cx="12.500" cy="12" r="1.500"/>'
        '<path d="M5 8h2c2 0 2-4 4-4M7 8c2 0 2 4 4 4"/>'
    ),
    "system": '<path d="M1.500 8H4l2-5 4 10 2-5h2.500"/>',
    "access": '<circle cx="5" cy="11" r="3"/><path d="m7.200 8.800 6-6M11 5l2 2"/>',
    "search": '<circle cx="7" cy="7" r="4.500"/><path d="m10.500 10.500 3.500 3.500"/>',
    "copy": (
        '<rect x="5" y="5" width="9" height="9" rx="1.500"/>'
        '<path d="M11 5V3.500A1.500 1.500 0 0 0 9.500 2h-6A1.500 1.500 0 0 0 2 3.500v6A1.500 1.500 0 0 0 3.500 11H5"/>'
    ),
    "down": '<path d="m4 6 4 4 4-4"/>',
    "left": '<path d="M10 4 6 8l4 4"/>',
    "right": '<path d="m6 4 4 4-4 4"/>',
    "more": ('<circle cx="3" cy="8" r=".5"/><circle cx="8" cy="8" r=".5"/><circle cx="13" cy="8" r=".5"/>'),
}
LOGO = Markup('<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M1 6h18M1 10h8c4 0 3 4 6 4h4M1 14h6"/></svg>')


def icon(name: str) -> Markup:
    return Markup(f'<svg class="ico" viewBox="0 0 16 16" aria-hidden="true">{_SHAPES[name]}</svg>')  # noqa: S704  # nosec B704: constant
