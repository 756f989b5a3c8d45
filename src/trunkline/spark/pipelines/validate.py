"""Validate: payloads against a JSON Schema, given or inferred. Rejects go to a topic, with the reason, exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from trunkline.errors import InvalidArgument
from trunkline.spark.pipelines import frames, spans
from trunkline.spark.pipelines.frames import Target
from trunkline.spark.pipelines.replay import CHUNK_ROWS, ORIGIN, Plan, copy, keep
from trunkline.spark.pipelines.running import Progress, Run, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REASON = "validation-error"
_REASONS = 20
_WORDS = 300


class ValidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found. `reasons`: the most frequent ones, with how many messages each."""

    topic: str
    read: int
    valid: int
    rejected: int
    published: int
    reasons: dict[str, int]
    json_schema: dict[str, Any]
    seconds: float


def validate(
    url: str,
    topic: str,
    *,
    schema: dict[str, Any] | None = None,
    rejects: str | None = None,
    id: str | None = None,
    start: spans.Place = "earliest",
    end: spans.Place = "latest",
    spark: SparkSession | None = None,
    master: str | None = None,
    told: Progress | None = None,
) -> ValidateReport:
    """Check every payload from `start` up to before `end`. Without a schema one is inferred.

    Rejects are published to the topic `rejects` once per `id` (by default the offsets), with place and reason in headers.
    """
    started = time.monotonic()
    if schema is not None:
        check_schema(schema)
    with running(url, f"validate:{topic}", "validate", spark=spark, master=master, told=told) as run:
        found = spans.spans(url, topic, start, end)
        used = schema if schema is not None else infer(run, topic, found)
        judged = _judged(frames.messages(run, topic, found), used).where("reason is not null")
        reasons = {row["reason"]: row["count"] for row in judged.groupBy("reason").count().collect()}
        rejected = sum(reasons.values())
        run.advance(spans.count(found), spans.count(found))
        published = 0
        if rejects is not None and rejected:
            published = _publish(run, topic, found, used, rejects, id)
    top = sorted(reasons.items(), key=lambda item: -item[1])[:_REASONS]
    return ValidateReport(
        topic=topic,
        read=spans.count(found),
        valid=spans.count(found) - rejected,
        rejected=rejected,
        published=published,
        reasons=dict(top),
        json_schema=used,
        seconds=round(time.monotonic() - started, 3),
    )


def check_schema(schema: dict[str, Any]) -> None:
    """`InvalidArgument` when it is no JSON Schema."""
    from jsonschema import exceptions, validators

    try:
        validators.validator_for(schema).check_schema(schema)
    except exceptions.SchemaError as exc:
        raise InvalidArgument(f"the JSON Schema is not valid: {exc.message}", hint="see https://json-schema.org") from exc


def _publish(run: Run, topic: str, found: spans.Spans, schema: dict[str, Any], rejects: str, id: str | None) -> int:
    ends = ",".join(f"{partition}:{lo}-{hi}" for partition, (lo, hi) in sorted(found.items()))
    name = f"validate:{topic}:{rejects}:{id or ends}"
    wanted = Plan(
        topic=topic,
        kind="topic",
        target=rejects,
        offsets={str(partition): span for partition, span in found.items()},
        chunk_rows=CHUNK_ROWS,
        filter=None,
        transform=None,
    )
    plan = keep(run.url, name, wanted)

    def make(frame: DataFrame) -> DataFrame:
        bad = _judged(frame, schema).where("reason is not null")
        return frames.publishable(frames.with_headers(bad, {**ORIGIN, REASON: "reason"}).drop("id"))

    return int(copy(run, plan, make, Target("topic", rejects), writer=name)["published"])


def _judged(frame: DataFrame, schema: dict[str, Any]) -> DataFrame:
    """With a column `reason`: what is wrong with the payload, null for nothing."""
    text = msgspec.json.encode(schema).decode()
    out = frame.schema.simpleString().removeprefix("struct<").removesuffix(">")

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        from jsonschema import validators

        rules = json.loads(text)
        validator = validators.validator_for(rules)(rules)
        for batch in batches:
            reasons = [_reason(validator, payload) for payload in batch.column("value").to_pylist()]
            yield batch.append_column("reason", pa.array(reasons, pa.string()))

    return frame.mapInArrow(judge, f"{_fields(out)}, reason string")


def _fields(text: str) -> str:
    """`a:int,b:string` as Spark's DDL wants it; only the commas and colons of the outermost level."""
    parts, depth, at = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append(text[at:place])
            at = place + 1
    parts.append(text[at:])
    return ", ".join(f"`{name}` {kind}" for name, _, kind in (part.partition(":") for part in parts))


def _reason(validator: Any, payload: bytes) -> str | None:
    import json

    try:
        value = json.loads(payload)
    except json.JSONDecodeError as exc:
        return f"not JSON: {exc.msg}"  # without the place: equal reasons are counted together
    except (ValueError, RecursionError) as exc:
        return f"not JSON: {type(exc).__name__}"
    error = next(validator.iter_errors(value), None)
    if error is None:
        return None
    # the rule and the place, without the value
    place = "/".join("*" if isinstance(step, int) else str(step) for step in error.absolute_path)
    expected = error.validator_value if error.validator in ("type", "required", "enum", "const") else ""
    return f"{place or '(top)'}: {error.validator} {json.dumps(expected) if expected != '' else ''}".strip()[:_WORDS]


# Inference


def infer(run: Run, topic: str, found: spans.Spans) -> dict[str, Any]:
    """The JSON Schema that all payloads fit that are JSON at all."""
    frame = frames.messages(run, topic, found, schema="value binary")

    def shapes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        merged: dict[str, Any] | None = None
        for batch in batches:
            for payload in batch.column("value").to_pylist():
                try:
                    shape = shape_of(json.loads(payload))
                except (ValueError, RecursionError):
                    continue
                merged = shape if merged is None else merge(merged, shape)
        if merged is not None:
            yield pa.RecordBatch.from_pydict({"shape": [json.dumps(merged)]})

    import json

    merged: dict[str, Any] = {}
    for row in frame.mapInArrow(shapes, "shape string").collect():
        shape = json.loads(row["shape"])
        merged = shape if not merged else merge(merged, shape)
    return merged


def shape_of(value: Any) -> dict[str, Any]:
    """The narrowest schema of one value."""
    match value:
        case None:
            return {"type": ["null"]}
        case bool():
            return {"type": ["boolean"]}
        case int():
            return {"type": ["integer"]}
        case float():
            return {"type": ["number"]}
        case str():
            return {"type": ["string"]}
        case list():
            items: dict[str, Any] = {}
            for each in value:
                items = shape_of(each) if not items else merge(items, shape_of(each))
            return {"type": ["array"], "items": items}
    fields = {name: shape_of(each) for name, each in value.items()}
    return {"type": ["object"], "properties": fields, "required": sorted(fields)}


def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The schema that takes what either takes."""
    kinds = set(one.get("type", [])) | set(other.get("type", []))
    if {"integer", "number"} <= kinds:
        kinds -= {"integer"}
    merged: dict[str, Any] = {"type": sorted(kinds)}
    if "object" in kinds:
        objects = [each for each in (one, other) if "properties" in each]
        names = sorted({name for each in objects for name in each["properties"]})
        merged["properties"] = {
            name: _merge_all([each["properties"][name] for each in objects if name in each["properties"]]) for name in names
        }
        merged["required"] = sorted(set.intersection(*(set(each["required"]) for each in objects)))
    if "array" in kinds:
        merged["items"] = _merge_all([each["items"] for each in (one, other) if each.get("items")])
    return merged


def _merge_all(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    if not shapes:
        return {}
    merged = shapes[0]
    for shape in shapes[1:]:
        merged = merge(merged, shape)
    return merged
