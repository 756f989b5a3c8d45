"""Declares pages, panels and actions. The only module of the console that knows the server's request and route classes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints
from urllib.parse import parse_qsl, quote, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from litestar.handlers import HTTPRouteHandler
from markupsafe import Markup

from trunkline.errors import TrunklineError
from trunkline.server.auth import SOME, Caller
from trunkline.server.console import shapes
from trunkline.server.console.reading import FRESH_SECONDS, Work
from trunkline.server.console.sessions import cookies, csrf_of
from trunkline.server.limits import Limits, limited
from trunkline.server.problems import Problem, no_route
from trunkline.server.request import Request
from trunkline.server.response import Response
from trunkline.server.routing import Doc, Scope, route

if TYPE_CHECKING:
    from trunkline.server.console.state import Console

T = TypeVar("T")
Values = dict[str, Any]
log = logging.getLogger("trunkline.server")
TAG = "console"
ROOT = "/console"
LOCAL = Caller("local", None)
HTML = "text/html; charset=utf-8"
_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000
POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    # no-referrer would make browsers send `Origin: null` with our own forms
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class View:
    """One request for a page, panel or action: the caller, what is wanted, and how it is to look."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cookies = cookies(request.scope)
        self.now = datetime.now(UTC)
        self._query: dict[str, str] | None = None
        self._form: dict[str, str] | None = None

    @property
    def console(self) -> Console:
        console = self.request.service.console
        if console is None:
            raise no_route()
        return console

    @property
    def base(self) -> str:
        """The path of the console as the browser sees it."""
        return f"{self.console.prefix}{ROOT}"

    @property
    def here(self) -> str:
        """The path of this request as the browser sees it."""
        return f"{self.console.prefix}{quote(self.request.scope['path'], safe='/@:')}"

    @property
    def caller(self) -> Caller:
        caller: Caller = self.request.scope.get("trunkline_caller", LOCAL)  # type: ignore[assignment]
        return caller

    @property
    def open(self) -> bool:
        """True if all programs on this machine have all rights."""
        return self.request.service.auth.open

    @property
    def portal(self) -> bool:
        """True if the token is for the portal of one endpoint: it must not see other objects or our processes."""
        return self.request.portal

    @property
    def path(self) -> Mapping[str, Any]:
        """The parameters in the path."""
        return self.request.scope["path_params"]

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; of repeated ones the last."""
        if self._query is None:
            text = self.request.scope["query_string"].decode("latin-1")
            try:
                self._query = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"))
            except ValueError:
                raise Problem(400, "bad_parameter", "the query of this address is not valid") from None
        return self._query

    async def form(self) -> dict[str, str]:
        """The fields of a posted form."""
        if self._form is None:
            kind = (self.request.header("content-type") or "").partition(";")[0].strip().lower()
            if kind != _FORM:
                raise Problem(415, "unsupported_media_type", f"actions take forms of the type {_FORM}")
            text = (await self.request.bytes()).decode("utf-8", "replace")
            try:
                self._form = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
            except ValueError:
                raise Problem(400, "bad_form", "the form is not valid") from None
        return self._form

    # Rights

    def may(self, scope: str, name: str | None = None) -> bool:
        """Return whether the caller has a scope on a topic or queue; without a name: on all."""
        return self.caller.may(scope, name)

    def missing(self, scope: str, name: str | None = None) -> str | None:
        """Return the scope that the caller lacks for an action, to show beside its disabled button; None if it may."""
        return None if self.may(scope, name) else f"{scope}:{name or '*'}"

    @property
    def rank(self) -> str:
        """The strongest verb of the caller, for the foot of the navigation."""
        if self.caller.scopes is None:
            return "admin"
        verbs = {entry.partition(":")[0] for entry in self.caller.scopes}
        return next((verb for verb in ("admin", "operate", "read", "view", "portal") if verb in verbs), "no rights here")

    @property
    def csrf(self) -> str:
        """The value of the hidden field `csrf` of forms."""
        secret = self.request.scope.get("trunkline_session")
        return csrf_of(str(secret)) if secret else ""

    # Looks

    @property
    def theme(self) -> str:
        return theme if (theme := self.cookies.get("tl-theme")) in ("light", "dark") else ""

    @property
    def rows(self) -> str:
        return "compact" if self.cookies.get("tl-rows") == "compact" else ""

    @property
    def local(self) -> bool:
        return self.cookies.get("tl-zone") == "local"

    @property
    def zone(self) -> tzinfo:
        """The time zone of all times on the page. The script tells the browser's zone in a cookie."""
        name = self.cookies.get("tl-tz", "")
        if not self.local or not name:
            return UTC
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC

    def time(self, at: datetime | None, *, day: bool = False) -> Markup:
        """Return a time as `<time>` in the zone of the page."""
        return shapes.time_element(at, self.zone, self.now, day=day)

    def url(self, *parts: str | int, **query: Any) -> str:
        """Return the address of a page: its parts are quoted, empty query parameters left out."""
        path = "".join(f"/{quote(str(part), safe='@:')}" for part in parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.base}{path}" + (f"?{urlencode(given)}" if given else "")

    def with_query(self, **query: Any) -> str:
        """Return the address of this page with some query parameters changed."""
        given = {name: value for name, value in {**self.query, **query}.items() if value not in (None, "")}
        return self.here + (f"?{urlencode(given)}" if given else "")

    # Answers

    def values(self, **values: Any) -> Values:
        return {"view": self, "zone": self.zone, **values}

    def render(
        self, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
    ) -> Response:
        """Response with a template."""
        return html(self.console.pages.render(template, self.values(**values)), status, headers)

    async def page(self, template: str, panels: Panels | None = None, **values: Any) -> Response:
        """Response with a page whose panels are read at the same time. `title` and `nav` are required."""
        values = {"crumbs": [(values["title"], None)], **values}
        shown = {} if panels is None else await panels.render_all(self, template)
        foot = await self.console_foot()
        return self.render(template, panels=shown, foot=foot, **values)

    async def console_foot(self) -> Values:
        """Return what the foot of the navigation says about the database."""
        from trunkline.server.console.reads import foot

        read = await self.console.reads.read(foot.FOOT, foot.read, fresh=10.0)
        return {"database": None if read.late else read.value}

    def redirect(self, address: str, headers: Mapping[str, str] | None = None) -> Response:
        """Response with 303, which browsers follow with GET."""
        return Response(b"", 303, None, {"location": address, **POLICY, **(headers or {})})

    async def change(self, work: Work[T], *dirty: str) -> T:
        """Run a change on a connection, within the limits of the route. `dirty`: live keys that are stale afterwards."""
        async with self.request.writing() as conn:
            value = await work(conn)
        self.changed(*dirty)
        return value

    def changed(self, *dirty: str) -> None:
        """Report a change that was made without `change`, so that no page shows what was read before it."""
        self.console.reads.expire()
        self.console.live.touch(*dirty)


def html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text.encode(), status, HTML, {**POLICY, **(headers or {})})


Page = Callable[[View], Awaitable[Any]]


def page(
    path: str, *, scope: Scope = "view", object: str | None = SOME, portal: bool = False
) -> Callable[[Page], HTTPRouteHandler]:
    """Declare a page below /console.

    `object`: the path parameter that names the topic or queue; SOME: the page shows what matches. `portal`: open to a
    token for the portal of the endpoint `object`.
    """
    return _declare("GET", path, scope, object, lambda function: function, portal=portal)


def action(
    path: str, *, scope: Scope, object: str | None = None, audit: bool = True, portal: bool = False
) -> Callable[[Page], HTTPRouteHandler]:
    """Declare a change: a POST of a form by a page of the console itself, recorded in the audit log."""

    def guarded(function: Page) -> Page:
        async def checked(view: View) -> Response:
            await check_origin(view)
            if audit:
                await view.request.audit(", ".join(str(value) for value in view.path.values()) or path)
            done: Response = await function(view)
            return done

        return checked

    return _declare("POST", path, scope, object, guarded, audit="body" if audit else False, portal=portal)


def _declare(
    method: Any, path: str, scope: Scope, object: str | None, around: Callable[[Page], Page], **doc: Any
) -> Callable[[Page], HTTPRouteHandler]:
    declared = Doc(tag=TAG, scope=scope, object=object, strict=False, console=True, media="text/html", **doc)

    def make(function: Page) -> HTTPRouteHandler:
        work = around(function)

        async def handle(request: Request) -> Any:
            return await work(View(request))

        handle.__module__, handle.__qualname__, handle.__doc__ = function.__module__, function.__qualname__, function.__doc__
        # Litestar chooses by the annotation how to send the result
        handle.__annotations__ = {"request": Request, "return": get_type_hints(function).get("return", Response)}
        return route(method, f"{ROOT}{path}".rstrip("/"), declared)(handle)

    return make


async def check_origin(view: View) -> None:
    """Refuse a change that does not come from a form of this console (CSRF)."""
    request = view.request
    site, origin = request.header("sec-fetch-site"), request.header("origin")
    if site not in (None, "same-origin"):
        raise Problem(403, "cross_origin", "changes must come from the console itself")
    if origin is not None and origin.partition("://")[2].lower() not in _hosts(view):
        raise Problem(403, "cross_origin", "changes must come from the console itself")
    if "trunkline_session" not in request.scope:
        await view.form()
        return
    sent = request.header("x-trunkline-csrf") or (await view.form()).get("csrf", "")
    if not hmac.compare_digest(sent.encode(), view.csrf.encode()):
        raise Problem(403, "wrong_csrf", "this form is from another session: load the page again")


def _hosts(view: View) -> set[str]:
    known = {view.request.header("host"), view.console.host}
    return {host.lower() for host in known if host}


# Panels


class Panel:
    """A part of a page while it is read. It degrades alone: what is late is said in it, with the last values."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.late: list[str] = []

    async def read(
        self, what: str, key: Hashable, work: Work[T], *, seconds: float = 1.0, fresh: float = FRESH_SECONDS
    ) -> T | None:
        """Read from the database within a time limit; see `Reads.read`. None if there is nothing to show, also not old.

        `what` begins the sentence that the panel shows when the read is late: "Queue statistics".
        """
        read = await self.view.console.reads.read(key, work, seconds=seconds, fresh=fresh)
        if read.late is not None:
            old = f"showing {shapes.clock(read.at, self.view.zone)}" if read.at else "nothing to show yet"
            self.late.append(f"{what} {read.late}; {old}.")
        return read.value


class Box(NamedTuple):
    """The values that the frame of a panel needs: its element id, its address, and the live keys that make it stale."""

    id: str
    url: str
    stale: str
    late: list[str]


PanelWork = Callable[[Panel], Awaitable[Values]]


class Panels:
    """The panels of a page: each is a block of its template, and a fragment at PATH/~/NAME."""

    def __init__(
        self, path: str, template: str, *, scope: Scope = "view", object: str | None = SOME, portal: bool = False
    ) -> None:
        self._path = path.rstrip("/")
        self._template = template
        self._scope = scope
        self._object = object
        self._portal = portal
        self._work: dict[str, tuple[PanelWork, str]] = {}
        self.routes: list[HTTPRouteHandler] = []

    def add(self, *keys: str) -> Callable[[PanelWork], PanelWork]:
        """Declare a panel named like its function and its block. `keys`: live keys that make it stale; `{name}` in a key
        is the path parameter."""

        def register(work: PanelWork) -> PanelWork:
            name = work.__name__
            self._work[name] = (work, " ".join(keys))

            async def fragment(view: View) -> Response:
                return html(await self._render(view, self._template, name))

            fragment.__module__, fragment.__qualname__, fragment.__doc__ = work.__module__, name, work.__doc__
            fragment.__annotations__ = {"return": Response}
            declare = page(f"{self._path}/~/{name}", scope=self._scope, object=self._object, portal=self._portal)
            self.routes.append(declare(fragment))
            return work

        return register

    async def render_all(self, view: View, template: str) -> dict[str, Markup]:
        """Render all panels of a page, reading them at the same time."""
        done = await asyncio.gather(*(self._render(view, template, name) for name in self._work))
        return dict(zip(self._work, done, strict=True))

    async def _render(self, view: View, template: str, name: str) -> Markup:
        work, keys = self._work[name]
        panel = Panel(view)
        address = "".join(f"/{quote(str(part), safe='@:')}" for part in self._parts(view))
        query = urlencode(view.query)
        box = Box(
            id=f"panel-{name}",
            url=f"{view.base}{address}/~/{name}" + (f"?{query}" if query else ""),
            stale=keys.format(**view.path),
            late=panel.late,
        )
        try:
            values = await work(panel)
            return view.console.pages.render_block(template, name, view.values(box=box, **values))
        except (Problem, TrunklineError) as exc:
            if not isinstance(exc, Problem) or exc.status >= 500:
                log.warning("console panel %s: %s", name, exc)
            panel.late.append(f"This panel could not be read: {exc}.")
        except Exception:
            # a state of a newer version, or a mistake of ours: the rest of the page is still of use
            log.exception("console panel %s", name)
            panel.late.append("This panel failed; see the log of the server.")
        return view.console.pages.render_block("panel.html", "failed_panel", view.values(box=box, name=name))

    def _parts(self, view: View) -> list[str]:
        parts = [part for part in self._path.split("/") if part]
        return [str(view.path[part[1:].partition(":")[0]]) if part[0] == "{" else part for part in parts]


__all__ = ["SOME", "Limits", "Panel", "Panels", "View", "action", "html", "limited", "page"]
