#!/usr/bin/env python3
"""Reads contrib/compose.yaml as YAML, and checks that its parts fit: `cargo xtask dist check image`. It needs no container engine."""

import pathlib
import sys

import yaml

FILE = pathlib.Path(__file__).resolve().parents[2] / "contrib/compose.yaml"
# The keys that the file may use, so that a misspelt one is found.
SERVICE = {"image", "restart", "environment", "hostname", "build", "depends_on", "command", "profiles", "volumes"}

document = yaml.safe_load(FILE.read_text())
services = document["services"]
servers = sorted(name for name, service in services.items() if service.get("image", "").startswith("zookeeper:"))
hosts = [service for service in services.values() if "build" in service]
problems = [f"{name} has unknown keys: {unknown}" for name, service in services.items() if (unknown := set(service) - SERVICE)]


def ensure(holds, problem):
    if not holds:
        problems.append(problem)


ensure(len(servers) == 3 and len(hosts) == 2, f"{len(servers)} servers and {len(hosts)} hosts, not 3 and 2")
for name in servers:
    environment = services[name]["environment"]
    listed = dict(entry.split("=") for entry in environment["ZOO_SERVERS"].split())
    ensure(listed.get(f"server.{environment['ZOO_MY_ID']}", "").startswith(f"{name}:"), f"{name} has another server's id")
    ensure(len(listed) == len(servers), f"{name} knows {len(listed)} servers")
    places = [place.split(":") for place in services[name]["volumes"]]
    ensure(sorted(directory for _, directory in places) == ["/data", "/datalog"], f"{name} does not keep its data")
    ensure(all(volume.startswith(name) and volume in document["volumes"] for volume, _ in places), f"{name} has other volumes")
for name, service in services.items():
    if name not in servers:
        asked = service["environment"]["LOCKKEEPER_SERVERS"]
        ensure(asked.split(",") == [f"{server}:2181" for server in servers], f"{name} uses other servers: {asked}")
ensure(len({host["hostname"] for host in hosts}) == len(hosts), "two hosts have the same name")
ensure(len({tuple(host["command"]) for host in hosts}) == 1, "the hosts run different jobs")
if problems:
    sys.exit("\n".join(f"{FILE}: {problem}" for problem in problems))
