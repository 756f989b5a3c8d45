"""Access: tokens, what each may do, sessions, and the audit log."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from trunkline.db.calls import sessions as session_calls
from trunkline.db.calls import tokens as calls
from trunkline.db.calls.tokens import Token
from trunkline.db.pool import Connection
from trunkline.errors import TrunklineError
from trunkline.server.auth import Caller
from trunkline.server.bodies import name_fault
from trunkline.server.console import copying
from trunkline.server.console.reads import access as reads
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.response import Response

_PAGE, _AUDIT = "access.html", "audit.html"
_ROWS = 100
VERBS = ("view", "read", "operate", "admin", "publish", "consume")
_MEANS = {
    "view": "names, settings and numbers",
    "read": "payloads, keys and errors too",
    "operate": "pause, resume, redrive, retry",
    "admin": "everything, also create and delete",
    "publish": "publish and enqueue",
    "consume": "claim, fetch, settle",
}
_EXPIRES = {"": "never", "1": "in 1 day", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
_GRACE = {"0": "at once", "3600": "after 1 hour", "86400": "after 1 day", "604800": "after 7 days"}
_SPLIT = re.compile(r"[\s,]+")
panels = Panels("/access", _PAGE, scope="admin", object=None)
trail = Panels("/access/audit", _AUDIT, scope="admin", object=None)


def state_of(row: Token, now: datetime) -> tuple[str, str]:
    """Return class and word of what a token is."""
    if row.revoked_at is not None:
        return "gone", "Revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "gone", "Expired"
    return "acked", "Valid"


@panels.add("tokens")
async def token_list(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Tokens", reads.TOKENS, reads.all_tokens)
    every = view.query.get("tokens") == "all"
    shown: list[dict[str, Any]] = [
        {"row": row, "state": state_of(row, view.now), "old": row.old_until is not None and row.old_until > view.now}
        for row in found or ()
    ]
    live = [each for each in shown if every or each["state"][1] == "Valid"]
    return {
        "rows": live[: _ROWS * 5],
        "count": len(live),
        "gone": len(shown) - len(live),
        "every": every,
        "known": found is not None,
    }


@panels.add("tokens")
async def rights(panel: Panel) -> Values:
    """Return what one token may do on one topic, queue or endpoint, and by which scope."""
    view = panel.view
    found = await panel.read("Tokens", reads.TOKENS, reads.all_tokens)
    name, object = view.query.get("token", ""), view.query.get("object", "").strip()
    row = next((each for each in found or () if each.name == name), None)
    rows = []
    for verb in VERBS if row else ():
        scopes = row.scopes if row else []
        by = [scope for scope in scopes if Caller("", (scope,)).may(verb, object or None)]
        rows.append((verb, _MEANS[verb], by))
    return {
        "tokens": [each.name for each in found or () if each.revoked_at is None],
        "chosen": name,
        "object": object,
        "rows": rows,
        "token": row,
        "state": state_of(row, view.now) if row else None,
        "known": found is not None,
    }


@panels.add("tokens")
async def session_list(panel: Panel) -> Values:
    found = await panel.read("Sessions", reads.SESSIONS, reads.open_sessions)
    return {"rows": (found or [])[:_ROWS], "count": len(found or ()), "known": found is not None}


@trail.add()
async def entries(panel: Panel) -> Values:
    view = panel.view
    given = {name: view.query.get(name, "").strip()[:200] for name in ("actor", "action", "object")}
    text = view.query.get("before", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    wanted = reads.Wanted(*(given[name].replace("\0", "") or None for name in ("actor", "action", "object")))
    found = await panel.read(
        "The audit log", ("audit", wanted, before), lambda conn: reads.audit(conn, wanted, before, _ROWS)
    )
    rows = found or []
    older = view.url("access", "audit", **given, before=rows[-1].audit_id) if len(rows) == _ROWS else None
    return {"rows": rows, "known": found is not None, "given": given, "older": older, "filtered": any(given.values())}


@trail.add()
async def chain(panel: Panel) -> Values:
    """Return whether the chain of hashes is whole. This reads the whole log, so only when asked."""
    view = panel.view
    if view.query.get("verify") != "1":
        return {"asked": False, "known": False, "first": None}
    found = await panel.read("The check of the chain", reads.CHAIN, reads.chain, seconds=5.0, fresh=10.0)
    return {"asked": True, "known": found is not None, "first": found[0] if found else None}


@page("/access", scope="admin", object=None)
async def access(view: View) -> Response:
    """Tokens, what each may do, and sessions."""
    return await view.page(_PAGE, panels, title="Access", nav="access", copies=copying.tokens())


@page("/access/audit", scope="admin", object=None)
async def audit(view: View) -> Response:
    """The audit log, newest first."""
    crumbs = [("Access", view.url("access")), ("Audit log", None)]
    return await view.page(_AUDIT, trail, title="Audit log", nav="access", crumbs=crumbs, copies=copying.audit())


def _crumbs(view: View, last: str) -> list[tuple[str, str | None]]:
    return [("Access", view.url("access")), (last, None)]


async def _form(view: View, fields: dict[str, str], error: str | None = None) -> Response:
    return await view.page(
        "token_new.html",
        status=400 if error else 200,
        title="New token",
        nav="access",
        crumbs=_crumbs(view, "New token"),
        fields={name: fields.get(name, "") for name in ("name", "expires", "pattern", "scopes")},
        chosen={verb for verb in VERBS if fields.get(verb)},
        verbs=[(verb, _MEANS[verb]) for verb in VERBS],
        expires=_EXPIRES,
        error=error,
    )


@page("/access/new", scope="admin", object=None)
async def new(view: View) -> Response:
    """The form of a new token."""
    return await _form(view, view.query)


@action("/access/new", scope="admin")
async def create(view: View) -> Response:
    """Create a token, and show it once."""
    fields = await view.form()
    name, pattern = fields.get("name", "").strip(), fields.get("pattern", "").strip() or "*"
    scopes = [f"{verb}:{each}" for verb in VERBS if fields.get(verb) for each in _SPLIT.split(pattern) if each]
    scopes += [each for each in _SPLIT.split(fields.get("scopes", "")) if each]
    if fault := name_fault(name):
        return await _form(view, fields, f"Name: {fault}")
    if not scopes:
        return await _form(view, fields, "Choose at least one verb, or write a scope.")
    if len(scopes) > 100:
        return await _form(view, fields, "A token has at most 100 scopes.")
    days = fields.get("expires", "")

    async def make(conn: Connection) -> str:
        expires = await calls.now(conn) + timedelta(days=int(days)) if days and days in _EXPIRES else None
        text, _ = await calls.create_token(conn, name, scopes, expires_at=expires, made_by=view.request.caller)
        return text

    try:
        text = await view.change(make, "tokens")
    except TrunklineError as exc:
        if exc.status >= 500:
            raise
        return await _form(view, fields, f"{exc}. {exc.hint or ''}".strip())
    return await _once(view, f"Token {name}", text, "New token", ", ".join(scopes))


async def _once(view: View, what: str, text: str, title: str, scopes: str) -> Response:
    return await view.page(
        "secret.html",
        title=title,
        nav="access",
        crumbs=_crumbs(view, title),
        what=what,
        secret=text,
        notes=[f"Scopes: {scopes}.", "Send it as Authorization: Bearer TOKEN, or sign in to the console with it."],
        back=("Back to tokens", view.url("access")),
    )


async def _ask(view: View, template: str, title: str, **values: Any) -> Response:
    """Show a dialog about the token that the address names; without one, a choice of tokens."""
    read = await view.console.reads.read(reads.TOKENS, reads.all_tokens)
    live = [row for row in read.value or () if row.revoked_at is None]
    row = next((row for row in live if row.name == view.query.get("token")), None)
    return await view.page(
        template,
        title=title,
        nav="access",
        crumbs=_crumbs(view, title),
        row=row,
        tokens=[each.name for each in live],
        **values,
    )


@page("/access/rotate", scope="admin", object=None)
async def ask_rotate(view: View) -> Response:
    """Say what rotating a token does."""
    return await _ask(view, "token_rotate.html", "Rotate token", graces=_GRACE)


@action("/access/tokens/{token:str}/rotate", scope="admin")
async def rotate(view: View) -> Response:
    """Give a token a new secret, and show it once."""
    name = str(view.path["token"])
    grace = (await view.form()).get("grace", "")
    span = timedelta(seconds=int(grace) if grace in _GRACE else 0)
    text, row = await view.change(lambda conn: calls.rotate_token(conn, name, grace=span), "tokens")
    return await _once(view, f"Token {name}, with a new secret", text, "Rotated token", ", ".join(row.scopes))


@page("/access/revoke", scope="admin", object=None)
async def ask_revoke(view: View) -> Response:
    """Ask whether to revoke a token."""
    return await _ask(view, "token_revoke.html", "Revoke token")


@action("/access/tokens/{token:str}/revoke", scope="admin")
async def revoke(view: View) -> Response:
    """Revoke a token whose name was typed."""
    name = str(view.path["token"])
    if (await view.form()).get("confirm") != name:
        return view.redirect(view.url("access", "revoke", token=name))
    await view.change(lambda conn: calls.revoke_token(conn, name), "tokens")
    return view.redirect(view.url("access"))


@action("/access/tokens/{token:str}/end-sessions", scope="admin")
async def end_sessions(view: View) -> Response:
    """End all sessions of a token."""
    name = str(view.path["token"])

    async def end(conn: Connection) -> None:
        for row in await calls.list_tokens(conn):
            if row.name == name:
                await session_calls.end_sessions(conn, row.token_id)

    await view.change(end, "tokens")
    return view.redirect(view.url("access"))


ROUTES = [
    access,
    *panels.routes,
    audit,
    *trail.routes,
    new,
    create,
    ask_rotate,
    rotate,
    ask_revoke,
    revoke,
    end_sessions,
]
