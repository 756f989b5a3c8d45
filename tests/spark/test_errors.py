"""Errors as Spark tells them: long texts, in which the reason is one line."""

from __future__ import annotations

from trunkline.errors import PipelineFailed, TopicNotFound
from trunkline.spark.errors import cause

TASK = """org.apache.spark.SparkException: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Traceback (most recent call last):
  File "planning.py", line 39, in heads
psycopg.DatabaseError: topic "ordrs" does not exist
trunkline.errors.TopicNotFound: topic "ordrs" does not exist (Did you mean orders?)
 SQLSTATE: 38000
\tat org.apache.spark.sql.errors.QueryExecutionErrors
"""
NAMED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `bdy` cannot be resolved. SQLSTATE: 42703
'Filter (bdy > 3)
+- RelationV2[key#0, value#1] trunkline
"""
JAVA = """An error occurred while calling o79.start.
: java.io.IOException: mkdir of file:/proc/x failed
\tat org.apache.hadoop
"""
PYTHON = """py4j.Py4JException: An exception was raised by the Python Proxy: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
RuntimeError: no room left

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""

FULL = """An error occurred while calling o79.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/srv/x. SQLSTATE: 58030
\tat org.apache.spark.sql
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop
"""


def test_our_own_error_is_found_again() -> None:
    found = cause(TASK)
    assert type(found) is TopicNotFound
    assert (found.message, found.hint) == ('topic "ordrs" does not exist', "Did you mean orders?")


def test_sparks_own_words_in_short() -> None:
    named, java, python, silent = cause(NAMED), cause(JAVA), cause(PYTHON), cause("")
    assert all(type(each) is PipelineFailed for each in (named, java, python, silent))
    assert (python.message, python.detail) == ("RuntimeError: no room left", "\n".join(PYTHON.splitlines()[1:4]))
    assert (named.message, named.detail) == (NAMED.splitlines()[0], None)
    assert (java.message, java.detail) == ("java.io.IOException: mkdir of file:/proc/x failed", JAVA)
    assert silent.message
    assert cause(FULL).message.endswith("rows to file:/srv/x. SQLSTATE: 58030: No space left on device")
