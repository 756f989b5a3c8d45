"""Copy-as texts: the same thing by curl, the command line, SQL, Python and as a test. Each text runs as it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from trunkline.server.console.searching import Wanted
from trunkline.types import Message

Copies = list[tuple[str, str]]
_SERVER = "http://localhost:8080"


def sql_text(value: Any) -> str:
    """Return a value as an SQL literal."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    quoted = text.replace("'", "''")
    return f"E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{quoted}'"


def curl(method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> str:
    """Return a curl command. `path`: already quoted. A token is added where the server wants one."""
    address = f"{_SERVER}{path}" + (f"?{urlencode(query)}" if query else "")
    words = ["curl"]
    if method != "GET":
        words += ["-X", method]
    words.append(shlex.quote(address))
    if body is not None:
        words += ["-d", shlex.quote(msgspec.json.encode(body).decode())]
    return " ".join(words)


def command(*words: str) -> str:
    """Return a trunkline command."""
    return " ".join(["trunkline", *(shlex.quote(word) for word in words)])


def python(*lines: str) -> str:
    """Return a program that runs these lines with a client."""
    body = "\n".join(f"        {line}" for line in lines)
    return (
        "import asyncio\nimport os\n\nimport trunkline\n\n\nasync def main() -> None:\n"
        '    async with trunkline.Client(os.environ["TRUNKLINE_DATABASE_URL"]) as mq:\n'
        f"{body}\n\n\nasyncio.run(main())"
    )


def call(function: str, *arguments: Any) -> str:
    """Return a call of a function that returns rows."""
    return f"select * from trunkline.{function}({', '.join(sql_text(value) for value in arguments)});"  # noqa: S608  quoted


def pytest_fixture(queue: str, payload: bytes, headers: Mapping[str, Any] | None = None) -> str:
    """Return a test with a message as its fixture: enqueued, and claimed again unchanged."""
    return (
        "import os\n\nimport trunkline\n\n"
        f"PAYLOAD = {payload!r}\nHEADERS = {dict(headers or {})!r}\n\n\n"
        "async def test_this_message() -> None:\n"
        '    async with trunkline.Client(os.environ["TRUNKLINE_DATABASE_URL"]) as mq:\n'
        f"        await mq.enqueue({queue!r}, PAYLOAD, headers=HEADERS or None)\n"
        f"        for delivery in await mq.claim({queue!r}):\n"
        "            assert delivery.payload == PAYLOAD\n"
        "            await mq.ack([delivery.receipt])"
    )


def stats() -> Copies:
    return [
        ("curl", curl("GET", "/v1/stats")),
        ("trunkline", command("top", "--once")),
        ("SQL", "\n".join(call(name) for name in ("topic_stats", "group_stats", "queue_stats"))),
        ("Python", python("print(await mq.stats())")),
    ]


def topics() -> Copies:
    return [
        ("curl", curl("GET", "/v1/topics")),
        ("trunkline", command("topic", "list")),
        ("SQL", call("list_topics")),
        ("Python", python("print(await mq.topics.list())")),
    ]


def message(found: Mapping[str, Any], known: Message[Any] | None) -> Copies:
    """Copies of a message page. `known`: the message, if the caller may read it."""
    id, topic, partition, offset = (found.get(name) for name in ("id", "topic", "partition", "offset"))
    if id is not None:
        copies = [
            ("curl", curl("GET", f"/v1/messages/{id}/explanation")),
            ("trunkline", command("message", "explain", str(id))),
            ("SQL", f"select trunkline.explain_message({sql_text(id)});"),
            ("Python", python("from uuid import UUID", "", f"print(await mq.explain(UUID({str(id)!r})))")),
        ]
    elif topic is not None and offset is not None:
        copies = [("SQL", f"select trunkline.explain_offset({sql_text(topic)}, {partition}, {offset});")]
    else:
        copies = stats()
    if known is not None:
        queue = next((str(row["name"]) for row in found.get("readers") or () if row["kind"] == "queue"), found.get("queue"))
        if queue is not None:
            copies.append(("pytest", pytest_fixture(str(queue), known.payload, known.headers)))
    return copies


def search(topic: str, wanted: Wanted) -> Copies:
    """Copies of a search in the message browser."""
    body: dict[str, Any] = {"selection": dict(wanted.selection), "start": wanted.start, "end": wanted.end}
    if wanted.partitions is not None:
        body["partitions"] = wanted.partitions
    places = {name: value for name, value in body.items() if name != "selection"}
    arguments = ", ".join(f"{name}={value!r}" for name, value in places.items())
    selection = msgspec.json.encode(dict(wanted.selection)).decode()
    partitions = None if wanted.partitions is None else f"{{{','.join(map(str, wanted.partitions))}}}"
    return [
        ("curl", curl("POST", f"/v1/topics/{quote(topic)}/search", body)),
        ("SQL", call("search_log", topic, selection, partitions, wanted.start, wanted.end)),
        ("Python", python(f"print(await mq.topics.search({topic!r}, {dict(wanted.selection)!r}, {arguments}))")),
    ]


def groups() -> Copies:
    return [("SQL", call("group_stats")), ("Python", python("print(await mq.groups.stats())"))]


def group(topic: str, name: str) -> Copies:
    return [
        ("trunkline", command("group", "show", topic, name)),
        ("SQL", f"{call('group_stats', topic, name)}\n{call('list_members', topic, name)}"),
        ("Python", python(f"print(await mq.groups.stats({topic!r}, {name!r}))")),
    ]


def seek(topic: str, name: str, to: str, partition: int | None) -> Copies:
    where = "" if partition is None else f", partition={partition}"
    return [
        ("SQL", call("seek", topic, name, to, partition)),
        ("Python", python(f"print(await mq.groups.seek({topic!r}, {name!r}, {to!r}{where}))")),
    ]


def topic(name: str) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/topics/{quote(name)}")),
        ("trunkline", command("topic", "show", name)),
        ("SQL", f"{call('get_topic', name)}\n{call('topic_stats', name)}\n{call('group_stats', name)}"),
        ("Python", python(f"print(await mq.topics.get({name!r}))")),
    ]


def endpoints() -> Copies:
    return [
        ("curl", curl("GET", "/v1/endpoints")),
        ("trunkline", command("endpoint", "list")),
        ("SQL", f"{call('list_endpoints')}\n{call('endpoint_stats')}"),
        ("Python", python("print(await mq.endpoints.list())")),
    ]


def endpoint(name: str) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/endpoints/{quote(name)}/attempts")),
        ("trunkline", command("endpoint", "attempts", name)),
        ("SQL", f"{call('list_attempts', name)}\n{call('list_endpoint_events', name)}"),
        ("Python", python(f"print(await mq.endpoints.attempts({name!r}))")),
    ]


def rotate_secret(name: str) -> Copies:
    return [
        ("curl", curl("POST", f"/v1/endpoints/{quote(name)}/rotate")),
        ("trunkline", command("endpoint", "rotate", name)),
        ("SQL", call("rotate_secret", name)),
        ("Python", python(f"print(await mq.endpoints.rotate({name!r}))")),
    ]


def schedules() -> Copies:
    return [
        ("curl", curl("GET", "/v1/schedules")),
        ("trunkline", command("schedule", "list")),
        ("SQL", call("list_schedules")),
        ("Python", python("print(await mq.schedules.list())")),
    ]


def schedule(name: str) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/schedules/{quote(name)}/fires")),
        ("trunkline", command("schedule", "show", name)),
        ("SQL", call("list_fires", name)),
        ("Python", python("print(await mq.schedules.list())")),
    ]


def pipelines() -> Copies:
    return [
        ("curl", curl("GET", "/v1/pipelines")),
        ("trunkline", command("pipeline", "list")),
        ("SQL", f"{call('list_pipelines')}\n{call('archive_stats')}"),
    ]


def pipeline(name: str) -> Copies:
    return [
        ("curl", curl("GET", "/v1/pipeline-progress", query={"name": name})),
        ("trunkline", command("pipeline", "show", name)),
        ("SQL", call("list_progress", name)),
    ]


def system() -> Copies:
    return [
        ("curl", f"{curl('GET', '/v1/doctor')}\n{curl('GET', '/v1/upkeep')}"),
        ("trunkline", command("doctor")),
        ("SQL", "\n".join(call(name) for name in ("upkeep_stats", "list_alerts", "list_sizes"))),
    ]


def tokens() -> Copies:
    return [("curl", curl("GET", "/v1/tokens")), ("trunkline", command("token", "list"))]


def audit() -> Copies:
    return [("curl", f"{curl('GET', '/v1/audit')}\n{curl('GET', '/v1/audit/verification')}")]


def queues() -> Copies:
    return [
        ("curl", curl("GET", "/v1/queues")),
        ("trunkline", command("queue", "list")),
        ("SQL", f"{call('list_queues')}\n{call('queue_stats')}"),
        ("Python", python("print(await mq.queues.list())")),
    ]


def queue(name: str) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/queues/{quote(name)}")),
        ("trunkline", command("queue", "show", name)),
        ("SQL", f"{call('get_queue', name)}\n{call('queue_stats', name)}"),
        ("Python", python(f"print(await mq.queues.get({name!r}))")),
    ]


def enqueue(name: str) -> Copies:
    return [
        ("SQL", f"select trunkline.enqueue({sql_text(name)}, '{{}}');"),
        ("Python", python(f"print(await mq.enqueue({name!r}, {{}}))")),
    ]


def dead_groups(queue: str | None) -> Copies:
    return [
        ("curl", curl("GET", "/v1/dead-groups", query={"queue": queue} if queue else None)),
        ("SQL", call("dead_groups", queue)),
        ("Python", python(f"print(await mq.dead.groups({queue!r}))")),
    ]


def dead_group(queue: str, fingerprint: str) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/queues/{quote(queue)}/dead-groups/{quote(fingerprint, safe='')}")),
        ("SQL", call("dead_spread", queue, fingerprint)),
        ("Python", python(f"print(await mq.dead.spread({queue!r}, {fingerprint!r}))")),
    ]


def dead_letter(queue: str, id: str, payload: bytes | None, headers: Mapping[str, Any] | None) -> Copies:
    copies = [
        ("curl", curl("GET", f"/v1/queues/{quote(queue)}/dead-letters/{id}")),
        ("trunkline", command("dead", "show", queue, id)),
        ("SQL", call("get_dead_letter", queue, id)),
    ]
    return [*copies, ("pytest", pytest_fixture(queue, payload, headers))] if payload is not None else copies


def run(kind: str, selector: Mapping[str, Any], expected: int, options: Mapping[str, Any]) -> Copies:
    """A run that is about to be started."""
    body = {"kind": kind, "selector": selector, "expected": expected, "options": options}
    told = [msgspec.json.encode(value).decode() for value in (selector, options)]
    return [
        ("curl", curl("POST", "/v1/runs", body)),
        (
            "SQL",
            f"select trunkline.start_run({sql_text(kind)}, {sql_text(told[0])}, {expected}, {sql_text(told[1])});",
        ),
        (
            "Python",
            python(f"await mq.runs.start({kind!r}, {dict(selector)!r}, expected={expected}, options={dict(options)!r})"),
        ),
    ]


def runs() -> Copies:
    return [
        ("curl", curl("GET", "/v1/runs")),
        ("SQL", call("list_runs")),
        ("Python", python("print(await mq.runs.list())")),
    ]


def one_run(number: int) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/runs/{number}")),
        ("SQL", call("get_run", number)),
        ("Python", python(f"print(await mq.runs.get({number}))")),
    ]


def jobs() -> Copies:
    return [
        ("curl", curl("GET", "/v1/jobs")),
        ("trunkline", command("job", "list")),
        ("SQL", call("list_jobs")),
    ]


def job(id: str) -> Copies:
    return [
        ("curl", curl("GET", f"/v1/jobs/{id}")),
        ("trunkline", command("job", "show", id)),
        ("SQL", call("get_job", id)),
    ]


def workers() -> Copies:
    return [
        ("curl", curl("GET", "/v1/workers")),
        ("trunkline", command("worker", "list")),
        ("SQL", "select * from trunkline.list_workers('1 minute');"),
    ]


def limits() -> Copies:
    return [
        ("curl", curl("GET", "/v1/limits")),
        ("trunkline", command("worker", "limits")),
        ("SQL", call("list_limits")),
    ]
