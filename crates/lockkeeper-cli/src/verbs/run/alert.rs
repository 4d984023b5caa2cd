//! Alerts the receivers that an owner has not cleaned up in time: a shell command or a web address.
//!
//! An alert does not decide. Its receiver answers with `lockkeeper requests approve` or `reject`. A program that knows the
//! answer may give it immediately, as `{"decision": "approve", "by": "...", "why": "..."}`. A success status is not an
//! answer.

use std::process::{ExitStatus, Stdio};

use futures_util::future::{BoxFuture, FutureExt, select_all};
use lockkeeper_helix::{CleanupAlert, Decision};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[cfg(feature = "webhook")]
use crate::exit::{Code, Failure};
use crate::output::Printer;
use crate::views::FactsView;

/// Bytes of an answer that are read; the rest is ignored.
const MAX_ANSWER: u64 = 64 * 1024;

/// Time limit for an address to answer. It gets one request.
#[cfg(feature = "webhook")]
const WEBHOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// The receivers of an alert.
#[derive(Clone, Debug)]
pub(crate) struct Alerts {
    pub command: Option<String>,
    #[cfg(feature = "webhook")]
    pub webhook: Option<Webhook>,
    pub printer: Printer,
}

/// An address on the web. Its path, its query or its user may be a secret, so only the rest is printed.
#[cfg(feature = "webhook")]
#[derive(Clone)]
pub(crate) struct Webhook {
    url: String,
    /// Scheme, host and port.
    name: String,
    /// Whether nobody on the way can have written the answer.
    is_safe: bool,
}

#[cfg(feature = "webhook")]
impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Webhook").field(&self.name).finish()
    }
}

#[cfg(feature = "webhook")]
impl Webhook {
    /// Reads the address in a file with credentials: the first line that is not a comment.
    pub(crate) fn read(file: &std::path::Path) -> Result<Self, Failure> {
        let text = lockkeeper_session::process::read_credentials("webhook file", file)?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self::parse(lines.next().unwrap_or_default()).ok_or_else(|| {
            Failure::new(Code::Usage, format!("{} has no http or https address", file.display()))
                .hint("write https://host/path as its only line")
        })
    }

    fn parse(url: &str) -> Option<Self> {
        let uri: ureq::http::Uri = url.parse().ok()?;
        let (scheme, host) = (uri.scheme_str()?, uri.host().filter(|host| !host.is_empty())?);
        let port = uri.port_u16().map_or_else(String::new, |port| format!(":{port}"));
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        let is_local = host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback());
        let name = format!("{scheme}://{host}{port}");
        match scheme {
            "http" | "https" => Some(Webhook { url: url.to_owned(), name, is_safe: scheme == "https" || is_local }),
            _ => None,
        }
    }

    /// Returns a text without the address.
    fn without_secret(&self, text: &str) -> String {
        let path = self.url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
        let text = text.replace(&self.url, &self.name);
        path.filter(|path| path.len() > 1).map_or_else(|| text.clone(), |path| text.replace(path, "/…"))
    }

    /// Returns the decision of an answer, if it counts.
    fn decision(&self, said: &str, printer: Printer) -> Option<Decision> {
        match answer(said, &format!("the webhook {}", self.name), printer) {
            Some(Decision::Approve { .. }) if !self.is_safe => {
                // Anyone on the way could have written it, and an approval takes the lock by force.
                printer
                    .note(&format!("the approval of {} is ignored: only https counts for another machine", self.name));
                None
            }
            decision => decision,
        }
    }
}

/// The content of an alert. These fields are documented and stay.
#[derive(Serialize)]
struct AlertView<'a> {
    event: &'static str,
    /// The id that `lockkeeper requests approve --id` takes.
    request: Option<&'a str>,
    #[serde(flatten)]
    facts: FactsView<'a>,
}

/// An answer that a receiver gives immediately.
#[derive(Deserialize)]
struct ReceiverReply {
    decision: Word,
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    why: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Approve,
    Reject,
}

impl Alerts {
    /// Alerts all receivers, and resolves if one of them decides immediately. Dropping the future kills the command.
    pub(crate) async fn raise(self, alert: CleanupAlert) -> Decision {
        let (request, facts) = (alert.request.as_deref(), alert.facts());
        let view = AlertView { event: "cleanup_unfinished", request, facts: FactsView::of(&facts) };
        let body = serde_json::to_string(&view).expect("structs of strings and numbers always serialise");
        let mut answers: Vec<BoxFuture<'_, Option<Decision>>> = Vec::new();
        if let Some(command) = &self.command {
            answers.push(run(command, body.clone(), self.printer).boxed());
        }
        #[cfg(feature = "webhook")]
        if let Some(webhook) = &self.webhook {
            answers.push(post(webhook.clone(), body, self.printer).boxed());
        }
        while !answers.is_empty() {
            let (decision, _, others) = select_all(answers).await;
            if let Some(decision) = decision {
                return decision;
            }
            answers = others;
        }
        // All receivers have the alert. A decision comes later, through a server.
        std::future::pending().await
    }
}

/// Runs a shell command with a text on its standard input, and returns what it printed and its status. Dropping the future kills it.
async fn execute(command: &str, body: String) -> std::io::Result<(Vec<u8>, ExitStatus)> {
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", command]);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // The command need not read its input: starting it is an alert too.
            _ = stdin.write_all(body.as_bytes()).await;
        }
    };
    let read = async {
        let mut said = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(MAX_ANSWER).read_to_end(&mut said).await?;
        }
        Ok::<_, std::io::Error>(said)
    };
    let (said, ()) = tokio::join!(read, write);
    Ok((said?, child.wait().await?))
}

/// Runs the command, and returns its decision if it makes one.
async fn run(command: &str, body: String, printer: Printer) -> Option<Decision> {
    match execute(command, body).await {
        Ok((said, status)) => {
            if !status.success() {
                printer.note(&format!("the alert command ended with {status}"));
                return None;
            }
            answer(&String::from_utf8_lossy(&said), "the alert command", printer)
        }
        Err(error) => {
            printer.note(&format!("the alert command cannot be run: {error}"));
            None
        }
    }
}

/// Parses the last line that is not empty, if it is a decision.
fn answer(said: &str, whose: &str, printer: Printer) -> Option<Decision> {
    let line = said.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    if !line.starts_with('{') {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    value.get("decision")?;
    match serde_json::from_value::<ReceiverReply>(value) {
        Ok(ReceiverReply { decision, by, why }) => {
            let by = by.unwrap_or_else(|| whose.to_owned());
            let why = why.unwrap_or_else(|| "no reason given".to_owned());
            Some(match decision {
                Word::Approve => Decision::Approve { by, reason: why },
                Word::Reject => Decision::Reject { by, reason: why },
            })
        }
        Err(error) => {
            printer.note(&format!("{whose} printed an invalid decision: {error}"));
            None
        }
    }
}

/// Sends the alert to an address, once. Dropping the future leaves the request to its end.
#[cfg(feature = "webhook")]
async fn post(webhook: Webhook, body: String, printer: Printer) -> Option<Decision> {
    let url = webhook.url.clone();
    let problem = match tokio::task::spawn_blocking(move || post_blocking(&url, &body)).await {
        Ok(Ok(said)) => return webhook.decision(&said, printer),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    printer.note(&format!("cannot alert {}: {}", webhook.name, webhook.without_secret(&problem)));
    None
}

#[cfg(feature = "webhook")]
fn post_blocking(url: &str, body: &str) -> Result<String, ureq::Error> {
    use ureq::tls::{Certificate, RootCerts, TlsConfig};
    // The certificate authorities that this machine trusts. If one cannot be read, the handshake that needs it fails
    // and names it.
    let trusted = rustls_native_certs::load_native_certs().certs;
    let trusted: Vec<_> = trusted.iter().map(|cert| Certificate::from_der(cert).to_owned()).collect();
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(std::sync::Arc::new(trusted)))
        .unversioned_rustls_crypto_provider(std::sync::Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    // A redirect may lead to an address that the user did not choose.
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(WEBHOOK_TIMEOUT))
        .max_redirects(0)
        .max_redirects_will_error(true)
        .tls_config(tls)
        .build()
        .new_agent();
    let mut response = agent.post(url).header("content-type", "application/json").send(body)?;
    response.body_mut().with_config().limit(MAX_ANSWER).lossy_utf8(true).read_to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_decide() {
        let printer = Printer::new(true);
        let said = |text: &str| answer(text, "it", printer);
        assert_eq!(said(""), None);
        assert_eq!(said("ok\n"), None);
        assert_eq!(said("{}"), None);
        assert_eq!(said(r#"{"decision": "maybe"}"#), None);
        let approve = Decision::Approve { by: "sre".into(), reason: "it hangs".into() };
        assert_eq!(said("paged\n{\"decision\":\"approve\",\"by\":\"sre\",\"why\":\"it hangs\"}\n\n"), Some(approve));
        let reject = Decision::Reject { by: "it".into(), reason: "no reason given".into() };
        assert_eq!(said(r#"{"decision":"reject"}"#), Some(reject));
    }

    #[cfg(feature = "webhook")]
    #[test]
    fn only_addresses_on_the_web_can_be_told() {
        let named = |url: &str| Webhook::parse(url).map(|webhook| webhook.name);
        assert_eq!(named("https://ops.example/locks?team=a").as_deref(), Some("https://ops.example"));
        assert_eq!(named("http://me:secret@127.0.0.1:8080/").as_deref(), Some("http://127.0.0.1:8080"));
        for bad in ["", "ops.example/locks", "file:///etc/passwd", "ftp://x/", "https://", "http:// x"] {
            assert_eq!(named(bad), None, "{bad:?}");
        }
    }

    /// An approval takes a lock by force. On plain http to another machine, anyone on the way could write it.
    #[cfg(feature = "webhook")]
    #[test]
    fn an_approval_over_plain_http_counts_only_from_this_machine() {
        let decided = |url: &str, decision: &str| {
            let said = format!(r#"{{"decision":"{decision}"}}"#);
            Webhook::parse(url).unwrap().decision(&said, Printer::new(true)).is_some()
        };
        for safe in ["https://ops.example/x", "http://127.0.0.1:1/x", "http://[::1]/x", "http://localhost/x"] {
            assert!(decided(safe, "approve"), "{safe}");
        }
        for plain in ["http://ops.example/x", "http://10.0.0.1/x", "http://localhost.example/x"] {
            assert!(!decided(plain, "approve") && decided(plain, "reject"), "{plain}");
        }
    }

    #[cfg(feature = "webhook")]
    #[test]
    fn what_is_printed_about_a_webhook_has_no_token() {
        let webhook = Webhook::parse("https://u:hunter2@ops.example/T0/hunter2?key=hunter2").unwrap();
        assert_eq!(format!("{webhook:?}"), r#"Webhook("https://ops.example")"#);
        let text = format!("{} refused; {webhook:?}: no /T0/hunter2?key=hunter2 there", webhook.url);
        let text = webhook.without_secret(&text);
        assert!(!text.contains("hunter2") && text.contains("https://ops.example"), "{text}");
        let said = r#"{"decision":"approve"}"#;
        let Some(Decision::Approve { by, .. }) = webhook.decision(said, Printer::new(true)) else {
            panic!("undecided")
        };
        assert_eq!(by, "the webhook https://ops.example");
    }
}
