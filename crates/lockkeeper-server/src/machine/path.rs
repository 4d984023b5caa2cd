//! The rules for paths.
//!
//! The rules are those of ZooKeeper's `PathUtils`, character ranges included. A path must be readable by every client
//! and must survive a move to an ensemble.

use lockkeeper_wire::ErrorCode;

/// Checks a complete path.
pub(crate) fn validate(path: &str) -> Result<(), ErrorCode> {
    let Some(rest) = path.strip_prefix('/') else { return Err(ErrorCode::BadArguments) };
    if rest.is_empty() {
        return Ok(());
    }
    for name in rest.split('/') {
        if name.is_empty() || name == "." || name == ".." || name.chars().any(is_forbidden) {
            return Err(ErrorCode::BadArguments);
        }
    }
    Ok(())
}

/// Checks a path whose last name still gets its number. The name may be empty before that.
pub(crate) fn validate_prefix(path: &str) -> Result<(), ErrorCode> {
    let (parent, name) = path.rsplit_once('/').ok_or(ErrorCode::BadArguments)?;
    if name.chars().any(is_forbidden) || parent == "/" {
        return Err(ErrorCode::BadArguments);
    }
    if parent.is_empty() { Ok(()) } else { validate(parent) }
}

/// ZooKeeper checks UTF-16 units, so a character beyond the basic plane is a forbidden surrogate.
fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}')
}

/// Returns parent and name of an absolute path other than `/`.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let slash = path.rfind('/')?;
    let parent = if slash == 0 { "/" } else { &path[..slash] };
    Some((parent, &path[slash + 1..]))
}

/// Returns the parent, its parent and so on, up to `/`.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let parent = |path| split(path).filter(|(_, name)| !name.is_empty()).map(|(parent, _)| parent);
    std::iter::successors(parent(path), move |path| parent(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_judged_as_zookeeper_judges_them() {
        for good in ["/", "/a", "/a/b", "/a.b", "/a..b", "/..a", "/a/...", "/ä/日本", "/a b", "/lock-0000000001"] {
            assert_eq!(validate(good), Ok(()), "{good:?}");
        }
        for bad in [
            "",
            "a",
            "a/b",
            "//",
            "/a/",
            "/a//b",
            "//a",
            "/.",
            "/..",
            "/a/.",
            "/a/../b",
            "/a/./b",
            "/a\0",
            "/\u{1}",
            "/a\u{7f}",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{fffd}",
            "/\u{1f512}",
        ] {
            assert_eq!(validate(bad), Err(ErrorCode::BadArguments), "{bad:?}");
        }
    }

    #[test]
    fn a_numbered_name_may_be_nothing_but_its_number() {
        for good in ["/", "/a/", "/a/.", "/a/..", "/lock-"] {
            assert_eq!(validate_prefix(good), Ok(()), "{good:?}");
        }
        for bad in ["", "a", "//", "/a//", "/../a", "/a\0"] {
            assert_eq!(validate_prefix(bad), Err(ErrorCode::BadArguments), "{bad:?}");
        }
    }

    #[test]
    fn splitting_gives_parent_and_name() {
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(split("/a/"), Some(("/a", "")));
        assert_eq!(split("a"), None);
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
