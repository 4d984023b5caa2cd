"""A pytest plugin: Kazoo's tests on one server that this plugin runs.

Kazoo's harness brings up a cluster of three Java servers. Here an object takes that cluster's place which has one member,
the embedded server of LOCKKEEPER, with its data in a directory of its own. Tests that stop a server and expect it back do so
with it. Tests that never open a connection are left out: they say nothing of a server.
"""

import logging
import os
import signal
import socket
import subprocess
import tempfile

import pytest
from kazoo.testing import harness

# What one server reached without TLS cannot give. A part of a test's id is enough.
NEEDS = {
    "::TestSSLClient": "TLS with the harness's own certificates",
    "::test_update_host_list": "three servers",
    "::TestReadOnlyMode": "an ensemble that loses its quorum",
    "::TestReconfig": "an ensemble to reconfigure",
    "::TestSASLGSSAPI": "Kerberos",
    "test_build.py::": "Kazoo's own CI",
}


class Server:
    host = "127.0.0.1"

    def __init__(self):
        with socket.socket() as free:
            free.bind((self.host, 0))
            self.client_port = free.getsockname()[1]
        self.address = self.secure_address = "%s:%d" % (self.host, self.client_port)
        self.directory = tempfile.TemporaryDirectory(prefix="lockkeeper-kazoo-")
        self.process = None

    @property
    def running(self):
        return self.process is not None

    def run(self):
        if self.running:
            return
        self.process = subprocess.Popen(
            [
                os.environ["LOCKKEEPER"], "serve",
                "--listen", self.address,
                "--data", os.path.join(self.directory.name, "data"),
                "--accounts", os.environ["LOCKKEEPER_ACCOUNTS"],
            ],
            stdout=subprocess.PIPE,
            stderr=open(os.path.join(self.directory.name, "log"), "ab"),
            text=True,
        )
        # It prints its address once it serves.
        if self.process.stdout.readline().strip() != self.address:
            raise RuntimeError("the server did not start: " + "".join(self.get_logs()))

    def stop(self):
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self.process.stdout.close()
            self.process = None

    def get_logs(self, num_lines=100):
        with open(os.path.join(self.directory.name, "log"), errors="replace") as log:
            return log.readlines()[-num_lines:]

    def reset(self):
        raise RuntimeError("the data of this server is kept")

    destroy = reset


class Cluster:
    def __init__(self):
        self.servers = [Server()]

    def __getitem__(self, at):
        if at >= len(self.servers):
            pytest.skip("needs more than one server")
        return self.servers[at]

    def __iter__(self):
        return iter(self.servers)

    def start(self):
        self.servers[0].run()

    def stop(self):
        pass

    terminate = stop

    def get_logs(self):
        return self.servers[0].get_logs()

    def get_ssl_client_configuration(self):
        pytest.skip("needs TLS with the harness's own certificates")


CLUSTER = Cluster()
harness.get_global_cluster = lambda: CLUSTER


def pytest_collection_modifyitems(config, items):
    asks_a_server = lambda item: issubclass(getattr(item, "cls", None) or object, harness.KazooTestHarness)
    left_out = [item for item in items if not asks_a_server(item)]
    items[:] = [item for item in items if asks_a_server(item)]
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        for part, need in NEEDS.items():
            if part in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="needs " + need))


def pytest_sessionstart(session):
    CLUSTER.start()


def pytest_sessionfinish(session):
    # Some tests leave clients behind, who would complain to the very end.
    logging.disable(logging.CRITICAL)
    CLUSTER.servers[0].stop()


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line("skipped %s: %s" % (report.nodeid, report.longrepr[2]))
