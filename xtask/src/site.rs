//! `cargo xtask site`: the documentation as a site with a search, made by mdBook.
//!
//! The pages are written to be read in the repository. The chore copies them with their places, so that a link between two pages means
//! the same on the site. A link to anything else leads to the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use crate::untested::fetched;
use crate::workspace::{root, shell, target_dir};

/// The version of mdBook that the chore installs. Its features are those of `install`.
const MDBOOK: &str = "0.5.4";

/// The pages outside docs.
const ROOT_PAGES: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The list of pages, from which mdBook makes the menu.
const MENU: &str = "docs/SUMMARY.md";

pub(crate) fn run() -> Result<()> {
    let sh = shell()?;
    let (root, site) = (root().canonicalize().context("finding the repository")?, target_dir(&sh).join("site"));
    let mdbook = install(&sh)?;
    sh.remove_path(&site)?;
    copy_pages(&root, &site.join("src"))?;
    sh.copy_file("docs/book.toml", site.join("book.toml"))?;
    cmd!(sh, "{mdbook} build {site}").run()?;
    let book = site.join("book");
    let (pages, broken) = broken_links(&book)?;
    ensure!(broken.is_empty(), "{} links lead to nothing:\n{}", broken.len(), broken.join("\n"));
    println!("{pages} pages, whose links all lead somewhere: {}", book.join("index.html").display());
    Ok(())
}

/// Returns mdBook, which is installed if it is missing.
fn install(sh: &Shell) -> Result<PathBuf> {
    let tools = target_dir(sh).join("tools");
    let mdbook = tools.join("bin/mdbook");
    let version = cmd!(sh, "{mdbook} --version").quiet().ignore_stderr().read();
    if !version.is_ok_and(|version| version.trim_start_matches(['m', 'd', 'b', 'o', 'k', ' ', 'v']) == MDBOOK) {
        // Not optimised, and without the server for authors: that is most of its installation time, and it runs for a second.
        let build = tools.join("build");
        let what = "the site of the documentation, because mdBook cannot be installed";
        let command = cmd!(sh, "cargo install --quiet --locked --debug --no-default-features --features search");
        let command = command.arg("--version").arg(MDBOOK).arg("--root").arg(&tools).arg("--target-dir").arg(&build);
        fetched(what, command.arg("mdbook").run())?;
        sh.remove_path(&build)?;
    }
    Ok(mdbook)
}

/// Copies all pages and pictures. Fails for a link to nothing, and for a page that the menu does not have.
fn copy_pages(root: &Path, to: &Path) -> Result<()> {
    let mut files: Vec<PathBuf> = ROOT_PAGES.iter().map(PathBuf::from).collect();
    files_below(root, Path::new("docs"), &mut files)?;
    let is_page = |file: &Path| file.extension().is_some_and(|extension| extension == "md");
    let (mut in_menu, mut mistakes) = (BTreeSet::new(), Vec::new());
    for file in &files {
        let (from, menu) = (root.join(file), file == Path::new(MENU));
        let place = if menu { to.join("SUMMARY.md") } else { to.join(on_site(file)) };
        fs::create_dir_all(place.parent().unwrap_or(to))?;
        if !is_page(file) {
            fs::copy(&from, &place).with_context(|| format!("copying {}", from.display()))?;
            continue;
        }
        let text = fs::read_to_string(&from).with_context(|| format!("reading {}", from.display()))?;
        let text = with_links(&text, |link| {
            if link.contains("://") || link.starts_with('#') || link.starts_with("mailto:") {
                return None;
            }
            let (path, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
            let target = normal(&file.parent().unwrap_or(Path::new("")).join(path));
            if menu {
                in_menu.insert(target.clone());
                return Some(on_site(&target).display().to_string());
            }
            if files.contains(&target) {
                return Some(on_site(Path::new(path)).display().to_string() + anchor);
            }
            if !root.join(&target).exists() {
                mistakes.push(format!("{}: {link} leads to nothing", file.display()));
            }
            let kind = if root.join(&target).is_dir() { "tree" } else { "blob" };
            Some(format!("{}/{kind}/main/{}{anchor}", env!("CARGO_PKG_REPOSITORY"), target.display()))
        });
        fs::write(&place, text).with_context(|| format!("writing {}", place.display()))?;
    }
    let pages = files.iter().filter(|file| is_page(file) && *file != Path::new(MENU));
    mistakes.extend(
        pages.filter(|page| !in_menu.contains(*page)).map(|page| format!("{MENU} does not have {}", page.display())),
    );
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("\n"));
    }
    Ok(())
}

/// Returns where a page is on the site. The page of a directory is its index there.
fn on_site(page: &Path) -> PathBuf {
    if page.file_name().is_some_and(|name| name == "README.md") {
        page.with_file_name("index.md")
    } else {
        page.to_owned()
    }
}

/// Resolves `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Adds all files below a directory of the root, in order.
fn files_below(root: &Path, directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(root.join(directory)).with_context(|| format!("reading {}", directory.display()))?;
    let mut entries: Vec<_> = entries.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = directory.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => files_below(root, &path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// Returns a page with other links, where `other` gives some. Code has no links.
fn with_links(text: &str, mut other: impl FnMut(&str) -> Option<String>) -> String {
    let (mut changed, mut is_code) = (String::new(), false);
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let mut rest = line;
        while let (false, Some(start)) = (is_code || is_fence, rest.find("](")) {
            let (before, link) = rest.split_at(start + 2);
            let Some(end) = link.find(')') else { break };
            changed += before;
            changed += &other(&link[..end]).unwrap_or_else(|| link[..end].to_owned());
            rest = &link[end..];
        }
        changed += rest;
    }
    changed
}

/// Returns the number of pages of a site, and a line for each link to a file or an anchor of the site that does not exist.
fn broken_links(book: &Path) -> Result<(usize, Vec<String>)> {
    let mut files = Vec::new();
    files_below(book, Path::new(""), &mut files)?;
    // The first has links of its own kind, and the other two have those of the others once more.
    let others = ["404.html", "print.html", "toc.html"];
    let is_page = |file: &&PathBuf| {
        file.extension().is_some_and(|extension| extension == "html")
            && !others.iter().any(|other| file.ends_with(other))
    };
    let read =
        |file: &PathBuf| fs::read_to_string(book.join(file)).with_context(|| format!("reading {}", file.display()));
    let pages: BTreeMap<_, _> =
        files.iter().filter(is_page).map(|file| Ok((file, read(file)?))).collect::<Result<_>>()?;
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in ["href", "src", "srcset"].iter().flat_map(|name| attributes(text, name)) {
            // A scheme, as in `https:` and `data:`.
            if link.split(['/', '#']).next().is_some_and(|first| first.contains(':')) {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let mut target = match path {
                "" => PathBuf::from(page),
                path => normal(&page.parent().unwrap_or(Path::new("")).join(path)),
            };
            if book.join(&target).is_dir() {
                target.push("index.html");
            }
            let has = |text: &String| anchor.is_empty() || attributes(text, "id").any(|id| id == anchor);
            let found = pages.get(&target).map_or_else(|| anchor.is_empty() && book.join(&target).exists(), has);
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok((pages.len(), broken))
}

/// Returns the values of all attributes of this name.
fn attributes<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let begin = format!(" {name}=\"");
    let values: Vec<_> = text.split(&begin).skip(1).filter_map(|rest| rest.split('"').next()).collect();
    values.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(home.path().join(name).parent().unwrap()).unwrap();
            fs::write(home.path().join(name), text).unwrap();
        }
        home
    }

    const REPOSITORY: [(&str, &str); 8] = [
        ("README.md", "[a](docs/guide/README.md#b) ![p](docs/p.svg) [c](src/c.rs)\n```\n[d](nowhere.md)\n```\n"),
        ("ARCHITECTURE.md", "[away](https://example.org/README.md), [here](#x)"),
        ("CHANGELOG.md", ""),
        ("CONTRIBUTING.md", "[sources](src)"),
        ("SECURITY.md", ""),
        ("docs/guide/README.md", "[up](../../README.md)"),
        ("docs/p.svg", "<svg/>"),
        ("src/c.rs", ""),
    ];

    const MENU_OF_IT: &str = "- [a](../README.md)\n- [b](guide/README.md)\n[c](../ARCHITECTURE.md) [d](../CHANGELOG.md)\n\
                              [e](../CONTRIBUTING.md) [f](../SECURITY.md)\n";

    #[test]
    fn links_between_pages_stay_and_others_lead_to_the_repository() {
        let (home, site) = (written(&[&REPOSITORY[..], &[(MENU, MENU_OF_IT)]].concat()), tempfile::tempdir().unwrap());
        copy_pages(home.path(), site.path()).unwrap();
        let page = |name: &str| fs::read_to_string(site.path().join(name)).unwrap();
        let sources = "https://github.com/lockkeeper/lockkeeper";
        assert_eq!(
            page("index.md"),
            format!(
                "[a](docs/guide/index.md#b) ![p](docs/p.svg) [c]({sources}/blob/main/src/c.rs)\n```\n[d](nowhere.md)\n```\n"
            )
        );
        assert_eq!(page("ARCHITECTURE.md"), REPOSITORY[1].1);
        assert_eq!(page("CONTRIBUTING.md"), format!("[sources]({sources}/tree/main/src)"));
        assert_eq!(page("docs/guide/index.md"), "[up](../../index.md)");
        assert!(page("SUMMARY.md").starts_with("- [a](index.md)\n- [b](docs/guide/index.md)\n[c](ARCHITECTURE.md)"));
    }

    #[test]
    fn a_page_that_the_menu_lacks_and_a_link_to_nothing_are_named() {
        let more = [(MENU, MENU_OF_IT), ("docs/new.md", "[x](gone.rs)")];
        let (home, site) = (written(&[&REPOSITORY[..], &more].concat()), tempfile::tempdir().unwrap());
        let error = copy_pages(home.path(), site.path()).unwrap_err().to_string();
        assert_eq!(error, "docs/new.md: gone.rs leads to nothing\ndocs/SUMMARY.md does not have docs/new.md");
    }

    #[test]
    fn links_to_a_page_or_an_anchor_that_does_not_exist_are_broken() {
        let book = written(&[
            (
                "index.html",
                r##"<a href="a/b.html#x"> <a href="https://example.org/y"> <a href="a/"> <img src="a/p.svg">"##,
            ),
            ("a/index.html", r##"<h1 id="top"> <a href="#top"> <a href="#bottom"> <a href="../c.html">"##),
            ("a/b.html", r##"<h1 id="x"> <a href="../index.html#x"> <source srcset="q.svg">"##),
            ("a/p.svg", ""),
        ]);
        let (pages, broken) = broken_links(book.path()).unwrap();
        assert_eq!(pages, 3);
        let expected =
            ["a/b.html: ../index.html#x", "a/b.html: q.svg", "a/index.html: #bottom", "a/index.html: ../c.html"];
        assert_eq!(broken, expected);
    }

    /// Returns the anchors of a page: those of its headings, as GitHub and mdBook make them, and those that it names.
    fn anchors(text: &str) -> BTreeSet<String> {
        let (mut found, mut is_code) = (BTreeSet::new(), false);
        for line in text.lines() {
            is_code ^= line.trim_start().starts_with("```");
            let heading = line.trim_start_matches('#');
            if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
                continue;
            }
            let kept = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            let anchor: String = heading.trim().chars().filter(|c| kept(*c)).collect();
            let anchor = anchor.to_lowercase().replace(' ', "-");
            let again = (1..).map(|count| format!("{anchor}-{count}")).find(|again| !found.contains(again));
            let is_new = found.insert(anchor);
            found.extend(again.filter(|_| !is_new));
        }
        found.extend(attributes(text, "id").map(str::to_owned));
        found
    }

    /// Returns the pages that a text names by their place in the repository, with their anchors.
    fn named(text: &str) -> impl Iterator<Item = &str> {
        text.match_indices("docs/").filter_map(|(at, _)| {
            let part_of = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '#');
            let name = &text[at..at + text[at..].find(|c| !part_of(c)).unwrap_or(text.len() - at)];
            let begins = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
            let page = name.split('#').next().is_some_and(|path| path.trim_end_matches('.').ends_with(".md"));
            (begins && page).then(|| name.trim_end_matches('.'))
        })
    }

    /// The links of the pages, and the pages that sources, packages and programs name.
    #[test]
    fn every_link_and_every_page_that_is_named_exists_with_its_heading() {
        let (root, mut files) = (root(), ROOT_PAGES.map(PathBuf::from).to_vec());
        for directory in ["docs", "crates", "contrib", "xtask/src", "lab", "examples", "interop"] {
            files_below(&root, Path::new(directory), &mut files).unwrap();
        }
        // The tests of this file have links to nothing.
        files.retain(|file| !file.ends_with("xtask/src/site.rs"));
        let texts: Vec<_> =
            files.iter().filter_map(|file| Some((file, fs::read_to_string(root.join(file)).ok()?))).collect();
        let is_broken = |target: &Path, anchor: &str| match fs::read_to_string(root.join(target)) {
            Ok(text) if target.extension().is_some_and(|kind| kind == "md") => {
                !anchor.is_empty() && !anchors(&text).contains(anchor)
            }
            _ => !root.join(target).exists(),
        };
        let (mut count, mut broken) = (0, Vec::new());
        for (file, text) in &texts {
            let mut check = |target: &Path, anchor: &str| {
                count += 1;
                if is_broken(target, anchor) {
                    broken.push(format!("{}: {}#{anchor}", file.display(), target.display()));
                }
            };
            if file.extension().is_some_and(|kind| kind == "md") {
                with_links(text, |link| {
                    if !link.contains(':') {
                        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                        let own = || (*file).clone();
                        let target = match path {
                            "" => own(),
                            path => normal(&file.parent().unwrap_or(Path::new("")).join(path)),
                        };
                        check(&target, anchor);
                    }
                    None
                });
            } else {
                for name in named(text) {
                    let (path, anchor) = name.split_once('#').unwrap_or((name, ""));
                    check(Path::new(path), anchor);
                }
            }
        }
        assert!(broken.is_empty(), "{} of {count} lead to nothing: {broken:#?}", broken.len());
        assert!(count > 500, "{count}");
    }

    /// The words of a text, in small letters.
    fn words(text: &str) -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect()
    }

    /// How well a field fits a word, as the search of mdBook weighs it: more for more of the word, less for a longer field. The search finds
    /// longer words that begin in the same way too.
    fn weight(field: &[String], word: &str) -> f64 {
        let hits = field.iter().filter(|other| other.starts_with(word)).count();
        if hits == 0 { 0.0 } else { (hits as f64 / field.len() as f64).sqrt() }
    }

    /// Returns the pages in the order in which a search for this word finds their sections.
    fn found(pages: &[(String, String)], word: &str) -> Vec<String> {
        let mut sections = Vec::new();
        for (page, text) in pages {
            let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
            for section in format!("\n{text}").split("\n#").skip(1) {
                let (heading, body) = section.split_once('\n').unwrap_or((section, ""));
                let crumbs = words(&format!("{title} {heading}"));
                let score = 2.0 * weight(&words(heading), word) + weight(&crumbs, word) + weight(&words(body), word);
                if score > 0.0 {
                    sections.push((score, page));
                }
            }
        }
        sections.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut order: Vec<String> = Vec::new();
        for (_, page) in sections {
            if !order.contains(page) {
                order.push(page.clone());
            }
        }
        order
    }

    #[test]
    fn a_search_for_the_word_of_a_newcomer_finds_its_page_among_the_first_three() {
        let (root, mut files) = (root(), ROOT_PAGES.map(PathBuf::from).to_vec());
        files_below(&root, Path::new("docs"), &mut files).unwrap();
        let is_page = |file: &&PathBuf| file.extension().is_some_and(|kind| kind == "md") && *file != Path::new(MENU);
        let read = |file: &PathBuf| (file.display().to_string(), fs::read_to_string(root.join(file)).unwrap());
        let pages: Vec<_> = files.iter().filter(is_page).map(read).collect();
        for (word, page) in [
            ("mutex", "guide/exclusive.md"),
            ("semaphore", "guide/permits.md"),
            ("standby", "guide/election.md"),
            ("failover", "guide/election.md"),
            ("cron", "guide/from-cron-and-flock.md"),
            ("flock", "guide/from-cron-and-flock.md"),
            ("curator", "guide/from-curator.md"),
            ("kazoo", "guide/from-kazoo.md"),
            ("redis", "comparison.md"),
            ("kubernetes", "guide/kubernetes.md"),
            ("production", "guide/production.md"),
            ("outage", "guide/production.md"),
            ("leader", "guide/election.md"),
            ("performance", "performance.md"),
            ("fast", "performance.md"),
            ("helix", "guide/helix.md"),
            ("zkblockingwritelock", "guide/synchronized.md"),
            ("helixdistributedlock", "guide/helix.md"),
            ("zkdistributednonblockinglock", "guide/helix.md"),
        ] {
            let found = found(&pages, word);
            let place = found.iter().position(|other| *other == format!("docs/{page}"));
            assert!(place.is_some_and(|place| place < 3), "{word}: {:?}", &found[..found.len().min(6)]);
        }
    }
}
