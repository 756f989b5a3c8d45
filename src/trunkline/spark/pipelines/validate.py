"""Validate payloads against a given or inferred JSON Schema. Rejects can be published to a topic, exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from trunkline.errors import InvalidArgument
from trunkline.spark.archive import positions
from trunkline.spark.pipelines import frames
from trunkline.spark.pipelines.frames import Target
from trunkline.spark.pipelines.replay import CHUNK_ROWS, ORIGIN, Plan, copy, keep, topic_number
from trunkline.spark.run import Progress, Run, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REASON = "validation-error"
_REASONS = 20
_MAX_REASON = 300


class ValidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run. `reasons` has the most frequent reasons with their message counts."""

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
    start: positions.Position = "earliest",
    end: positions.Position = "latest",
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> ValidateReport:
    """Validate every payload from `start` to `end` (exclusive). Without a schema, one is inferred.

    Rejects are published to the topic `rejects` once per `id` (default: the offsets), with position and reason in
    headers.
    """
    started = time.monotonic()
    if schema is not None:
        check_schema(schema)
    with running(url, f"validate:{topic}", "validate", spark=spark, master=master, on_progress=on_progress) as run:
        target = None if rejects is None else Target("topic", rejects)
        if target is not None:
            target.check(url)
        spans = positions.spans(url, topic, start, end)
        used = schema if schema is not None else infer(run, topic, spans)
        judged = _judged(frames.messages(run, topic, spans), used).where("reason is not null")
        reasons = {row["reason"]: row["count"] for row in judged.groupBy("reason").count().collect()}
        rejected = sum(reasons.values())
        run.advance(positions.count(spans), positions.count(spans))
        published = 0
        if target is not None and rejected:
            published = _publish(run, topic, spans, used, target, id)
    top = sorted(reasons.items(), key=lambda item: -item[1])[:_REASONS]
    return ValidateReport(
        topic=topic,
        read=positions.count(spans),
        valid=positions.count(spans) - rejected,
        rejected=rejected,
        published=published,
        reasons=dict(top),
        json_schema=used,
        seconds=round(time.monotonic() - started, 3),
    )


def check_schema(schema: dict[str, Any]) -> None:
    """Raise `InvalidArgument` if this is not a valid JSON Schema."""
    from jsonschema import exceptions, validators

    try:
        validators.validator_for(schema).check_schema(schema)
    except exceptions.SchemaError as exc:
        raise InvalidArgument(f"the JSON Schema is not valid: {exc.message}", hint="See https://json-schema.org") from exc


def _validator(schema: dict[str, Any]) -> Any:
    """Return a validator that resolves references within the schema and to the standard ones, and downloads none."""
    from jsonschema import validators
    from jsonschema_specifications import REGISTRY

    return validators.validator_for(schema)(schema, registry=REGISTRY)


def _publish(run: Run, topic: str, spans: positions.Spans, schema: dict[str, Any], target: Target, id: str | None) -> int:
    name = f"validate:{topic}:{target.name}:{id or positions.digest(spans)}"
    requested = Plan(
        topic=topic,
        kind=target.kind,
        target=target.name,
        offsets={str(partition): span for partition, span in spans.items()},
        chunk_rows=CHUNK_ROWS,
        filter=None,
        transform=None,
        topic_id=topic_number(run.url, topic),
        target_id=target.number(run.url),
    )
    plan = keep(run.url, name, requested)

    def make(frame: DataFrame) -> DataFrame:
        bad = _judged(frame, schema).where("reason is not null")
        return frames.publishable(frames.with_headers(bad, {**ORIGIN, REASON: "reason"}).drop("id"))

    return int(copy(run, plan, make, target, writer=name)["published"])


def _judged(frame: DataFrame, schema: dict[str, Any]) -> DataFrame:
    """Add a column `reason`: the first error of the payload, null if it is valid."""
    from pyspark.sql.types import StringType, StructField, StructType

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        validator = _validator(schema)
        for batch in batches:
            reasons = [_reason(validator, payload) for payload in batch.column("value").to_pylist()]
            yield batch.append_column("reason", pa.array(reasons, pa.string()))

    return frame.mapInArrow(judge, StructType([*frame.schema.fields, StructField("reason", StringType())]))


def _reason(validator: Any, payload: bytes) -> str | None:
    from referencing.exceptions import Unresolvable

    try:
        value = json.loads(payload)
    except json.JSONDecodeError as exc:
        return f"not JSON: {exc.msg}"  # Without the position, so that equal reasons are counted together.
    except (ValueError, RecursionError) as exc:
        return f"not JSON: {type(exc).__name__}"
    try:
        error = next(validator.iter_errors(value), None)
    except Unresolvable as exc:
        raise InvalidArgument(
            f"the JSON Schema refers to {exc.ref!r}, which is not part of it",
            hint="Put it below $defs: schemas are not downloaded.",
        ) from None
    except RecursionError:
        return "nested too deeply for the JSON Schema"
    if error is None:
        return None
    # The rule and the path, without the value.
    path = "/".join("*" if isinstance(step, int) else str(step) for step in error.absolute_path)
    expected = error.validator_value if error.validator in ("type", "required", "enum", "const") else ""
    return f"{path or '(top)'}: {error.validator} {json.dumps(expected) if expected != '' else ''}".strip()[:_MAX_REASON]


# Inference


def infer(run: Run, topic: str, spans: positions.Spans) -> dict[str, Any]:
    """Infer a JSON Schema that all payloads match; payloads that are not JSON are ignored."""
    frame = frames.messages(run, topic, spans, schema="value binary")

    def shapes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        merged: dict[str, Any] = {}
        for batch in batches:
            for payload in batch.column("value").to_pylist():
                with suppress(ValueError, RecursionError):
                    merged = merge(merged, shape_of(json.loads(payload)))
        if merged:
            yield pa.RecordBatch.from_pydict({"shape": [json.dumps(merged)]})

    merged: dict[str, Any] = {}
    for row in frame.mapInArrow(shapes, "shape string").collect():
        merged = merge(merged, json.loads(row["shape"]))
    return merged


def shape_of(value: Any) -> dict[str, Any]:
    """Return the narrowest schema of one value."""
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
                items = merge(items, shape_of(each))
            return {"type": ["array"], "items": items}
    fields = {name: shape_of(each) for name, each in value.items()}
    return {"type": ["object"], "properties": fields, "required": sorted(fields)}


def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts the values of both. An empty schema stands for no values yet."""
    if not one or not other:
        return one or other
    kinds = {*one["type"], *other["type"]}
    if {"integer", "number"} <= kinds:
        kinds -= {"integer"}
    merged: dict[str, Any] = {"type": sorted(kinds)}
    if "object" in kinds:
        left, right = one.get("properties", {}), other.get("properties", {})
        merged["properties"] = {name: merge(left.get(name, {}), right.get(name, {})) for name in sorted({*left, *right})}
        objects = [each for each in (one, other) if "properties" in each]
        merged["required"] = sorted(set.intersection(*(set(each["required"]) for each in objects)))
    if "array" in kinds:
        merged["items"] = merge(one.get("items", {}), other.get("items", {}))
    return merged
