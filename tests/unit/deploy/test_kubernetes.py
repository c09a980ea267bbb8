"""The manifests of deploy/kubernetes: each pod gets options that its service takes, and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import Options, load
from aerobee_cli.command_line import Function
from aerobee_console.__main__ import console
from aerobee_namesrv.config import NamesrvOptions
from aerobee_proxy.config import ProxyOptions
from support.repository import manifests
from support.repository.manifests import NAMESPACE, OVERLAYS, Object, of_kind, pods, workloads

MODELS: Mapping[str, type[Options]] = {
    "aerobee_namesrv": NamesrvOptions,
    "aerobee_broker": BrokerOptions,
    "aerobee_proxy": ProxyOptions,
}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
STOP_S = 20  # of a service after its preStop
PORTS = {"namesrv": "listenPort", "broker": "listenPort", "proxy": "grpcServerPort"}


@pytest.fixture(scope="module", params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> list[Object]:
    return manifests.objects(request.param)


def services(rendered: list[Object]) -> Iterator[manifests.Pod]:
    """The pods of name servers, brokers and proxies."""
    return (pod for pod in pods(rendered) if pod.workload != "console")


def consoles(rendered: list[Object]) -> Iterator[manifests.Pod]:
    return (pod for pod in pods(rendered) if pod.workload == "console")


def options_of(pod: manifests.Pod) -> Options:
    """The options that the service of a pod starts with."""
    module, *arguments = pod.container["args"]
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    port = {PORTS[pod.workload]: given["--port"]}
    return load(MODELS[module], environ=pod.environment, cli=port)


def variables(*models: type[Options]) -> set[str]:
    return {f"AEROBEE_{name.upper()}" for model in models for name in model.model_fields}


def ours(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("AEROBEE_")}


def test_each_pod_starts_with_options_that_its_service_takes(rendered: list[Object]) -> None:
    for pod in services(rendered):
        assert options_of(pod).misspelt_variables == ()
        known = {
            f"AEROBEE_{name.upper()}" for name in MODELS[pod.container["args"][0]].model_fields
        }
        others = {
            f"AEROBEE_{name.upper()}" for model in MODELS.values() for name in model.model_fields
        }
        named = {each["name"] for each in pod.container.get("env", ())}
        assert {name for name in named if name.startswith("AEROBEE_")} <= known
        assert {name for name in pod.environment if name.startswith("AEROBEE_")} <= others


def test_addresses_are_names_of_services_and_pods_that_there_are(rendered: list[Object]) -> None:
    headless = {
        each["metadata"]["name"]: each["spec"]["ports"][0]["port"]
        for each in of_kind(rendered, "Service")
        if each["spec"].get("clusterIP") == "None"
    }
    for pod in pods(rendered):
        assert pod.environment["NAMESRV_ADDR"] == f"namesrv:{headless['namesrv']}"
        if pod.workload == "broker":
            assert pod.environment["AEROBEE_BROKER_IP1"] == f"{pod.name}.broker.{NAMESPACE}.svc"


def test_ports_of_probes_and_services_are_those_of_the_options(rendered: list[Object]) -> None:
    for pod in services(rendered):
        options = options_of(pod).to_json()
        ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
        assert ports["metrics"] == options["metricsPromExporterPort"]
        assert options["metricsExporterType"] == "PROM"
        assert ports["grpc"] == int(options[PORTS[pod.workload]])
        for probe, path in zip(PROBES, ("/healthz", "/readyz", "/healthz"), strict=True):
            assert pod.container[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_a_console_starts_with_options_that_it_takes(rendered: list[Object]) -> None:
    [pod] = consoles(rendered)
    assert pod.container["args"][0] == "aerobee_console"
    command = Function(console, "console", "").command()
    given = command.make_context("console", pod.container["args"][1:]).params
    [port] = pod.container["ports"]
    assert (given["host"], given["port"]) == ("0.0.0.0", port["containerPort"])
    assert given["login"] != given["insecure"]
    for probe in PROBES:
        request = pod.container[probe]["httpGet"]
        assert request["port"] == port["name"]
        assert request["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
        assert request.get("scheme", "HTTP") == ("HTTPS" if given["tls_cert"] else "HTTP")


def test_only_a_console_with_a_login_accepts_connections(rendered: list[Object]) -> None:
    [pod] = consoles(rendered)
    [policy] = [
        each for each in of_kind(rendered, "NetworkPolicy") if each["metadata"]["name"] == "console"
    ]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert ("ingress" in policy["spec"]) == ("--login" in pod.container["args"])


def test_pods_that_others_can_replace_drain_within_their_grace_period(
    rendered: list[Object],
) -> None:
    for pod in pods(rendered):
        others = sum(each.workload == pod.workload for each in pods(rendered)) - 1
        is_elected = "AEROBEE_ETCD_ENDPOINTS" in pod.environment and pod.workload == "broker"
        drains = pod.workload in ("broker", "proxy") and others and not is_elected
        assert ("lifecycle" in pod.container) == bool(drains)
        if drains:
            command = pod.container["lifecycle"]["preStop"]["exec"]["command"]
            *program, address, seconds = command
            ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
            assert program == ["python", "-m", "aerobee_chassis.drain"]
            assert address == f"127.0.0.1:{ports['metrics']}"
            assert int(seconds) + STOP_S <= pod.spec["terminationGracePeriodSeconds"]


def test_a_broker_has_half_an_hour_to_recover(rendered: list[Object]) -> None:
    [broker] = [each for each in workloads(rendered) if each["metadata"]["name"] == "broker"]
    probe = broker["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1_800


def check_rights(spec: Object, container: Object) -> None:
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsUser"] == 10_001
    assert spec["securityContext"]["runAsNonRoot"] is True
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert set(container["resources"]) == {"requests", "limits"}


def test_no_pod_has_more_rights_than_it_needs(rendered: list[Object]) -> None:
    for pod in pods(rendered):
        check_rights(pod.spec, pod.container)


def test_the_pod_for_commands_reaches_the_services_and_has_no_more_rights() -> None:
    pod = manifests.admin_pod()
    [container] = pod["spec"]["containers"]
    check_rights(pod["spec"], container)
    [policy] = (
        each
        for each in of_kind(manifests.objects("overlays/secure"), "NetworkPolicy")
        if each["metadata"]["name"] == "services"
    )
    admitted = [each["podSelector"]["matchLabels"] for each in policy["spec"]["ingress"][0]["from"]]
    assert pod["metadata"]["labels"] in admitted


def test_messages_outlive_the_workloads(rendered: list[Object]) -> None:
    stateful = of_kind(rendered, "StatefulSet")
    assert {each["metadata"]["name"] for each in stateful} == {"namesrv", "broker"}
    for each in stateful:
        assert each["spec"]["persistentVolumeClaimRetentionPolicy"] == {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }
        [claim] = each["spec"]["volumeClaimTemplates"]
        mounts = each["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        assert {"name": claim["metadata"]["name"], "mountPath": "/data"} in mounts


def test_selectors_choose_the_pods_of_one_workload(rendered: list[Object]) -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in workloads(rendered)
    }

    def chosen(selector: Mapping[str, Any]) -> set[str]:
        return {name for name, of_pod in labels.items() if selector.items() <= of_pod.items()}

    for each in of_kind(rendered, "Service"):
        assert chosen(each["spec"]["selector"]) == {each["metadata"]["name"]}
    for each in of_kind(rendered, "PodDisruptionBudget", "StatefulSet", "Deployment"):
        selector = each["spec"]["selector"]["matchLabels"]
        assert chosen(selector) == {each["metadata"]["name"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_workload_of_several_pods_has_a_disruption_budget(overlay: str) -> None:
    made = manifests.objects(overlay)
    budgets = {each["metadata"]["name"] for each in of_kind(made, "PodDisruptionBudget")}
    several = {each["metadata"]["name"] for each in workloads(made) if each["spec"]["replicas"] > 1}
    assert budgets == several


def test_replicas_are_one_broker_with_numbers_from_1() -> None:
    brokers = [
        options_of(pod)
        for pod in pods(manifests.objects("overlays/replicated"))
        if pod.workload == "broker"
    ]
    assert [each.to_json()["brokerId"] for each in brokers] == [1, 2, 3]
    assert {each.to_json()["brokerName"] for each in brokers} == {"broker"}
    assert all(isinstance(each, BrokerOptions) and each.is_elected for each in brokers)


def test_secure_pods_have_certificates_of_their_own() -> None:
    made = manifests.objects("overlays/secure")
    for pod in services(made):
        options = options_of(pod).to_json()
        name = "broker-" if pod.workload == "broker" else pod.workload
        assert re.fullmatch(rf"/secure/{name}\d*\.crt", options["tlsCertPath"])
        assert options["tlsServerMode"] == "enforcing"
        assert options["authenticationEnabled"] is True
    for pod in pods(made):
        [volume] = [each for each in pod.spec["volumes"] if each["name"] == "secure"]
        assert volume["secret"]["secretName"] == f"aerobee-{pod.workload}"
    certificates = {
        pod.environment["AEROBEE_TLS_CERT_PATH"] for pod in pods(made) if pod.workload == "broker"
    }
    assert certificates == {"/secure/broker-0.crt", "/secure/broker-1.crt"}


@pytest.mark.parametrize("version", ["1.30", "1.31", "1.32"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_of_each_version_accepts_the_manifests(overlay: str, version: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="needs the package kubernetes-validate"
    ).validate
    for each in [*manifests.objects(overlay), manifests.admin_pod()]:
        validate(each, version, strict=True)
