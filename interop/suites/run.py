#!/usr/bin/env python3
"""Runs the tests of another client, unchanged, on our server: `cargo xtask peers SUITE [-- ARGUMENTS]`.

Their authors do not know this server, so these tests are independent. The chore sets LOCKKEEPER, our command; SUITE_HOME, a directory
that stays; CLASSPATH for suites in Java; APACHE, the address of Apache's server, for zkcli. With arguments, the number of passes is not
checked. Exit status: 6 no Python with venv, 7 something cannot be fetched.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path(os.environ["SUITE_HOME"])
# The users on the suites' own servers. The server refuses a file that others may read.
ACCOUNTS = "super super:D/InIHSb7yEEbrWz8b9l71RjZJU=\nsasl super:super_secret\nsasl jaasuser:jaas_password\n"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def told(*command, show=False, **options):
    """Runs a command; returns its status and what it printed."""
    options["env"] = os.environ | {name: str(value) for name, value in options.get("env", {}).items()}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    lines = []
    for line in child.stdout:
        lines.append(line)
        if show:
            print(line, end="", flush=True)
    return child.wait(), "".join(lines)


def fetched(what, *command, **options):
    """Runs a command that fetches something; returns what it printed."""
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"NOT TESTED: {what}: {error}", file=sys.stderr)
        sys.exit(7)


def need(usable, packages, what, status=1):
    """Installs missing tools as root on Debian; otherwise ends the program with a message that names them."""
    is_usable = lambda: subprocess.run(["sh", "-c", usable], **QUIET).returncode == 0
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    if is_usable() or os.geteuid() == 0 and subprocess.run(install, stdout=sys.stderr).returncode == 0 and is_usable():
        return
    print(f"no {what}: as root on Debian: apt-get install {' '.join(packages)}", file=sys.stderr)
    sys.exit(status)


def change(file, *changes):
    """Replaces texts of a suite, each of which must be there exactly once."""
    text = file.read_text()
    for theirs, ours in changes:
        if text.count(theirs) != 1:
            sys.exit(f"{file} has changed: it does not contain {theirs!r} exactly once")
        text = text.replace(theirs, ours)
    file.write_text(text)


def copied(source, place):
    """Copies the source of a suite, which a package manager keeps read-only."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    subprocess.run(["chmod", "-R", "u+w", place], check=True)
    return place


@contextlib.contextmanager
def served():
    """Runs our server in memory on a free port; returns its address."""
    command = [os.environ["LOCKKEEPER"], "serve", "--memory", "--listen", "127.0.0.1:0", "--words", "all"]
    command += ["--accounts", os.environ["LOCKKEEPER_ACCOUNTS"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            yield server.stdout.readline().strip() or sys.exit("our server does not start")
        finally:
            server.kill()


# Clients in Python, from their source distributions.


def installed(name, release, needs):
    """Fetches a client and what its tests import, once; returns the Python that has that and the directory of the client."""
    python, complete = HOME / "venv/bin/python", HOME / "complete"
    wanted = "\n".join([release, *needs])
    if not complete.exists() or complete.read_text() != wanted:
        need("python3 -c 'import venv, ensurepip'", ["python3-venv"], "Python 3 with venv", 6)
        # An interrupted attempt may have left files.
        for entry in HOME.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        write_accounts()
        subprocess.run(["python3", "-m", "venv", HOME / "venv"], check=True)
        pip, quiet = [python, "-m", "pip"], ["--quiet", "--disable-pip-version-check"]
        fetched(f"{name}, for pip cannot install what its tests import", *pip, "install", *quiet, *needs)
        source = ["download", *quiet, "--no-deps", "--no-binary", name, f"{name}=={release}", "-d", HOME]
        fetched(f"{name}, for pip cannot fetch it", *pip, *source)
        subprocess.run(["tar", "-xzf", HOME / f"{name}-{release}.tar.gz", "-C", HOME], check=True)
        complete.write_text(wanted)
    return python, HOME / f"{name}-{release}"


def pytest(python, source, *arguments, **environment):
    common = ["-p", "no:cacheprovider", "-q", "-rfE", "--color=no", "--disable-warnings"]
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    status, text = told(python, "-m", "pytest", *common, *arguments, cwd=source, env=environment, show=True)
    passed = re.findall(r"(\d+) passed", text)
    return int(passed[-1]) if passed else 0, "see above" if status else ""


KAZOO = ["pytest>=8,<10", "pytest-timeout>=2,<3", "objgraph>=3,<4", "pyjks", "pyOpenSSL<25", "gevent", "eventlet", "pure_sasl"]


def kazoo(arguments):
    """As many tests pass as on Apache ZooKeeper 3.8.0. The plugin starts and stops the server, and says what is left out and why."""
    python, source = installed("kazoo", "2.11.0", KAZOO)
    options = ["-p", "kazoo_one_server", "-o", "log_cli=false", "--tb=short", "--show-capture=no", "--timeout", "120"]
    return pytest(python, source, *options, "kazoo/tests", *arguments, PYTHONPATH=HERE)


def kazoo_python(_arguments):
    """Prints the Python that has Kazoo, for `cargo xtask interop kazoo`."""
    python, source = installed("kazoo", "2.11.0", KAZOO)
    if subprocess.run([python, "-c", "import kazoo"], **QUIET).returncode:
        fetched("Kazoo's locks", python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source)
    print(python)
    sys.exit()


def aiozk(arguments):
    python, source = installed("aiozk", "0.32.0", ["pytest>=8,<10", "pytest-asyncio>=1,<2"])
    with served() as address:
        host, port = address.rsplit(":", 1)
        # Without its own settings, which measure the coverage of the client.
        options = ["-c", "/dev/null", "--rootdir", ".", "-o", "asyncio_mode=auto", "aiozk/test"]
        return pytest(python, source, *options, *arguments, ZK_HOST=host, ZK_PORT=port)


# The same settings file as Apache's start script reads, another server.
GO_SERVER = r"""#!/bin/sh
of() { sed -n "s/^$1=//p" "$config"; }
config=$2
exec "$LOCKKEEPER" serve --listen "127.0.0.1:$(of clientPort)" --data "$(of dataDir)/lockkeeper" --accounts "$LOCKKEEPER_ACCOUNTS" --words all
"""


def go(arguments):
    """As many tests more need several servers, or a name for reconfiguration."""
    if not shutil.which("go"):
        sys.exit("no Go on this machine: install it (Debian: apt-get install golang-go) and try again")
    # Outside the repository, which is not a Go module.
    module = "github.com/go-zookeeper/zk@v1.0.4"
    fetch = fetched("go-zookeeper, for go cannot fetch it", "go", "mod", "download", "-json", module, cwd=HOME)
    suite = copied(json.loads(fetch)["Dir"], HOME / "suite")
    # Their harness checks a server's health by a date in `srvr`, in a format that Apache dropped in 3.6; and it expects three servers.
    change(
        suite / "server_help_test.go",
        ("_, ok := FLWSrvr(serverAddrs, time.Second)",
         "ok := true\n\t\tfor _, one := range FLWRuok(serverAddrs, time.Second) {\n\t\t\tok = ok && one\n\t\t}"),
        ("\tif testing.Short() {",
         '\tif size > 1 {\n\t\tt.Skip("needs more than one server")\n\t}\n\tif testing.Short() {'),
    )
    script = HOME / "bin/zkServer.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(GO_SERVER)
    script.chmod(0o755)
    chosen = arguments or ["-run", "TestIntegration"]
    environment = {"ZOOKEEPER_BIN_PATH": script.parent}
    status, text = told("go", "test", "-count=1", "-timeout", "5m", "-v", *chosen, ".", cwd=suite, env=environment)
    verdicts = [line for line in text.splitlines() if line.startswith("--- ")]
    print("\n".join(verdicts))
    return sum(line.startswith("--- PASS") for line in verdicts), text if status else ""


# The C client, from Debian's source package.

C_SOURCE = "zookeeper=3.8.0-11+deb12u2"
# The source list for apt, if this machine's own list has only binary packages.
C_SOURCES = """Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
# The suites that use a server; the other suites simulate the server themselves. Left out: `TestReconfigServer`, which needs three servers;
# `Zookeeper_readOnly`, which needs two of three to be down; `Zookeeper_SASLAuth`, which needs a server that refuses anonymous clients; the
# TLS suites, whose certificates are made with Java's tools for Java's server.
C_SUITES = ["Zookeeper_clientretry", "Zookeeper_multi", "Zookeeper_simpleSystem"]
C_PORT = 22181  # the tests have no option for another one


def c_source():
    """Fetches the source package once, and creates the two files for which its own build needs a Java compiler."""
    client, complete = HOME / "source/zookeeper-client/zookeeper-client-c", HOME / "complete"
    if complete.exists():
        return client
    # An interrupted attempt may have left files.
    shutil.rmtree(HOME)
    for part in ("state/lists/partial", "cache/archives/partial"):
        (HOME / "apt" / part).mkdir(parents=True)
    apt = HOME / "apt"
    (apt / "debian.sources").write_text(C_SOURCES)
    # A separate source list: this machine's list does not change, and root is not needed.
    options = ["Dir::Etc::SourceList=/dev/null", f"Dir::Etc::SourceParts={apt}", f"Dir::State={apt}/state", f"Dir::Cache={apt}/cache"]
    get = ["apt-get", "--quiet", "--quiet", *(f"-o={option}" for option in options)]
    fetched("the C client's suite", *get, "update")
    fetched("the C client's suite", *get, "--download-only", "source", C_SOURCE, cwd=HOME)
    described = next(HOME.glob("*.dsc"))
    subprocess.run(["dpkg-source", "--extract", described, HOME / "source"], check=True, stdout=subprocess.DEVNULL)
    generated = client / "generated"
    generated.mkdir(exist_ok=True)
    records = HOME / "source/zookeeper-jute/src/main/resources/zookeeper.jute"
    compiler = ["java", "org.apache.jute.compiler.generated.Rcc", "-l", "c", records]
    subprocess.run(compiler, cwd=generated, check=True, stdout=subprocess.DEVNULL)
    # One test requires an answer within 2 ms, which depends on the machine and not on the server.
    bound = "calculate_interval(&started, &completion_timestamp) < "
    change(client / "tests/TestClient.cc", (f"{bound}2)", f"{bound}1000)"))
    complete.touch()
    return client


def c(arguments):
    tools = "cmake --version && c++ --version && dpkg-source --version && test -f /usr/include/cppunit/Test.h"
    need(tools, ["cmake", "g++", "make", "dpkg-dev", "libcppunit-dev"], "tools for the C client's tests")
    with socket.socket() as free:
        if not free.connect_ex(("127.0.0.1", C_PORT)):
            sys.exit(f"the tests of the C client want port {C_PORT}, which another program uses: stop it and try again")
    client = c_source()
    script = client / "tests/zkServer.sh"
    shutil.copy(HERE / "c_server.sh", script)
    script.chmod(0o755)
    write_accounts()
    build = HOME / "build"
    build.mkdir(exist_ok=True)
    # A test uses nanosleep without the include that newer libraries of C++ require.
    flags = ["-DCMAKE_CXX_FLAGS=-include time.h", "-DWITH_OPENSSL=OFF", "-DWITH_CYRUS_SASL=OFF"]
    for command in (["cmake", *flags, client], ["make", "--jobs", str(os.cpu_count()), "zktest"]):
        status, text = told(*command, cwd=build)
        if status:
            sys.exit(f"building the C client's tests:\n{text}")
    try:
        socket.socket(socket.AF_INET6).bind(("::1", 0))
        has_ipv6 = True
    except OSError:
        has_ipv6 = False
    failures, passed = "", 0
    for suite in arguments or C_SUITES:
        # ZKROOT: the servers for the tests that need three; it must be set even if they do not run.
        status, text = told(build / "zktest", suite, cwd=HOME, env={"ZKROOT": HOME})
        verdicts = [line for line in text.splitlines() if " : elapsed " in line]
        good = [line for line in verdicts if line.endswith(": OK")]
        bad = [line for line in verdicts if line not in good]
        excused = [line for line in bad if not has_ipv6 and "::testIPV6 " in line]
        for line in excused:
            print(f"NOT RUN, because this machine has no IPv6: {line}")
        print(f"{suite}: {len(good)} passed, {len(bad) - len(excused)} failed")
        passed += len(good) + len(excused)
        if not good or len(bad) > len(excused) or status and not excused:
            failures += f"{suite}:\n{text}"
    subprocess.run([script, "stop"], check=True)
    return passed, failures


# Clients in Rust, from their crates. `left_out` are tests that need something else than one current server: several, an old one, or a
# mandatory login.

RUST = {
    # The tests start containers through a crate that is replaced.
    "zookeeper-client": {
        "version": "0.11.2", "passes": 48, "arguments": ["--features", "tls,sasl-digest-md5", "--test", "zookeeper"],
        "left_out": ["test_zookeeper_old_server", "test_auth_failed", "test_readonly", "test_update_ensemble"],
        "manifest": '[dev-dependencies.testcontainers]\npath = "../testcontainers"\n',
    },
    # The tests start `java`, which starts a cluster and prints its address. Old code that the current compiler rejects outside of
    # dependencies.
    "zookeeper": {
        "version": "0.8.0", "passes": 22, "arguments": ["--tests"], "left_out": [],
        "manifest": '[lints.rust]\ndependency_on_unit_never_type_fallback = "warn"\n',
    },
    "zookeeper-async": {
        "version": "5.0.0", "passes": 23, "arguments": ["--tests"], "left_out": [],
        "manifest": '[lints.rust]\ndependency_on_unit_never_type_fallback = "warn"\n',
    },
    # The tests expect a server at ZooKeeper's own port, which is changed.
    "tokio-zookeeper": {"version": "0.4.0", "passes": 7, "arguments": ["--lib"], "left_out": [], "manifest": ""},
}


def rust(arguments):
    if unknown := set(arguments) - set(RUST):
        sys.exit(f"no suite of {', '.join(unknown)}; there are {', '.join(RUST)}")
    # Cargo fetches the crates, as for any user of them.
    user = HOME / "fetched"
    (user / "src").mkdir(parents=True, exist_ok=True)
    (user / "src/lib.rs").touch()
    needs = "".join(f'{name} = "={suite["version"]}"\n' for name, suite in RUST.items())
    head = '[package]\nname = "fetched"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n'
    (user / "Cargo.toml").write_text(head + needs)
    metadata = fetched("the suites of Rust clients", "cargo", "metadata", "--quiet", "--format-version", "1", cwd=user)
    manifests = {(package["name"], package["version"]): package["manifest_path"] for package in json.loads(metadata)["packages"]}
    java = HOME / "bin/java"
    java.parent.mkdir(exist_ok=True)
    shutil.copy(HERE / "rust_cluster.sh", java)
    java.chmod(0o755)
    copied(HERE.parent / "testcontainers", HOME / "testcontainers")
    failures, total = "", 0
    for name in arguments or RUST:
        suite = RUST[name]
        place = copied(pathlib.Path(manifests[name, suite["version"]]).parent, HOME / name)
        with (place / "Cargo.toml").open("a") as manifest:
            manifest.write(f"\n[workspace]\n\n{suite['manifest']}")
        skip = [word for test in suite["left_out"] for word in ("--skip", test)]
        # One at a time: some tests count the nodes of the whole tree.
        command = ["cargo", "test", "--quiet", *suite["arguments"], "--", "--test-threads=1", *skip]
        environment = {
            "CARGO_TARGET_DIR": HOME / "target", "PATH": f"{java.parent}:{os.environ['PATH']}", "RUST_LOG": "off",
            # Otherwise each test chooses at random.
            "ZK_TEST_TLS": "false", "ZK_TLS_HOSTNAME_VERIFICATION": "true",
        }
        with served() as address:
            if name == "tokio-zookeeper":
                library = place / "src/lib.rs"
                library.write_text(library.read_text().replace('"127.0.0.1:2181"', f'"{address}"'))
            status, text = told(*command, cwd=place, env=environment)
        passed = sum(map(int, re.findall(r"(\d+) passed;", text)))
        print(f"{name} {suite['version']}: {passed} passed", flush=True)
        total += passed
        if status:
            failures += f"{name}:\n{text}"
        elif passed != suite["passes"]:
            failures += f"{name}: {passed} passed, and the table says {suite['passes']}\n"
    return total, failures


# ZooKeeper's command line, and the tests of its own Java client and of Curator's.


def listed(name):
    """Reads a suite from the list of classes."""
    suite, rows = {"run": [], "leave-out": [], "others": []}, None
    for line in (HERE / "classes.txt").read_text().splitlines():
        key, _, rest = line.partition(" ")
        if key == "suite":
            rows = suite if rest.split()[0] == name else None
            suite["package"] = rest.split()[-1] if rows else suite.get("package")
        elif rows is None:
            continue
        elif key == "archives":
            rows["archives"] = tuple(rest.split())
        elif key == "run":
            rows["run"] += rest.split()
        elif key == "leave-out":
            rows["leave-out"].append(rest.split(": ")[0])
        elif key == "others":
            rows["others"].append((rest.rstrip(":"), []))
        elif not key and rest:
            rows["others"][-1][1].extend(rest.split())
    return suite


def check_classes(suite):
    """Ends the program if the list has not all classes of the suite, or one that is no more; prints how many do not run, by reason."""
    package, classes = suite["package"] + ".", set()
    for archive in os.environ["CLASSPATH"].split(":"):
        name = os.path.basename(archive)
        if name.endswith("-tests.jar") and name.startswith(suite["archives"]):
            for line in subprocess.check_output(["jar", "--list", "--file", archive], text=True).splitlines():
                if line.endswith(".class") and line.replace("/", ".").startswith(package):
                    classes.add(line[: -len(".class")].replace("/", ".").removeprefix(package))
    is_test = lambda name: (name.endswith("Test") or name.startswith("Test")) and "$" not in name
    left = {name for name in classes if is_test(name.split(".")[-1])} - set(suite["run"])
    gone, counts = set(suite["run"]) - classes, []
    for why, patterns in suite["others"]:
        named = lambda pattern, name: name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        gone |= {pattern for pattern in patterns if not any(named(pattern, name) for name in classes)}
        of_it = {name for name in left if any(named(pattern, name) for pattern in patterns)}
        left -= of_it
        counts.append(f"  {len(of_it)} {why}")
    print(f"{len(suite['run'])} classes are run; of the others", *counts, sep="\n", flush=True)
    if left:
        sys.exit(f"classes.txt does not list these classes: {', '.join(sorted(left))}")
    if gone:
        sys.exit(f"classes.txt lists classes that are no more: {', '.join(sorted(gone))}")


def java(name, arguments):
    """Runs the classes, each in a process of its own: they leave state behind that disturbs others."""
    suite, scratch = listed(name), HOME / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    check_classes(suite)
    settings = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dzookeeper.admin.enableServer=false"]
    settings += [f"-Dbuild.test.dir={scratch}", f"-Djava.io.tmpdir={scratch}"]
    # The replaced server classes write this file when they start a server.
    started, failures, total = scratch / "started", "", 0
    for test in arguments or suite["run"]:
        command = ["java", *settings, "org.junit.platform.console.ConsoleLauncher", "execute", f"--select-class={suite['package']}.{test}"]
        command += [f"--exclude-methodname=.*[.#]{method}" for method in suite["leave-out"]]
        command += ["--config=junit.jupiter.execution.timeout.default=120s", "--details=tree", "--disable-banner", "--disable-ansi-colors"]
        status, text = told(*command)
        count = lambda what: int((re.findall(rf"(\d+) {what}", text) or ["0"])[0])
        passed = count("tests successful")
        print(f"{test}: {passed} passed, {count('tests failed')} failed", flush=True)
        total += passed
        if not started.exists():
            failures += f"{test} has not started our server, so it shows nothing\n"
        started.unlink(missing_ok=True)
        if status:
            failures += f"{test}:\n{text}"
    return total, failures


LAST_EVENT = "type:NodeChildrenChanged path:/w"
# The command that begins the end of a session: it comes after the last event, for the command line prints none after it.
ENDING = "printwatches off\n"
VARIES = ("Connecting to", "ctime = ", "mtime = ", "WATCHER::", "WatchedEvent state:Closed")


def printed(server):
    """Types the session into the command line; returns what it prints, without the parts that differ from run to run."""
    session = (HERE / "zkcli.txt").read_text()
    begin, ending, end = session.partition(ENDING)
    assert ending, "the session has no ending"
    command = ["java", "org.apache.zookeeper.ZooKeeperMain", "-server", server]
    pipe = subprocess.PIPE
    typed = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    all_events, complaints = threading.Event(), []

    def typing():
        # A command line that ended early has closed its input; its lines are counted below.
        with contextlib.suppress(OSError):
            typed.stdin.write(begin)
            typed.stdin.flush()
            # Events come in order, on a thread of their own: once the last is printed, all are. A server that never sends it is found
            # by the comparison.
            all_events.wait(30)
            typed.stdin.write(ending + end)
            typed.stdin.close()

    threads = [threading.Thread(target=typing), threading.Thread(target=lambda: complaints.extend(typed.stderr))]
    for thread in threads:
        thread.start()
    lines = []
    for line in typed.stdout:
        lines.append(line)
        if LAST_EVENT in line:
            all_events.set()
    typed.wait()
    all_events.set()
    for thread in threads:
        thread.join()
    lines = [line.rstrip("\n") for line in lines + complaints]
    kept = [line for line in lines if line and not line.startswith(VARIES)]
    # A separate thread prints events, before or after their answer. They are sorted behind all other lines.
    events = [line for line in kept if line.startswith("WatchedEvent")]
    answers = [line for line in kept if not line.startswith("WatchedEvent")]
    if len(answers) < session.count("\n"):
        sys.exit(f"the command line on {server} ended early:\n" + "\n".join(lines))
    # Our server's zxids follow the clock, so each counts from the first one. A zxid of 0 stays.
    first = None
    for at, line in enumerate(kept := answers + events):
        if found := re.fullmatch(r"(.*)(?:Zxid = 0x([0-9a-f]+)| zxid: (\d+))", line):
            zxid = int(found[2], 16) if found[2] else int(found[3])
            if zxid:
                first = first or zxid
                kept[at] = f"{found[1]} zxid +{zxid - first}"
    return kept


def zkcli(_arguments):
    """Types the same session into ZooKeeper's command line on Apache's server and on ours, and compares what is printed."""
    theirs = printed(os.environ["APACHE"])
    with served() as address:
        ours = printed(address)
    longest = max(len(theirs), len(ours))
    pairs = zip(theirs + [""] * (longest - len(theirs)), ours + [""] * (longest - len(ours)))
    different = [f"- {their}\n+ {our}" for their, our in pairs if their != our]
    commands = (HERE / "zkcli.txt").read_text().count("\n")
    if different:
        return 0, "the command line prints other lines (-: on Apache's server, +: here):\n" + "\n".join(different)
    print(f"{commands} commands print the same {len(ours)} lines")
    return commands, ""


# The suites, and how many of their tests pass. Fewer mean that tests were left out, more that the table is old.
SUITES = {
    "kazoo": (kazoo, 389),
    "aiozk": (aiozk, 85),
    "go": (go, 21),
    "c": (c, 39),
    "rust": (rust, sum(suite["passes"] for suite in RUST.values())),
    "zkcli": (zkcli, 76),
    "zookeeper": (lambda arguments: java("zookeeper", arguments), 388),
    "curator": (lambda arguments: java("curator", arguments), 499),
    "kazoo-python": (kazoo_python, 0),
}


def write_accounts():
    file = HOME / "accounts"
    file.touch(0o600)
    file.write_text(ACCOUNTS)
    os.environ["LOCKKEEPER_ACCOUNTS"] = str(file)


def main(name, arguments):
    run, expected = SUITES[name]
    HOME.mkdir(parents=True, exist_ok=True)
    write_accounts()
    passed, failures = run(arguments)
    if failures:
        sys.exit(f"the tests of {name} do not all pass: {failures}")
    if not arguments and passed != expected:
        sys.exit(f"{passed} passed, and the table of {__file__} says {expected}: tests were left out, or the table is old")
    print(f"{name}: {passed} passed")


main(sys.argv[1], sys.argv[2:])
