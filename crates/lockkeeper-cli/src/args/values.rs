//! The values of options, and the words of a command line.

use std::ffi::OsString;
use std::time::Duration;

/// Parses a duration with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500ms, 30s, 5m or 3h"))
}

/// Returns the words before `--`, which are lockkeeper's own.
pub(super) fn before_command(words: &[OsString]) -> &[OsString] {
    words.split(|word| word == "--").next().unwrap_or_default()
}

/// Checks the address of a webhook.
#[cfg(feature = "webhook")]
pub(crate) fn webhook(text: &str) -> Result<String, String> {
    let uri: ureq::http::Uri = text.parse().map_err(|error| format!("{error}; write https://host/path"))?;
    let host = uri.host().unwrap_or_default();
    match uri.scheme_str() {
        Some("http" | "https") if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("only http and https addresses are supported; write https://host/path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_47_waits_may_take_hours() {
        assert_eq!(duration("3h"), Ok(Duration::from_secs(3 * 3600)));
        assert!(duration("30").is_err_and(|error| error.contains("30s")));
        assert!(duration("-1s").is_err());
    }
}
