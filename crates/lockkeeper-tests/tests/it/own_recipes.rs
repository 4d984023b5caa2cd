//! The guide's recipes: what a program builds on the session of a `Lockkeeper`, with public calls alone.

mod double_barrier;
mod work_queue;

use std::path::Path;

/// A file of the recipes stands once. `LOCKKEEPER_BLESS=1 cargo test -p lockkeeper-tests own_recipes` writes it into the page.
#[test]
fn the_page_about_recipes_shows_the_files_that_are_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = root.join("docs/guide/recipes.md");
    let mut text = std::fs::read_to_string(&page).unwrap();
    for file in ["double_barrier.rs", "work_queue.rs"] {
        let code = std::fs::read_to_string(root.join("crates/lockkeeper/examples/recipes").join(file)).unwrap();
        let link = format!("(../../crates/lockkeeper/examples/recipes/{file})");
        let (before, rest) = text.split_once(&link).unwrap_or_else(|| panic!("the page has no {link}"));
        let (lead, block) = rest.split_once("```rust\n").unwrap();
        let (shown, after) = block.split_once("```\n").unwrap();
        if shown != code {
            assert!(
                std::env::var_os("LOCKKEEPER_BLESS").is_some(),
                "the page shows another {file}: run with LOCKKEEPER_BLESS=1"
            );
            text = format!("{before}{link}{lead}```rust\n{code}```\n{after}");
            std::fs::write(&page, &text).unwrap();
        }
    }
}
