"""Generate docs/reference/python.md from signatures and docstrings: `python tools/docs_python.py`, or `--check`."""

from __future__ import annotations

import inspect
import re
import sys
from datetime import timedelta
from typing import Any, ForwardRef

import msgspec
from docs_pages import settle

from trunkline import messaging, resources, types
from trunkline.client.batches import Batch
from trunkline.client.claims import Claims
from trunkline.client.client import Client, QueueHandle
from trunkline.client.connection_client import ConnectionClient
from trunkline.client.dead_letters import DeadLetters
from trunkline.client.deliveries import Deliveries, Delivery
from trunkline.client.endpoints import Endpoints
from trunkline.client.group_reader import GroupReader
from trunkline.client.groups import Groups
from trunkline.client.queues import Queues
from trunkline.client.runs import Runs
from trunkline.client.schedules import Schedules
from trunkline.client.subscriptions import Subscriptions
from trunkline.client.topics import Topics
from trunkline.jobs.app import App
from trunkline.jobs.backoff import Backoff
from trunkline.jobs.context import Context
from trunkline.jobs.handle import Handle
from trunkline.jobs.job import Job
from trunkline.jobs.limits import Limit
from trunkline.jobs.worker import Worker

SECTIONS: tuple[tuple[type[Any], str, str], ...] = (
    (Client, "Client", "client"),
    (Topics, "client.topics", "client.topics"),
    (Queues, "client.queues", "client.queues"),
    (Groups, "client.groups", "client.groups"),
    (Subscriptions, "client.subscriptions", "client.subscriptions"),
    (DeadLetters, "client.dead", "client.dead"),
    (Runs, "client.runs", "client.runs"),
    (Schedules, "client.schedules", "client.schedules"),
    (Endpoints, "client.endpoints", "client.endpoints"),
    (QueueHandle, "client.queue(name)", "queue"),
    (Claims, "Claims", "claims"),
    (Deliveries, "Deliveries", "deliveries"),
    (Delivery, "Delivery", "delivery"),
    (GroupReader, "GroupReader", "reader"),
    (Batch, "Batch", "batch"),
    (ConnectionClient, "client.on(conn)", "client.on(conn)"),
    (App, "jobs.App", "app"),
    (Job, "jobs.Job", "job"),
    (Handle, "jobs.Handle", "handle"),
    (Context, "jobs.Context", "ctx"),
    (Worker, "jobs.Worker", "worker"),
    (Limit, "jobs.Limit", "limit"),
    (Backoff, "jobs.Backoff", "backoff"),
)
RECORDS = (
    "NewMessage",
    "Published",
    "Message",
    "Delivery",
    "ReadyMessage",
    "DeadLetter",
    "DeadGroup",
    "DeadShare",
    "Run",
    "RunPreview",
    "RunFailure",
    "RunEvent",
    "Range",
    "Topic",
    "Queue",
    "Group",
    "Subscription",
    "Reader",
    "Schedule",
    "Endpoint",
    "NewEndpoint",
    "Attempt",
    "TopicStats",
    "GroupStats",
    "QueueStats",
    "Stats",
)
_WRAP = 100
INTRO = """\
# Python reference

<!-- Written by tools/docs_python.py from src/trunkline/client; change those files, not this one. -->

`from trunkline import Client, SyncClient, NewMessage, LeaseLost`. `SyncClient` has the same methods without
`await`; use `with` and `for` instead of `async with` and `async for`. Durations are a `timedelta` or text such as
`500ms`, `30s`, `5m`, `2h`, `7d`. A position is `"earliest"`, `"latest"`, an offset or a time. Methods that settle
deliveries return `done`, `lost` or `unknown`. Errors: [errors](errors.md).

Text, numbers, lists, dictionaries, None, dataclasses, msgspec Structs and Pydantic models are sent as JSON, bytes
unchanged. `type=` decodes bodies into a type.
"""


def page() -> str:
    out = INTRO.splitlines()
    for cls, title, prefix in SECTIONS:
        out += ["", f"## {title}", "", *_described(cls)]
        if cls in (Client, App, Worker, Limit, Backoff):
            out += ["", "```text", _signature(cls.__name__, cls.__init__, ""), "```"]
        for name, member in _members(cls):
            out += ["", f"### {prefix}.{name}", ""]
            if isinstance(member, property):
                returns = _annotation(inspect.signature(member.fget).return_annotation)  # type: ignore[arg-type]
                out += ["```text", f"{name}: {returns}", "```"]
                doc = inspect.getdoc(member)
            else:
                out += ["```text", _signature(name, member, _way(member)), "```"]
                doc = inspect.getdoc(member)
            if doc:
                out += ["", doc]
    out += _settings()
    out += ["", "## Records", "", "Frozen. In `trunkline.types`."]
    for name in RECORDS:
        cls = getattr(types, name)
        described = _described(cls)
        out += ["", f"### {name}", "", *described, *([""] if described else []), "```text"]
        hints = {
            field: hint for base in reversed(cls.__mro__) for field, hint in getattr(base, "__annotations__", {}).items()
        }
        for field in msgspec.structs.fields(cls):
            if not field.name.startswith("_"):
                default = "" if field.required else f" = {field.default!r}"
                out.append(f"{field.name}: {_annotation(hints[field.name])}{default}")
        if issubclass(cls, types.Message):
            out.append("body: T  (the payload, decoded)")
        out.append("```")
    return "\n".join(out) + "\n"


def _described(cls: type[Any]) -> list[str]:
    doc = (cls.__doc__ or "").strip()
    return [inspect.cleandoc(doc)] if doc and not doc.startswith("`client.") else []


def _members(cls: type[Any]) -> list[tuple[str, Any]]:
    """Return the public methods and properties of a class and its bases in this package, in source order."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(("trunkline.client", "trunkline.jobs")):
            found.update((name, value) for name, value in vars(base).items() if not name.startswith("_"))
    return [(name, value) for name, value in found.items() if inspect.isfunction(value) or isinstance(value, property)]


def _way(function: Any) -> str:
    """Return the prefix that shows the usage: awaited, as a context manager, or in a loop."""
    inner = inspect.unwrap(function)
    if inner is not function and inspect.isasyncgenfunction(inner):
        return "async with "
    if inspect.isasyncgenfunction(function):
        return "async for ... in "
    return "await " if inspect.iscoroutinefunction(function) else ""


def _signature(name: str, function: Any, way: str) -> str:
    signature = inspect.signature(function)
    parts = []
    keywords = False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD and (options := _options(parameter.annotation)):
            parts += ["*"] * (not keywords) + options
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parts.append("*")
            keywords = True
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        hint = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        parts.append(f"{parameter.name}{hint}{default}")
    returns = "" if signature.return_annotation is signature.empty else f" -> {_annotation(signature.return_annotation)}"
    if name == "Client":
        returns = ""
    line = f"{way}{name}({', '.join(parts)}){returns}"
    if len(line) <= _WRAP:
        return line
    return f"{way}{name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"


def _options(annotation: Any) -> list[str]:
    """Return the keywords of `**options: Unpack[Declared]`."""
    match = re.fullmatch(r"Unpack\[(\w+)\]", annotation) if isinstance(annotation, str) else None
    if match is None:
        return []
    declared = getattr(messaging, match[1])
    types = {name: _declared_type(hint) for name, hint in declared.__annotations__.items()}
    return [
        f"{name}: {text} = None" if text.endswith(("None", "Any", "PerBody")) else f"{name}: {text}"
        for name, text in types.items()
    ]


def _declared_type(hint: ForwardRef) -> str:
    return re.sub(r"^Annotated\[\s*([^,]+),.*", r"\1", hint.__forward_arg__, flags=re.DOTALL)


def _settings() -> list[str]:
    """Return tables of the declared settings."""
    out = [
        "",
        "## Settings",
        "",
        "The command line and HTTP have the same settings.",
    ]
    for title, declared in (("topic", resources.TopicSettings), ("queue", resources.NewQueueSettings)):
        out += ["", f"### Settings of a {title}", "", "| setting | default | meaning |", "|---|---|---|"]
        for field in resources.fields(declared):
            default = f"`{field.setting.default}`" if field.setting.default else ""
            out.append(f"| `{field.name}` | {default} | {field.setting.help} |")
    return out


def _annotation(hint: Any) -> str:
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    text = re.sub(r"\b(builtins|datetime|trunkline\.types|uuid|typing)\.(?=\w)", "", text)
    return re.sub(r"^AsyncIterator\[(.*)\]$", r"\1", text)


def _default(value: Any) -> str:
    return repr(f"{value.total_seconds():g}s") if isinstance(value, timedelta) else repr(value)


if __name__ == "__main__":
    sys.exit(settle("python.md", page(), sys.argv[1:]))
