//! Alerts the receivers that an owner has not cleaned up in time: a shell command or a web address.
//!
//! An alert does not decide. Its receiver answers with `lockkeeper approve` or `reject`. A program that knows the
//! answer may give it immediately, as `{"decision": "approve", "by": "...", "why": "..."}`. A success status is not an
//! answer.

use std::process::Stdio;

use futures_util::future::{BoxFuture, FutureExt, select_all};
use lockkeeper::helix::{CleanupAlert, Decision};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    pub webhook: Option<String>,
    pub printer: Printer,
}

/// The content of an alert. These fields are documented and stay.
#[derive(Serialize)]
struct AlertView<'a> {
    event: &'static str,
    /// The id that `lockkeeper approve --id` takes.
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
        if let Some(url) = &self.webhook {
            answers.push(post(url.clone(), body, self.printer).boxed());
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

/// Runs the command, and returns its decision if it makes one.
async fn run(command: &str, body: String, printer: Printer) -> Option<Decision> {
    let answered = async {
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = shell.spawn()?;
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
        Ok::<_, std::io::Error>((said?, child.wait().await?))
    };
    match answered.await {
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
                Word::Approve => Decision::Approve { by, why },
                Word::Reject => Decision::Reject { by, why },
            })
        }
        Err(error) => {
            printer.note(&format!("{whose} printed an invalid decision: {error}"));
            None
        }
    }
}

/// Sends the alert to an address, once.
#[cfg(feature = "webhook")]
async fn post(url: String, body: String, printer: Printer) -> Option<Decision> {
    let (address, answered) = (url.clone(), tokio::task::spawn_blocking(move || post_blocking(&url, &body)));
    match answered.await {
        Ok(Ok(said)) => answer(&said, &address, printer),
        Ok(Err(error)) => {
            printer.note(&format!("cannot alert {address}: {error}"));
            None
        }
        Err(error) => {
            printer.note(&format!("cannot alert {address}: {error}"));
            None
        }
    }
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
    #[cfg(feature = "webhook")]
    use crate::args::values::webhook;

    use super::*;

    #[test]
    fn only_words_decide() {
        let printer = Printer::new(true);
        let said = |text: &str| answer(text, "it", printer);
        assert_eq!(said(""), None);
        assert_eq!(said("ok\n"), None);
        assert_eq!(said("{}"), None);
        assert_eq!(said(r#"{"decision": "maybe"}"#), None);
        let approve = Decision::Approve { by: "sre".into(), why: "it hangs".into() };
        assert_eq!(said("paged\n{\"decision\":\"approve\",\"by\":\"sre\",\"why\":\"it hangs\"}\n\n"), Some(approve));
        let reject = Decision::Reject { by: "it".into(), why: "no reason given".into() };
        assert_eq!(said(r#"{"decision":"reject"}"#), Some(reject));
    }

    #[cfg(feature = "webhook")]
    #[test]
    fn only_addresses_on_the_web_can_be_told() {
        assert!(webhook("https://ops.example/locks?team=a").is_ok() && webhook("http://127.0.0.1:8080/").is_ok());
        for bad in ["", "ops.example/locks", "file:///etc/passwd", "ftp://x/", "https://", "http:// x"] {
            assert!(webhook(bad).is_err(), "{bad:?}");
        }
    }
}
