"""Options: Kafka's names in any case, a word for each mistake, and no password in sight."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trunkline.errors import InvalidOption
from trunkline.spark.options import ReadOptions, Secret, WriteOptions

URL = "postgresql://me:hunter2@db.example/x"


def read(**options: Any) -> ReadOptions:
    return ReadOptions.parse({"url": URL, "subscribe": "t", **options})


def test_kafkas_options_in_any_case() -> None:
    found = read(
        STARTINGoffsets="earliest",
        maxoffsetspertrigger="10",
        failOnDataLoss="False",
        includeheaders="true",
        minPartitions="4",
    )
    assert (found.starting, found.max_offsets_per_trigger, found.fail_on_data_loss) == ("earliest", 10, False)
    assert (found.include_headers, found.min_partitions, found.subscribe) == (True, 4, ("t",))
    assert read(startingTimestamp="1700000000000").starting_time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert read(**{"kafka.group.id": "g"}).group == "g"
    assert read(maxTriggerDelay="5m").max_trigger_delay == timedelta(minutes=5)
    assert ReadOptions.parse({"url": URL, "assign": '{"t": [0, 2]}'}).assign == {"t": [0, 2]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "Did you mean startingOffsets"),
        ({"topic": "t"}, "does not apply to a read"),
        ({"kafka.bootstrap.servers": "x"}, "specific to Kafka"),
        ({"path": "t"}, "Name the topic by the option subscribe"),
        ({"colour": "red"}, "there is no option colour"),
        ({"subscribePattern": "t.*"}, "more than one of them"),
        ({"subscribe": ""}, "subscribe is empty"),
        ({"subscribe": "a,,b"}, "empty or repeated"),
        ({"subscribe": "a,a"}, "empty or repeated"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"minPartitions": "1000000000"}, "minPartitions"),
        ({"maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "{"}, "startingOffsets"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": "7"}, "startingOffsetsByTimestamp"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"tier": "warm"}, "auto or live or archive"),
        ({"table": "topics"}, "table"),
        ({"startingTimestamp": "2026-01-01"}, "milliseconds since 1970"),
        ({"queue": "q"}, "queue needs the option table"),
        (
            {"kafka.security.protocol": "SSL", "kafka.sasl.mechanism": "x"},
            "options kafka.sasl.mechanism, kafka.security.pro",
        ),
        (
            {"groupIdPrefix": "g", "fetchOffset.numRetries": "3"},
            "options fetchOffset.numRetries, groupIdPrefix are specific to Kafka",
        ),
        ({"groupId": "a", "group": "b"}, "given twice"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above maxOffsetsPerTrigger"),
        ({"url": "jdbc:postgresql://h/d"}, "JDBC"),
        ({"url": "postgresql://h/d?socketFactory=x&password=hunter2"}, "not a Postgres connection string"),
        ({"url": ""}, "url is empty"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        read(**options)
    assert "hunter2" not in str(caught.value)
    assert caught.value.code == "invalid_option"


def test_nothing_to_read_and_two_assignments() -> None:
    with pytest.raises(InvalidOption, match="none of them is given"):
        ReadOptions.parse({"url": URL})
    with pytest.raises(InvalidOption, match="subscribePattern is not a regular expression"):
        ReadOptions.parse({"url": URL, "subscribePattern": "("})
    with pytest.raises(InvalidOption, match="assign"):
        ReadOptions.parse({"url": URL, "assign": '{"t": "0"}'})
    with pytest.raises(InvalidOption, match="queue is missing"):
        ReadOptions.parse({"url": URL, "table": "dead_letters"})


def test_writes() -> None:
    found = WriteOptions.parse({"url": URL, "queue": "q", "txnAppId": "a", "txnVersion": "3", "checkpointLocation": "/x"})
    assert (found.target, found.app_id, found.version) == ("queue:q", "a", 3)
    for options, said in [
        ({"topic": "t", "queue": "q"}, "topic and queue cannot both be set"),
        ({"txnAppId": "a"}, "must be set together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion"),
        ({"txnAppId": "once:a", "txnVersion": "1"}, "begins with once:, which is reserved"),
        ({"txnAppId": "query:a", "txnVersion": "1"}, "begins with query:, which is reserved"),
        ({"txnAppId": "replay:a", "txnVersion": "1"}, "begins with replay:, which is reserved"),
        ({"txnAppId": "compact:a", "txnVersion": "1"}, "begins with compact:, which is reserved"),
        ({"txnAppId": "validate:a", "txnVersion": "1"}, "begins with validate:, which is reserved"),
        ({"pipelineWriter": "nightly", "txnVersion": "1"}, "pipelineWriter is reserved for pipelines"),
        ({"pipelineWriter": "replay:a"}, "must be set together"),
        ({"subscribe": "t"}, "does not apply to a write"),
        ({"topik": "t"}, "Did you mean topic"),
    ]:
        with pytest.raises(InvalidOption, match=said):
            WriteOptions.parse({"url": URL, **options})


def test_a_pipeline_names_its_own_writer() -> None:
    options = {"url": URL, "topic": "t", "pipelineWriter": "replay:a", "txnVersion": "1"}
    assert WriteOptions.parse(options).app_id == "replay:a"
    with pytest.raises(InvalidOption) as caught:
        WriteOptions.parse({"url": URL, "nothing": "1"})
    assert "txnAppId" in str(caught.value.hint) and "pipelineWriter" not in str(caught.value.hint)


def test_the_address_does_not_show_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read()
    assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(found.url)
    assert pickle.loads(pickle.dumps(found)).url.reveal() == URL
    monkeypatch.setenv("TRUNKLINE_DATABASE_URL", URL)
    from_variable = ReadOptions.parse({"subscribe": "t"})
    assert from_variable.url.reveal() == URL
    assert b"hunter2" not in pickle.dumps(from_variable)
    monkeypatch.delenv("TRUNKLINE_DATABASE_URL")
    with pytest.raises(InvalidOption, match="TRUNKLINE_DATABASE_URL"):
        ReadOptions.parse({"subscribe": "t"})
    with pytest.raises(InvalidOption, match="NOWHERE is not set here"):
        Secret("env:NOWHERE").reveal()
