"""Spark Connect to a session of this process: for what Spark offers only there, such as Declarative Pipelines.

The Java machine that this process started also listens on a port of the loopback, which only a token opens.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

from trunkline.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # nosec B105  # a name, not a token
_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"


def connect_conf() -> dict[str, str]:
    """Settings of a session that Spark Connect can reach, for `open_session(conf=...)`."""
    # the server of this process and its client both read it there; so it is in no setting that a page may show
    os.environ.setdefault(_TOKEN_VARIABLE, secrets.token_urlsafe(32))
    return {
        "spark.plugins": _PLUGIN,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def connected(spark: SparkSession) -> SparkSession:
    """The session itself if it is one of Spark Connect, else a new one to the same Java machine; its `stop` ends only it."""
    if is_connect(spark):
        return spark
    try:
        from pyspark.sql.connect.session import SparkSession as RemoteSession
    except ImportError as exc:
        raise SparkUnavailable(f"Spark Connect needs more: {exc}", hint="pip install 'trunkline[spark,connect]'") from exc
    if _PLUGIN not in (spark.sparkContext.getConf().get("spark.plugins") or ""):
        raise SparkUnavailable(
            "this session was started without Spark Connect",
            hint="open_session(conf=trunkline.spark.connect.connect_conf()), or master='sc://host:15002'",
        )
    jvm: Any = spark.sparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    remote: Any = RemoteSession.builder.remote(f"sc://localhost:{port}").create()
    found: SparkSession = remote
    return found
