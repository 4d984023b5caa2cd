#!/usr/bin/env python3
"""Checks that every published crate compiles, without a warning, with every set of its features: `cargo xtask features`.

`cargo test` builds one set, and a workspace unites the sets of all its members. A module that needs a feature, but has no gate for
it, fails only if the crate is built alone.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys

POWERSET = 3  # the most features of a crate that is checked with all their sets


def sets(features, pairs):
    """Returns the sets to check: all sets of few features; otherwise none, each, each pair if wanted, and all.

    Three features seldom cause a problem that no pair causes.
    """
    most = len(features) if len(features) <= POWERSET else 2 if pairs else 1
    found = [list(some) for size in range(most + 1) for some in itertools.combinations(features, size)]
    return found if features in found else [*found, features]


def declarations(package):
    """Returns what is wrong with how a crate declares its features."""
    library = pathlib.Path(package["manifest_path"]).parent / "src/lib.rs"
    if "deep" in package["features"]:
        yield f"{package['name']}: deep is a feature, and features are for users; tests have --cfg deep"
    if package["features"] and library.exists():
        docs = ((package["metadata"] or {}).get("docs") or {}).get("rs") or {}
        shown = docs.get("all-features") is True and "docsrs" in docs.get("rustdoc-args", [])
        if not shown or "#![cfg_attr(docsrs, feature(doc_cfg))]" not in library.read_text():
            yield f"{package['name']}: docs.rs does not show its features"


options = argparse.ArgumentParser(prog="cargo xtask features")
options.add_argument("--package", metavar="CRATE", action="append", default=[], help="check only this crate; may be given several times")
options.add_argument("--without-pairs", action="store_true", help="of many features, check each alone and all together, as CI does")
options.add_argument("--list", action="store_true", help="print the sets and check none")
options = options.parse_args()
metadata = subprocess.check_output(["cargo", "metadata", "--quiet", "--no-deps", "--format-version", "1"])
packages = json.loads(metadata)["packages"]
if unknown := set(options.package) - {package["name"] for package in packages}:
    sys.exit(f"there is no crate {', '.join(unknown)} in this workspace")
published = [package for package in packages if package["publish"] != []]
failed = [wrong for package in published for wrong in declarations(package)]
count = 0
for package in [package for package in packages if package["name"] in options.package] or published:
    for some in sets([name for name in package["features"] if name != "default"], not options.without_pairs):
        name, features = package["name"], ",".join(some)
        if options.list:
            print(f"{name} [{features}]")
            continue
        count += 1
        clippy = ["cargo", "clippy", "--quiet", "--package", name, "--no-default-features", "--features", features]
        if subprocess.run([*clippy, "--", "-D", "warnings"]).returncode:
            failed.append(f"{name} [{features}] does not compile cleanly")
if failed:
    sys.exit("\n".join(failed))
if not options.list:
    print(f"{count} sets of features compile cleanly")
