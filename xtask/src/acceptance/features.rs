//! The features that `cargo test` turns on, and the first file of each crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::workspace::{Metadata, Package, Target};

/// The first file of a program or a library.
#[derive(Debug, PartialEq)]
pub(super) struct Root {
    pub(super) file: PathBuf,
    /// The features that cargo needs to build it.
    pub(super) required: BTreeSet<String>,
    /// The features of its package that `cargo test` turns on.
    pub(super) on: BTreeSet<String>,
}

/// Returns the first files of the packages that `cargo test` tests.
pub(super) fn roots(workspace: Metadata) -> Vec<Root> {
    let Metadata { mut packages, workspace_default_members } = workspace;
    packages.retain(|package| workspace_default_members.contains(&package.id));
    let on = on(&packages);
    let root = |name: &str, target: Target| Root {
        file: target.src_path,
        required: target.required,
        on: on.get(name).cloned().unwrap_or_default(),
    };
    let targets = packages.into_iter().flat_map(|Package { name, targets, .. }| {
        targets.into_iter().map(|target| root(&name, target)).collect::<Vec<_>>()
    });
    targets.collect()
}

/// Returns the features of each package that are on when all of them are tested together: the default ones, and those
/// that another package needs of it.
fn on(packages: &[Package]) -> BTreeMap<String, BTreeSet<String>> {
    let mut on: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut left: Vec<(String, String)> = Vec::new();
    for package in packages {
        left.push((package.name.clone(), "default".to_owned()));
        for needed in &package.dependencies {
            left.extend(needed.features.iter().map(|feature| (needed.name.clone(), feature.clone())));
        }
    }
    while let Some((name, feature)) = left.pop() {
        let Some(package) = packages.iter().find(|package| package.name == name) else { continue };
        if on.entry(name.clone()).or_default().insert(feature.clone()) {
            for more in package.features.get(&feature).into_iter().flatten() {
                // `client/tls` and `client?/tls` turn on a feature of another package.
                let (package, feature) = more.split_once('/').unwrap_or((&name, more));
                left.push((package.trim_end_matches('?').to_owned(), feature.to_owned()));
            }
        }
    }
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_on_by_default_or_because_another_package_needs_them() {
        let text = r#"{ "workspace_default_members": ["a", "b"], "packages": [
            { "id": "a", "name": "a", "version": "1", "manifest_path": "/a", "publish": null, "features": { "default": ["x"], "x": ["b/deep"], "off": [] }, "targets": [],
              "dependencies": [{ "name": "a", "features": ["own"] }, { "name": "serde", "features": ["derive"] }] },
            { "id": "b", "name": "b", "version": "1", "manifest_path": "/b", "publish": null, "features": { "deep": ["deeper"] }, "dependencies": [],
              "targets": [{ "src_path": "/b/tests/it.rs", "required-features": ["off"] }] },
            { "id": "c", "name": "c", "version": "1", "manifest_path": "/c", "publish": null, "features": {}, "dependencies": [{ "name": "a", "features": ["off"] }],
              "targets": [{ "src_path": "/c/src/lib.rs" }] }] }"#;
        let workspace: Metadata = serde_json::from_str(text).unwrap();
        let set = |features: &[&str]| features.iter().map(|&feature| feature.to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(on(&workspace.packages[..2])["a"], set(&["default", "own", "x"]));
        let on = set(&["deep", "deeper", "default"]);
        assert_eq!(roots(workspace), [Root { file: "/b/tests/it.rs".into(), required: set(&["off"]), on }]);
    }
}
