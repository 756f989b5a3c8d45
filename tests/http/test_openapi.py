"""The OpenAPI document is accurate: generated calls get no 5xx and no undeclared response."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.servers import HttpServer, serving
from trunkline.server.app import create_app
from trunkline.server.config import COMPAT_APIS, Config
from trunkline.server.openapi import build, routes

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
NAMES = ("topic", "queue", "group", "id", "topic_id", "queue_id", "name", "subscription", "schedule", "group_id", "member")
APIS = (None, *COMPAT_APIS)
SEED = os.environ.get("TRUNKLINE_HTTP_SEED", "1")
CALLS = int(os.environ.get("TRUNKLINE_HTTP_CALLS", "500"))


@pytest.mark.parametrize("api", APIS)
def test_every_route_is_in_the_document(api: str | None) -> None:
    app = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    document = build(app, api)
    served = {(re.sub(r":\w+\}", "}", path), method.lower()) for path, method, _ in routes(app, api)}
    assert len(served) >= 8
    declared = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert served == declared
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"].endswith("."), (method, path)
            assert set(re.findall(r"\{(\w+)\}", path)) == {
                parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
            }


@pytest.mark.parametrize("api", APIS)
def test_every_reference_is_there(server: HttpServer, api: str | None) -> None:
    root = "" if api is None else f"/compat/{api}"
    text = httpx.get(f"{server.url}{root}/openapi.json").text
    document = json.loads(text)
    assert (document["openapi"], document["servers"]) == ("3.1.0", [{"url": root or "/"}])
    for name in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert name in document["components"]["schemas"]


def with_names(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with names of things that are there among those to try."""

    def known(schema: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["0", "1"]}, {"enum": ["0", "1"]}, schema]}

    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["name"] in NAMES and parameter["in"] != "header":
                    parameter["schema"] = known(parameter["schema"])
    for component in document["components"]["schemas"].values():
        for name, schema in component.get("properties", {}).items():
            if name in NAMES and schema.get("format") != "uuid":
                component["properties"][name] = known(schema)
    return document


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("api", APIS)
def test_generated_calls(db: str, tmp_path: Path, api: str | None) -> None:
    """TRUNKLINE_HTTP_CALLS=20000 for the long run."""
    root = "" if api is None else f"/compat/{api}"
    with serving(db, "--max-wait", "0.02") as server:
        for noun in ("topics", "queues"):
            for name in ("0", "1"):
                assert httpx.post(f"{server.url}/v1/{noun}?ensure=true", json={"name": name}).status_code == 201
        document = with_names(httpx.get(f"{server.url}{root}/openapi.json").json())
        operations = sum(len(methods) for methods in document["paths"].values())
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", f"{server.url}{root}",
                "--checks", CHECKS, "--exclude-path-regex", "/events$", "--max-examples", str(-(-CALLS // operations)),
                "--phases", "coverage,fuzzing" if CALLS > 1000 else "fuzzing", "--mode", "all", "--seed", SEED, "--no-color",
                "--max-failures", "20", "--suppress-health-check", "all", "--request-timeout", "30", "--warnings", "off",
                "--generation-database", "none",
            ],
            capture_output=True, text=True, cwd=tmp_path, timeout=3500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:] + server.log.read_text()[-3000:]
        # what the server counted: as many as asked for, and none failed
        counts = re.findall(
            r'^http_request_duration_seconds_count\{code="(\d+)".* (\S+)$', httpx.get(f"{server.url}/metrics").text, re.M
        )
        calls = sum(float(count) for _, count in counts)
        failed = sum(float(count) for code, count in counts if code.startswith("5"))
        print(re.findall(r"Test cases:\n(.*)", done.stdout), f"{calls:.0f} calls, {failed:.0f} with 5xx")
        assert failed == 0
        assert CALLS <= 1000 or calls >= CALLS


def test_lists_return_data_and_next(http: httpx.Client) -> None:
    """Every list of the native API, found by its parameter `limit`; `next` is there if the list has pages."""
    document = http.get("/openapi.json").json()
    lists = {}
    for path, methods in document["paths"].items():
        names = {each["name"] for each in methods.get("get", {}).get("parameters", ())}
        if "limit" in names and path != "/v1/next-runs" and not path.endswith("/events"):
            [shape] = [
                content["schema"]
                for status, found in methods["get"]["responses"].items()
                if status == "200"
                for content in found["content"].values()
            ]
            fields = document["components"]["schemas"][shape["$ref"].rpartition("/")[2]]["properties"]
            lists[path] = set(fields)
            assert "data" in fields, path
            assert set(fields) <= {"data", "limit", "offset", "next"}, path
            if names & {"offset", "after", "start"}:
                assert "next" in fields, path
    assert len(lists) >= 9
