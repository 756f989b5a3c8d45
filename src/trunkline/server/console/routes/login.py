"""Sign in and out, and how the pages look."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.server.auth import SOME, Caller, credential_of
from trunkline.server.console.sessions import LASTS
from trunkline.server.console.web import View, action, check_origin, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response

_ERRORS = {
    "unauthenticated": "This token is not known.",
    "token_revoked": "This token was revoked.",  # nosec B105: a message
    "token_expired": "This token has expired.",  # nosec B105: a message
}
_LOOKS = {"theme": ("light", "dark", ""), "rows": ("compact", ""), "zone": ("local", "")}
_YEAR = 365 * 86400


def _own_path(view: View, address: str | None) -> str:
    """Return an address of this console, so that no link can send visitors elsewhere through us."""
    if (
        address
        and (address == view.base or address.startswith((f"{view.base}/", f"{view.base}?")))
        and address.isprintable()
    ):
        return address if "\\" not in address and "//" not in address else view.base
    return view.base


def _cookie(view: View, name: str, value: str, *, seconds: int, secret: bool = False) -> str:
    whole = view.console.secure and secret
    parts = [f"{name}={value}", f"Path={'/' if whole else view.base}", f"Max-Age={seconds}", "SameSite=Strict"]
    return "; ".join([*parts, *(["HttpOnly"] if secret else []), *(["Secure"] if view.console.secure else [])])


def _session_cookie(view: View, secret: str, seconds: int) -> Mapping[str, str]:
    return {"set-cookie": _cookie(view, view.console.sessions.cookie, secret, seconds=seconds, secret=True)}


@page("/login", scope="public", object=None)
async def form(view: View) -> Response:
    """Show the form to sign in."""
    if view.open:
        return view.redirect(view.base)
    return view.render("login.html", next=_own_path(view, view.query.get("next")), error=None)


def _portal_of(caller: Caller) -> str | None:
    """Return the endpoint whose portal a token is for."""
    return next((entry[7:] for entry in caller.scopes or () if entry.startswith("portal:")), None)


@action("/login", scope="public", audit=False)
async def sign_in(view: View) -> Response:
    """Check a token and open a session for it."""
    scope = view.request.scope
    fields = await view.form()
    address = (scope.get("client") or ("", 0))[0]
    target = _own_path(view, fields.get("next"))
    credential = credential_of(fields.get("token", "").strip())
    try:
        view.console.sessions.limit_tries(address)
        caller = await view.request.service.auth.authenticate(scope, credential)
    except Problem as exc:
        error = _ERRORS.get(exc.error, "Too many tries. Wait a minute." if exc.status == 429 else exc.detail)
        return view.render("login.html", status=exc.status, next=target, error=error)
    portal = _portal_of(caller)
    if portal is not None and not caller.may("view", SOME):
        target = view.url("endpoints", portal)
    elif not caller.may("view", SOME):
        error = "This token may not look at anything: it needs a scope view, read, operate or admin."
        return view.render("login.html", status=403, next=target, error=error)
    agent = view.request.header("user-agent")
    secret = await view.console.sessions.open(credential, address=address or None, agent=agent)
    scope["trunkline_caller"] = caller  # type: ignore[typeddict-unknown-key]
    await view.request.audit(caller.name)
    return view.redirect(target, _session_cookie(view, secret, int(LASTS.total_seconds())))


async def _sign_out(view: View, *, everywhere: bool) -> Response:
    secret = view.console.sessions.secret(view.request.scope)
    if secret is not None:
        await view.console.sessions.end(secret, everywhere=everywhere)
    return view.redirect(f"{view.base}/login", _session_cookie(view, "", 0))


@action("/logout", scope="view", object=SOME, audit=False, portal=True)
async def sign_out(view: View) -> Response:
    """End this session."""
    return await _sign_out(view, everywhere=False)


@action("/logout/everywhere", scope="view", object=SOME, audit=False, portal=True)
async def sign_out_everywhere(view: View) -> Response:
    """End all sessions of this session's token."""
    return await _sign_out(view, everywhere=True)


@action("/look", scope="public", audit=False)
async def look(view: View) -> Response:
    """Choose theme, row height or time zone; kept in cookies."""
    await check_origin(view)
    fields = await view.form()
    chosen = [(name, fields[name]) for name, values in _LOOKS.items() if fields.get(name) in values]
    if not chosen:
        raise Problem(400, "bad_form", "choose a theme, a row height or a time zone")
    name, value = chosen[0]
    cookie = _cookie(view, f"tl-{name}", value, seconds=_YEAR if value else 0)
    return view.redirect(_own_path(view, fields.get("back")), {"set-cookie": cookie})


ROUTES = [form, sign_in, sign_out, sign_out_everywhere, look]
