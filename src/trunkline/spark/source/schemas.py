"""Spark schemas of messages (Kafka's names, types and order first, then ours) and of the other tables."""

from __future__ import annotations

KAFKA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"
METADATA = "id string, routing_key string, label string, content_type string"
TABLES = {
    "dead_letters": "id string, topic string, partition int, offset bigint, key string, routing_key string, label string,"
    " headers string, value binary, content_type string, occurred_at timestamp, timestamp timestamp, attempts int,"
    " error string, reason string, dead_at timestamp",
    "deliveries": "queue string, topic string, partition int, first_offset bigint, last_offset bigint, n bigint,"
    " attempt int, consumer string, claimed_at timestamp, settled_at timestamp, outcome string, error string",
}
