"""Find anything that is pasted: an id, an offset, a receipt, a name."""

from __future__ import annotations

from trunkline.server.console import finding
from trunkline.server.console.reads import overview
from trunkline.server.console.web import View, page
from trunkline.server.response import Response


@page("/find")
async def find(view: View) -> Response:
    """Go to what the text names; if that is not certain, show what it may be."""
    text = view.query.get("q", "").strip()[:500]
    read = await view.console.reads.read(overview.STATS, overview.stats)
    found = finding.find(text, read.value)
    hits = [hit for hit in found if hit.object is None or view.may("view", hit.object)]
    certain = [hit for hit in hits if hit.certain]
    if len(certain) == 1 and view.query.get("stay") is None:
        return view.redirect(view.url(*certain[0].path, **dict(certain[0].query)))
    return await view.page("find.html", title="Find", nav="", text=text, hits=hits)


ROUTES = [find]
