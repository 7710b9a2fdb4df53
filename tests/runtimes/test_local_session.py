"""The local session of Spark: what is said where it cannot be started. No JVM runs here."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkRuntimeError

import millpond as mp
from millpond.runtimes.spark import session


def test_a_spark_that_cannot_be_started_is_reported_with_one_full_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = MagicMock()
    spark.getActiveSession.return_value = object()
    raised = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    assert str(raised).endswith(".")
    spark.builder.appName.return_value.getOrCreate.side_effect = raised
    monkeypatch.setattr(session, "SparkSession", spark)
    with pytest.raises(mp.errors.InvalidUse, match=r"port number\. It needs a Java runtime"):
        session._open_local_session()
