"""The routes, rules and error codes of the three documents, one by one: which test has each."""

from __future__ import annotations

import pytest

from tests.http.servers import find_test

# A: postgres-backed-pubsub-queue; B: psqlqueue; C: pg-messaging
ROWS = {
    # A, routes
    "A POST /topics: create, or ensure": "pubsub_queue.create_is_idempotent",
    "A POST /topics/:name/publish": "pubsub_queue.publish defects.t9_publish_returns_the_id",
    "A GET /topics/:name/pull: group, batch 10": "pubsub_queue.pull",
    "A POST /topics/:name/ack": "pubsub_queue.ack_is_cumulative_monotonic_and_idempotent",
    # A, rules
    "A messages are never deleted by an ack": "pubsub_queue.messages_stay",
    "A order is the order of ids, none is skipped": "defects.t1_a_late_commit_is_not_skipped",
    "A members of one group": "defects.t2_two_members_get_disjoint_messages pubsub_queue.a_member_sees_its_batch_again",
    "A a group is made by its first pull": "pubsub_queue.pull",
    "A session": "documents.topic_log",
    # B, common rules
    "B ids": "psqlqueue.create_queue_is_validated bad_input.names",
    "B error bodies and details": "psqlqueue.create_queue_is_validated",
    "B unknown fields and content types": "psqlqueue.unknown_fields_and_content_types_are_ignored",
    "B malformed bodies: code 2": "psqlqueue.malformed_body",
    "B bad query parameters never fail; lists: offset 0, limit 1": "psqlqueue.lists",
    "B unknown paths": "psqlqueue.unknown_paths",
    "B trailing slash": "psqlqueue.trailing_slash",
    # B, routes
    "B E1 POST /queues": "psqlqueue.create_queue psqlqueue.create_queue_is_validated",
    "B E2 PUT /queues/{id}": "psqlqueue.update_queue",
    "B E3 E5 GET and DELETE /queues/{id}": "psqlqueue.get_and_delete_queue",
    "B E4 E15 E20 lists": "psqlqueue.lists",
    "B E6 stats": "psqlqueue.stats_count_what_can_be_delivered_now",
    "B E7 purge": "psqlqueue.purge_takes_leased_ones_too",
    "B E8 cleanup": "psqlqueue.cleanup_keeps_what_is_not_done psqlqueue.times_of_a_queue",
    "B E9 E17 POST messages": "psqlqueue.messages_are_validated psqlqueue.message_fields",
    "B E10 GET messages: label, limit 10, at most 10": "psqlqueue.pull_limits psqlqueue.pull_by_label",
    "B E11 ack": "psqlqueue.ack_twice_and_nack_after_ack psqlqueue.unknown_message",
    "B E12 nack: body or query": "psqlqueue.nack_again_at_once_by_default",
    "B E13 E14 E16 topics": "psqlqueue.topics psqlqueue.deleting_a_topic_or_queue_takes_its_subscriptions",
    "B E18 E19 E21 subscriptions": "psqlqueue.subscriptions",
    "B E22 E23 health and page": "psqlqueue.health_and_page life.the_database_goes_away_and_comes_back",
    # B, codes 1 to 10
    "B code 1": "life.the_database_goes_away_and_comes_back life.too_much_work_is_refused_before_it_piles_up",
    "B codes 2 and 3": "psqlqueue.malformed_body psqlqueue.create_queue_is_validated",
    "B codes 4 and 5": "psqlqueue.create_queue psqlqueue.get_and_delete_queue",
    "B code 6": "psqlqueue.unknown_message",
    "B codes 7 and 8": "psqlqueue.topics",
    "B codes 9 and 10": "psqlqueue.subscriptions",
    # B, delivery
    "B B1 B4 delay, deadline, retention": "psqlqueue.times_of_a_queue",
    "B B2 B15 oldest first": "psqlqueue.oldest_first",
    "B B3 pulls at one time": "psqlqueue.pulls_at_one_time_get_different_messages",
    "B B5 ack": "psqlqueue.ack_twice_and_nack_after_ack defects.t8_a_late_ack_does_nothing",
    "B B6 nack": "psqlqueue.nack_again_at_once_by_default defects.t6_nack_in_the_body_holds_the_message_back",
    "B B7 B8 empty pulls, limit 0": "psqlqueue.pull_limits",
    "B B9 labels": "psqlqueue.pull_by_label",
    "B B10 B11 fan-out and filters": "psqlqueue.subscriptions documents.queue_pubsub",
    "B B12 no history": "psqlqueue.a_later_subscription_gets_no_history psqlqueue.topics",
    "B B13 stats": "psqlqueue.stats_count_what_can_be_delivered_now",
    # B, operation
    "B most messages of a pull, metrics on a port of their own": "life.a_port_for_metrics_alone",
    "B metrics": "psqlqueue.metrics psqlqueue.size_buckets",
    "B JSON logs": "life.logs_are_json_lines",
    "B graceful stop": "life.a_stop_drains",
    "B sessions": "documents.queue_basics documents.queue_pubsub",
    # C
    "C publish, unknown topic": "pg_messaging.unknown_topic_is_an_error pg_messaging.bytes",
    "C claim: disjoint ranges, empty is last = first - 1": "pg_messaging.members_of_a_group_get_disjoint_ranges",
    "C fetch again": "ports.an_object_is_the_same_in_every_api",
    "C at least once for members": "pg_messaging.a_member_is_done_with_its_last_batch_when_it_asks_for_the_next",
    "C enqueue, claim, archive": "pg_messaging.job_archive_is_fenced",
    "C session": "documents.recipes",
    # defects
    "T1": "defects.t1_a_late_commit_is_not_skipped",
    "T2": "defects.t2_two_members_get_disjoint_messages",
    "T3": "defects.t3_what_a_dead_member_held_comes_back",
    "T4": "defects.t4_unknown_topic_is_an_error",
    "T5": "defects.t5_an_open_transaction_stops_nobody",
    "T6": "defects.t6_nack_in_the_body_holds_the_message_back",
    "T7": "defects.t7_an_acked_message_never_returns",
    "T8": "defects.t8_a_late_ack_does_nothing defects.t8_after_its_deadline_a_message_cannot_be_acked_by_id",
    "T9": "defects.t9_publish_returns_the_id",
    "T30": "defects.t30_a_missing_related_object_is_404",
}


@pytest.mark.parametrize("row", list(ROWS))
def test_row(row: str) -> None:
    for place in ROWS[row].split():
        assert callable(find_test(place))
