//! `cargo xtask features`: every published crate compiles, without a warning, with every set of its features.
//!
//! `cargo test` builds one set, and a workspace unites the sets of all its members. A module that needs a feature, but
//! has no gate for it, fails only if the crate is built alone.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use xshell::{Shell, cmd};

use crate::workspace::{Package, metadata};

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Check only this crate; may be given several times
    #[arg(long, value_name = "CRATE")]
    package: Vec<String>,
    /// Check no pairs of many features: each alone and all together, as CI does
    #[arg(long)]
    without_pairs: bool,
    /// Print the sets and check none
    #[arg(long)]
    list: bool,
}

/// Maximum features of a crate that is checked with all their sets.
const POWERSET: usize = 4;

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let mut packages = metadata(sh, &["--no-deps"])?.packages;
    if let Some(unknown) = options.package.iter().find(|name| packages.iter().all(|package| package.name != **name)) {
        bail!("there is no crate {unknown} in this workspace");
    }
    packages.retain(|package| match options.package.as_slice() {
        [] => is_published(package),
        wanted => wanted.contains(&package.name),
    });
    let (start, mut count, mut failed) = (Instant::now(), 0, Vec::new());
    for package in &packages {
        let name = &package.name;
        let features = package.features.keys().map(String::as_str);
        let features: Vec<_> = features.filter(|name| *name != "default").collect();
        for set in sets(&features, !options.without_pairs) {
            let set = set.join(",");
            if options.list {
                println!("{name} [{set}]");
                continue;
            }
            count += 1;
            let check =
                cmd!(sh, "cargo clippy --quiet --package {name} --no-default-features --features {set} -- -D warnings");
            if check.quiet().run().is_err() {
                failed.push(format!("{name} [{set}]"));
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {count} sets of features do not compile cleanly: {}", failed.len(), failed.join(", "));
    }
    if !options.list {
        eprintln!("{count} sets of features of {} crates in {:.0?}", packages.len(), start.elapsed());
    }
    Ok(())
}

fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// Returns the sets of features to check: all sets of few features; otherwise none, each, each pair if wanted, and all. Three
/// features seldom cause a problem that no pair causes.
fn sets<'a>(features: &[&'a str], pairs: bool) -> Vec<Vec<&'a str>> {
    let (all, most) = (1_u32 << features.len(), if pairs { 2 } else { 1 });
    let wanted = |bits: &u32| features.len() <= POWERSET || bits.count_ones() <= most || *bits == all - 1;
    let named = |bits: u32| {
        let names = features.iter().enumerate();
        names.filter(|(at, _)| bits >> at & 1 == 1).map(|(_, name)| *name).collect()
    };
    (0..all).filter(wanted).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_rs_shows_the_features_of_every_published_library() {
        let packages = metadata(&crate::workspace::shell().unwrap(), &["--no-deps", "--offline"]).unwrap().packages;
        let with_features = packages.iter().filter(|package| is_published(package) && !package.features.is_empty());
        let libraries: Vec<_> = with_features
            .filter_map(|package| {
                Some((package, std::fs::read_to_string(package.manifest_path.parent()?.join("src/lib.rs")).ok()?))
            })
            .collect();
        assert!(libraries.iter().any(|(package, _)| package.name == "lockkeeper"));
        for (Package { name, metadata, .. }, source) in libraries {
            let docs = &metadata["docs"]["rs"];
            assert!(docs["all-features"] == true && docs["rustdoc-args"][1] == "docsrs", "{name}: {docs}");
            assert!(source.contains("#![cfg_attr(docsrs, feature(doc_cfg))]"), "{name}");
        }
    }

    /// A feature is for users; tests have `--cfg real_servers`.
    #[test]
    fn real_servers_is_a_feature_of_no_published_crate() {
        let packages = metadata(&crate::workspace::shell().unwrap(), &["--no-deps", "--offline"]).unwrap().packages;
        for Package { name, features, .. } in packages.iter().filter(|package| is_published(package)) {
            assert!(!features.contains_key("real-servers"), "{name}");
        }
    }

    #[test]
    fn few_features_are_checked_in_every_set() {
        for pairs in [false, true] {
            assert_eq!(sets(&[], pairs), [Vec::<&str>::new()]);
            assert_eq!(sets(&["a", "b"], pairs), [vec![], vec!["a"], vec!["b"], vec!["a", "b"]]);
            assert_eq!(sets(&["a", "b", "c", "d"], pairs).len(), 16);
        }
    }

    #[test]
    fn many_features_are_checked_alone_in_pairs_and_together() {
        let many = ["a", "b", "c", "d", "e"];
        assert_eq!(sets(&many, false).len(), 1 + 5 + 1);
        let sets = sets(&many, true);
        assert_eq!(sets.len(), 1 + 5 + 10 + 1);
        assert!(sets.contains(&vec![]) && sets.contains(&vec!["b", "e"]) && sets.contains(&many.to_vec()), "{sets:?}");
    }
}
