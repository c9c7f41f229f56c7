"""docs/howto/spark.md: its commands are those of the package."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from featstore.tools.cli import cli
from featstore.tools.pack import submit_lines
from featstore.tools.programs import JOBS, job_path

PAGE = (Path(__file__).parents[2] / "docs/howto/spark.md").read_text()
BLOCKS = re.findall(r"^```(?:yaml)?\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_names_each_job_and_runs() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.startswith("featstore spark job")]
    found = [CliRunner().invoke(cli, shlex.split(line)[1:]).output.strip() for line in lines]
    assert found == [str(job_path(name)) for name in JOBS]
    for name in JOBS:
        assert f"| `{name}` |" in PAGE
        assert f"python -m featstore.tools.{job_path(name).stem}`" in PAGE


def test_its_commands_for_clusters_are_those_that_pack_prints() -> None:
    submitted = [block for block in BLOCKS if block.startswith("spark-submit")]
    printed = submit_lines("environment.tar.gz", "VERSION")
    assert submitted == [line.partition("\n")[2] for line in printed if "spark-submit" in line]
    assert "featstore==VERSION" in PAGE


def test_what_was_not_run_is_marked() -> None:
    for cluster in ("Kubernetes", "Databricks"):
        section = re.split(r"^### ", PAGE, flags=re.MULTILINE)
        [text] = [part for part in section if part.startswith(cluster)]
        assert re.search(r"\*Not run", text), cluster


def _module(package: Any, name: str) -> Any:
    """An object of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


@pytest.fixture(scope="module")
def pods(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The pods of a driver and an executor with the page's options and template, which Spark's own
    client for Kubernetes makes.
    """
    jvm = spark.sparkContext._jvm
    k8s, conf = jvm.org.apache.spark.deploy.k8s, jvm.org.apache.spark.SparkConf(False)
    template = tmp_path_factory.mktemp("pods") / "pod.yaml"
    [text] = [block for block in BLOCKS if block.startswith("apiVersion")]
    template.write_text(text)
    [submitted] = [block for block in BLOCKS if "k8s://" in block]
    added = [block for block in BLOCKS if block.startswith("    --conf")]
    for option in re.findall(r"--conf (\S+)", "\n".join([submitted, *added])):
        name, _, value = option.partition("=")
        conf.set(name, str(template) if value == template.name else value)
    conf.set("spark.master", "k8s://https://127.0.0.1:1").set("spark.app.name", "extract")
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    resource = k8s.submit.PythonMainAppResource("local:///opt/extract.py")
    words = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 0)
    nobody = jvm.scala.Option.empty()
    driver_conf = k8s.KubernetesConf.createDriverConf(
        conf, "spark-1", resource, "org.apache.spark.deploy.PythonRunner", words, nobody
    )
    driver = k8s.submit.KubernetesDriverBuilder().buildFromFeatures(driver_conf, client)
    conf.set("spark.app.id", "spark-1").set("spark.driver.host", "driver")
    executor_conf = k8s.KubernetesConf.createExecutorConf(conf, "1", "spark-1", nobody, 0)
    profiles = _module(jvm.org.apache.spark.resource, "ResourceProfile")
    profiles.clearDefaultProfile()  # which is made once, here by the session
    profile = profiles.getOrCreateDefaultProfile(conf)
    profiles.clearDefaultProfile()
    secret_file = _module(jvm.org.apache.spark.internal.config, "package").AUTH_SECRET_FILE()
    builder = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    executor = builder.buildFromFeatures(
        executor_conf,
        jvm.org.apache.spark.SecurityManager(conf, nobody, secret_file),
        client,
        profile,
    )
    client.close()
    return {"driver": driver.pod(), "executor": executor.pod()}


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_sparks_client_for_kubernetes_makes_the_pods_of_the_page(
    pods: dict[str, Any], role: str
) -> None:
    container, spec = pods[role].container(), pods[role].pod().getSpec()
    found = {each.getName(): each.getValue() for each in container.getEnv()}
    assert (found["TMPDIR"], found["SPARK_LOCAL_DIRS"]) == ("/scratch", "/scratch")
    assert [each.getSecretRef().getName() for each in container.getEnvFrom()] == ["featstore"]
    assert container.getImage() == "IMAGE"
    volumes = {each.getName(): each for each in spec.getVolumes()}
    assert str(volumes["spark-local-dir-1"].getEmptyDir().getSizeLimit()) == "50Gi"
    # What the client does not know in a template it keeps apart.
    unknown = [container, spec, volumes["spark-local-dir-1"], *container.getVolumeMounts()]
    assert not any(each.getAdditionalProperties() for each in unknown)
    assert spec.getRestartPolicy() == "Never"
    if role == "driver":
        assert spec.getServiceAccountName() == "spark"
        return
    limits = container.getResources().getRequests()
    assert (str(limits.get("cpu")), str(limits.get("memory"))) == ("4", "20480Mi")
