"""Typed background jobs: functions that workers run later, with guarantees J1 to J6 of the contract."""

from trunkline.jobs.app import App
from trunkline.jobs.attempt import Stop, StopReason
from trunkline.jobs.backoff import Backoff
from trunkline.jobs.context import Context, ProcessContext, SyncContext
from trunkline.jobs.errors import EffectUnknown, HandlerStalled, InvalidArguments, JobFailed, JobInterrupted, UnknownKind
from trunkline.jobs.handle import Handle
from trunkline.jobs.job import Call, Job
from trunkline.jobs.limits import Limit
from trunkline.jobs.outcomes import Bury, Done, Outcome, Retry, Snooze
from trunkline.jobs.worker import Worker

__all__ = [
    "App",
    "Backoff",
    "Bury",
    "Call",
    "Context",
    "Done",
    "EffectUnknown",
    "Handle",
    "HandlerStalled",
    "InvalidArguments",
    "Job",
    "JobFailed",
    "JobInterrupted",
    "Limit",
    "Outcome",
    "ProcessContext",
    "Retry",
    "Snooze",
    "Stop",
    "StopReason",
    "SyncContext",
    "UnknownKind",
    "Worker",
]
