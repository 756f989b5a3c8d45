# Written by tools/unasync.py from src/trunkline/db/calls/__init__.py; change that file, not this one.
"""One typed call per SQL function. Apart from COPY, no statement here changes rows except through a function.

Every call takes the connection to use and never commits: the code that opened the transaction ends it. Calls do not
depend on connection settings (row factory, cursor class, adapters), because the connection may belong to the caller.
Psycopg prepares a statement after a few uses; behind a transaction pooler set `prepare_threshold=None` on the
connection.

Only numbers, function names, and lists of columns or settings from these modules are formatted into statements (marked
S608 and B608). Values from callers are always parameters.
"""

from __future__ import annotations

from trunkline.db.sync.calls.dead_letters import (
    get_dead_letter,
    list_dead_letters,
    purge_dead_letters,
    redrive,
    redrive_edited,
)
from trunkline.db.sync.calls.groups import (
    claim_range,
    commit,
    create_group,
    delete_group,
    fetch,
    heartbeat,
    leave,
    list_groups,
    seek,
)
from trunkline.db.sync.calls.messages import (
    CopyTarget,
    copy_many,
    copy_target,
    explain_message,
    explain_offset,
    head,
    offset_at,
    offset_of,
    publish_many,
    publish_one,
    read,
    topic_number,
)
from trunkline.db.sync.calls.procedures import sequence, sequence_before_reading, upkeep
from trunkline.db.sync.calls.queues import (
    ack,
    alter_queue,
    bury,
    claim,
    create_queue,
    delete_queue,
    ensure_queue,
    extend,
    get_queue,
    list_queues,
    nack,
    pause_queue,
    peek_queue,
    purge_queue,
    queues_of_cursors,
    release,
    trim_queue,
)
from trunkline.db.sync.calls.runs import (
    abort_run,
    dead_groups,
    dead_spread,
    get_run,
    list_runs,
    pause_run,
    preview_run,
    resume_run,
    start_run,
    undo_run,
)
from trunkline.db.sync.calls.schedules import (
    create_schedule,
    delete_schedule,
    list_schedules,
    next_runs,
    pause_schedule,
    run_schedule,
)
from trunkline.db.sync.calls.statements import message_fields
from trunkline.db.sync.calls.stats import group_stats, queue_stats, topic_stats
from trunkline.db.sync.calls.subscriptions import list_subscriptions, readers, subscribe, unsubscribe
from trunkline.db.sync.calls.topics import alter_topic, create_topic, delete_topic, ensure_topic, get_topic, list_topics
from trunkline.db.sync.calls.transactions import limit_transaction, transaction_number
from trunkline.db.sync.calls.wakeups import CHANNEL, Poll, listen, notify, poll

__all__ = [
    "CHANNEL",
    "CopyTarget",
    "Poll",
    "abort_run",
    "ack",
    "alter_queue",
    "alter_topic",
    "bury",
    "claim",
    "claim_range",
    "commit",
    "copy_many",
    "copy_target",
    "create_group",
    "create_queue",
    "create_schedule",
    "create_topic",
    "dead_groups",
    "dead_spread",
    "delete_group",
    "delete_queue",
    "delete_schedule",
    "delete_topic",
    "ensure_queue",
    "ensure_topic",
    "explain_message",
    "explain_offset",
    "extend",
    "fetch",
    "get_dead_letter",
    "get_queue",
    "get_run",
    "get_topic",
    "group_stats",
    "head",
    "heartbeat",
    "leave",
    "limit_transaction",
    "list_dead_letters",
    "list_groups",
    "list_queues",
    "list_runs",
    "list_schedules",
    "list_subscriptions",
    "list_topics",
    "listen",
    "message_fields",
    "nack",
    "next_runs",
    "notify",
    "offset_at",
    "offset_of",
    "pause_queue",
    "pause_run",
    "pause_schedule",
    "peek_queue",
    "poll",
    "preview_run",
    "publish_many",
    "publish_one",
    "purge_dead_letters",
    "purge_queue",
    "queue_stats",
    "queues_of_cursors",
    "read",
    "readers",
    "redrive",
    "redrive_edited",
    "release",
    "resume_run",
    "run_schedule",
    "seek",
    "sequence",
    "sequence_before_reading",
    "start_run",
    "subscribe",
    "topic_number",
    "topic_stats",
    "transaction_number",
    "trim_queue",
    "undo_run",
    "unsubscribe",
    "upkeep",
]
