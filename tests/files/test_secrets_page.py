"""docs/howto/secrets.md: its pattern masks every secret, and what it says of Spark's own is so."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "secrets.md").read_text()
SECRETS = {
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"),
    *("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET", "AZURE_FABRIC_SESSION_TOKEN"),
}


def shown_by(pattern: str) -> set[str]:
    return {name for name in SECRETS if not re.search(pattern, f"spark.executorEnv.{name}")}


def test_the_pages_pattern_masks_what_sparks_own_does_not(spark: Any) -> None:
    config = spark.sparkContext._jvm.org.apache.spark.internal.config
    patterns = getattr(config, "package$").__getattr__("MODULE$")
    default = patterns.SECRET_REDACTION_PATTERN().defaultValueString()
    shown = shown_by(default)
    assert shown
    [sentence] = re.findall(
        r"The pattern does not match the names of (.*?)\. This", PAGE, re.DOTALL
    )
    assert set(re.findall(r"`(\w+)`", sentence)) == shown
    [pattern] = re.findall(r"spark\.redaction\.regex (\S+)", PAGE)
    assert not shown_by(pattern)
