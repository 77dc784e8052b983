"""Reads and writes the file of ``isthmus apiserver-proxy --config``, of kind APIServerProxy.

Text comes in; the caller opens the file and watches it. Imports yaml, which is slow: import this
module only to read or write a document.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.apiserver_proxy.plan import (
    MAX_RETRIES,
    MAX_TLVS,
    MAX_UPSTREAMS,
    MOST_CONNECTIONS,
    CheckPlan,
    Checks,
    ProxyPlan,
    ThroughPlan,
    check_plan,
    check_tlvs,
    read_listen,
    read_path,
    read_tlv_type,
    read_upstream,
)
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.text.durations import format_duration, parse_duration
from isthmus.text.go_yaml import to_yaml
from isthmus.text.located_yaml import Fields, Located, compose, read_all, short
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

API_VERSION = "isthmus.dev/v1alpha1"
KIND = "APIServerProxy"
_MAX_LISTEN = 16
_MAX_ENTRIES = 256
_DAY_S = 86400.0

_KEYS = (
    "apiVersion", "kind", "listen", "manageAddress", "uplinkInterfaces", "upstreams",
    "healthCheck", "connectTimeout", "idleTimeout", "retries", "maxConnections",
    "maxConnectionsPerSource", "resolveInterval", "proxyProtocol", "httpProxy",
)  # fmt: skip
_CHECK_KEYS = (
    "kind", "path", "caCert", "clientCert", "clientKey", "serverName", "interval", "timeout",
    "fall", "rise", "statuses",
)  # fmt: skip
_DEFAULT = ProxyPlan()


def parse(text: str, name: str) -> ProxyPlan:
    """Read the document; ``name`` is its name in messages, usually a path.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    root = compose(text, name, expected=f"must be a document of kind {KIND}")
    plan = _document(root)
    root.errors.raise_any()
    try:
        check_plan(plan, listen="listen", upstream="upstreams:")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return plan


def _document(root: Located) -> ProxyPlan:
    found = root.mapping(_KEYS, required=("apiVersion", "kind", "upstreams"))
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        text = found[key].text() if key in found else None
        if text is not None and text != wanted:
            found[key].error(f"must be {wanted}, not {short(text)}")
    for key in ("listen", "upstreams"):
        if key in found and found[key].is_list and found[key].is_empty:
            found[key].error("is empty")
    listen = read_all(found.one_or_nodes("listen", most=_MAX_LISTEN), read_listen)
    check = found.get("healthCheck")
    proxy, through = found.get("proxyProtocol"), found.get("httpProxy")
    return ProxyPlan(
        listen=listen or _DEFAULT.listen,
        manage_address=found.boolean("manageAddress", True),
        uplinks=read_all(found.nodes("uplinkInterfaces", most=_MAX_ENTRIES), str),
        upstreams=read_all(found.nodes("upstreams", most=MAX_UPSTREAMS), read_upstream),
        check=CheckPlan() if check is None else _check(check),
        connect_timeout_s=_duration(found, "connectTimeout", _DEFAULT.connect_timeout_s, low=0.001),
        idle_timeout_s=_duration(found, "idleTimeout", _DEFAULT.idle_timeout_s),
        retries=found.integer("retries", _DEFAULT.retries, 0, MAX_RETRIES),
        max_connections=found.integer(
            "maxConnections", _DEFAULT.max_connections, 1, MOST_CONNECTIONS
        ),
        max_connections_per_source=found.integer(
            "maxConnectionsPerSource", _DEFAULT.max_connections_per_source, 1, MOST_CONNECTIONS
        ),
        resolve_every_s=_duration(found, "resolveInterval", _DEFAULT.resolve_every_s, low=0.001),
        proxy_protocol=None if proxy is None else _proxy(proxy),
        through=None if through is None else _through(through),
    )


def _check(node: Located) -> CheckPlan:
    found = node.mapping(_CHECK_KEYS)
    if ("clientCert" in found) != ("clientKey" in found):
        node.error("must have both clientCert and clientKey, or neither")
    default = CheckPlan()
    statuses = found.nodes("statuses", most=_MAX_ENTRIES)
    return CheckPlan(
        kind=found.member("kind", Checks.HTTPS),
        path=found.value("path", read_path, default.path),
        ca=found.text("caCert"),
        cert=found.text("clientCert"),
        key=found.text("clientKey"),
        server_name=found.value("serverName", _host, ""),
        interval_s=_duration(found, "interval", default.interval_s, low=0.001),
        timeout_s=_duration(found, "timeout", default.timeout_s),
        bounds=Bounds(
            fall=found.integer("fall", default.bounds.fall, 1, 100),
            rise=found.integer("rise", default.bounds.rise, 1, 100),
        ),
        accepted=tuple(each.integer(400, 599) for each in statuses)
        if "statuses" in found
        else default.accepted,
    )


def _proxy(node: Located) -> tuple[Tlv, ...]:
    found = node.mapping(("tlvs",))
    tlvs = tuple(_tlv(each) for each in found.nodes("tlvs", most=MAX_TLVS))
    wrong = check_tlvs(tlvs)
    if wrong:
        found["tlvs"].error(wrong)
    return tlvs


def _tlv(node: Located) -> Tlv:
    found = node.mapping(("type", "value"), required=("type", "value"))
    number = 0
    if "type" in found:
        # YAML reads 0xE0 as a number, and "0xE0" as text; both mean the same here.
        text = str(found["type"].node.value)
        try:
            number = read_tlv_type(text)
        except ValueError as error:
            found["type"].error(f"{found['type'].kind} {error}")
    return Tlv(number, found.text("value").encode())


def _through(node: Located) -> ThroughPlan:
    found = node.mapping(("url", "caCert", "noProxy", "clusterNetworks"), required=("url",))
    return ThroughPlan(
        proxy=_address(found),
        ca=found.text("caCert"),
        no_proxy=read_all(found.nodes("noProxy", most=_MAX_ENTRIES), str),
        networks=read_all(found.nodes("clusterNetworks", most=_MAX_ENTRIES), str),
    )


def _address(found: Fields) -> ProxyAddress:
    nowhere = ProxyAddress(scheme="http", at=HostPort("nowhere", 80))
    text = found["url"].text() if "url" in found else None
    if text is None:
        return nowhere
    try:
        return ProxyAddress.parse(text, variable="url")
    except ConfigError as error:  # the message must not quote the URL: it may have a password
        found["url"].error(str(error).removeprefix("url: "))
        return nowhere


def _host(text: str) -> str:
    try:
        HostPort(text, 1)
    except ValueError:
        raise ValueError("is not a host name or address") from None
    return text


def _duration(found: Fields, key: str, default: float, *, low: float = 0.0) -> float:
    def read(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError:
            raise ValueError("is not a duration such as 500ms, 10s or 1h30m") from None
        if not low <= seconds <= _DAY_S:
            least = "more than 0" if low else "0"
            raise ValueError(f"must be from {least} to 24h")
        return seconds

    if key in found and not found[key].is_text:
        text = found[key].text_or_number()
        if text == "0" and not low:
            return 0.0
        if text is not None:
            found[key].error("must have a unit, such as 10s")
        return default
    return found.value(key, read, default)


def write(plan: ProxyPlan) -> str:
    """Write a plan as a document; most fields with default values are left out."""
    default, check = _DEFAULT, plan.check
    listen = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in plan.listen]
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "listen": listen}
    if not plan.manage_address:
        document["manageAddress"] = False
    if plan.uplinks:
        document["uplinkInterfaces"] = list(plan.uplinks)
    document["upstreams"] = [str(each) for each in plan.upstreams]
    document["healthCheck"] = _check_document(check)
    for key, now, usual in (
        ("connectTimeout", plan.connect_timeout_s, default.connect_timeout_s),
        ("idleTimeout", plan.idle_timeout_s, default.idle_timeout_s),
        ("resolveInterval", plan.resolve_every_s, default.resolve_every_s),
    ):
        if now != usual:
            document[key] = format_duration(now)
    for key, count, usually in (
        ("retries", plan.retries, default.retries),
        ("maxConnections", plan.max_connections, default.max_connections),
        (
            "maxConnectionsPerSource",
            plan.max_connections_per_source,
            default.max_connections_per_source,
        ),
    ):
        if count != usually:
            document[key] = count
    if plan.proxy_protocol is not None:
        document["proxyProtocol"] = {
            "tlvs": [
                {"type": f"0x{tlv.type:02x}", "value": tlv.value.decode()}
                for tlv in plan.proxy_protocol
            ]
        }
    if plan.through is not None:
        document["httpProxy"] = _through_document(plan.through)
    return to_yaml([document])


def _through_document(through: ThroughPlan) -> dict[str, Any]:
    proxy = through.proxy
    user = "" if proxy.user is None else quote(proxy.user, safe="", errors="surrogateescape")
    password = quote(proxy.password, safe="", errors="surrogateescape")
    who = "" if proxy.user is None else f"{user}:{password}@"
    found: dict[str, Any] = {"url": f"{proxy.scheme}://{who}{proxy.at}"}
    if through.ca:
        found["caCert"] = through.ca
    if through.no_proxy:
        found["noProxy"] = list(through.no_proxy)
    if through.networks:
        found["clusterNetworks"] = list(through.networks)
    return found


def _check_document(check: CheckPlan) -> dict[str, Any]:
    default = CheckPlan()
    texts = {
        "kind": check.kind.value,
        "path": check.path if check.kind is Checks.HTTPS else "",
        "caCert": check.ca,
        "clientCert": check.cert,
        "clientKey": check.key,
        "serverName": check.server_name,
        "interval": format_duration(check.interval_s),
        "timeout": format_duration(check.timeout_s) if check.timeout_s else "",
    }
    found: dict[str, Any] = {key: text for key, text in texts.items() if text}
    found |= {"fall": check.bounds.fall, "rise": check.bounds.rise}
    if check.accepted != default.accepted:
        found["statuses"] = list(check.accepted)
    return found
