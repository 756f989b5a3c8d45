"""Spark Connect to this process's own session, for features that need it, such as Declarative Pipelines.

The JVM that this process started also listens on a loopback port. Clients authenticate with a token.
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
    """Return settings that enable Spark Connect, for `open_session(conf=...)`."""
    # Server and client both read the token from the environment, so Spark's settings page never shows it.
    os.environ.setdefault(_TOKEN_VARIABLE, secrets.token_urlsafe(32))
    return {
        "spark.plugins": _PLUGIN,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }


def is_connect(spark: SparkSession) -> bool:
    """Return true for a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def connected(spark: SparkSession) -> SparkSession:
    """Return `spark` if it is a Spark Connect session, else a new Connect session to the same JVM.

    Stopping the new session does not stop `spark`.
    """
    if is_connect(spark):
        return spark
    try:
        from pyspark.sql.connect.session import SparkSession as RemoteSession
    except ImportError as exc:
        raise SparkUnavailable(
            f"Spark Connect is not installed: {exc}", hint="Run: pip install 'trunkline[spark,connect]'"
        ) from exc
    if _PLUGIN not in (spark.sparkContext.getConf().get("spark.plugins") or ""):
        raise SparkUnavailable(
            "this session was started without Spark Connect",
            hint="Use open_session(conf=trunkline.spark.session.connect.connect_conf()), or master='sc://host:15002'.",
        )
    jvm: Any = spark.sparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    remote: Any = RemoteSession.builder.remote(f"sc://localhost:{port}").create()
    session: SparkSession = remote
    return session
