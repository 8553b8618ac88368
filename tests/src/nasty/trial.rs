//! One row under trial: what is sent, what should come back, what does, and what is left behind.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use anyhow::Result;

use super::machine::{Machine, Traces};
use super::sender::Webhook;
use super::wire::{self, Answer, Exchange, Request};

/// Every answer here comes at once, apart from the second in which a body that is too large is
/// drained; idle connections are only closed after 5 s, which would hide that the door left one open.
const AT_ONCE: Duration = Duration::from_secs(4);

/// The code of every failed authentication.
pub(super) const UNAUTHENTICATED: &str = "unauthenticated";

/// What should come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// A problem document, and no trace.
    Refused(u16, &'static str),
    /// The server's own answer to what is no HTTP, and no trace.
    Bare(u16),
    /// `202`, and one delivery with one operation whose command is in the queue.
    Accepted,
    /// `202` as before, marked as a replay, and nothing new.
    Replayed,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status, code) => write!(f, "{status} {code}"),
            Self::Bare(status) => write!(f, "{status}"),
            Self::Accepted => f.write_str("202 accepted"),
            Self::Replayed => f.write_str("202 replayed"),
        }
    }
}

/// What came of one case.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    pub(super) name: String,
    pub(super) expected: String,
    pub(super) seen: String,
    pub(super) faults: Vec<String>,
}

/// The texts that strangers got so far, by the door's challenge. There must be one each.
pub(super) type Strangers = BTreeMap<String, String>;

/// See the module.
pub(super) struct Trial<'a> {
    pub(super) machine: &'a mut Machine,
    pub(super) strangers: &'a mut Strangers,
    pub(super) verdicts: Vec<Verdict>,
}

impl Trial<'_> {
    /// A webhook of the v1 source that is accepted as it is.
    pub(super) fn webhook(&self) -> Webhook {
        self.machine.webhook("ci")
    }

    /// One of each scheme.
    pub(super) fn both(&self) -> [Webhook; 2] {
        ["ci", "deploy"].map(|source| self.machine.webhook(source))
    }

    /// Sends a request that must be refused and leave no trace.
    pub(super) fn refused(
        &mut self,
        name: impl Into<String>,
        request: &Request,
        status: u16,
        code: &'static str,
    ) -> Option<Answer> {
        let seen = self.send(&request.bytes());
        let (answer, mut verdict) = self.judge(name, Expected::Refused(status, code), seen);
        if let Some(answer) = &answer {
            let head = request.method == "HEAD";
            if !head {
                verdict.faults.extend(problem_faults(answer, request, code));
            }
            if request.is_kept_open() && !answer.is_last() {
                verdict.faults.push("no Connection: close".into());
            }
            verdict.faults.extend(self.header_faults(answer));
        }
        self.verdicts.push(verdict);
        answer
    }

    /// Sends bytes that are no HTTP, or not enough of it.
    pub(super) fn bare(&mut self, name: impl Into<String>, bytes: &[u8], status: u16) {
        let seen = self.send(bytes);
        let (_, verdict) = self.judge(name, Expected::Bare(status), seen);
        self.verdicts.push(verdict);
    }

    /// Sends a request that must be accepted as a new delivery with one command.
    pub(super) fn accepted(
        &mut self,
        name: impl Into<String>,
        request: &Request,
    ) -> Option<Answer> {
        self.succeeded(name, request, Expected::Accepted)
    }

    /// Sends a request that must be answered as it was before.
    pub(super) fn replayed(
        &mut self,
        name: impl Into<String>,
        request: &Request,
    ) -> Option<Answer> {
        self.succeeded(name, request, Expected::Replayed)
    }

    fn succeeded(
        &mut self,
        name: impl Into<String>,
        request: &Request,
        expected: Expected,
    ) -> Option<Answer> {
        let seen = self.send(&request.bytes());
        let (answer, verdict) = self.judge(name, expected, seen);
        self.verdicts.push(verdict);
        answer
    }

    /// Records what no request shows.
    pub(super) fn observed(
        &mut self,
        name: impl Into<String>,
        expected: impl Into<String>,
        seen: impl Into<String>,
        faults: Vec<String>,
    ) {
        self.verdicts.push(Verdict {
            name: name.into(),
            expected: expected.into(),
            seen: seen.into(),
            faults,
        });
    }

    /// Records whether something holds that no single answer shows.
    pub(super) fn holds(
        &mut self,
        name: impl Into<String>,
        what: &'static str,
        fault: Option<String>,
    ) {
        let seen = if fault.is_none() { what } else { "otherwise" };
        self.observed(name, what, seen, fault.into_iter().collect());
    }

    /// Adds a block to the configuration, which must be refused with a fault that names `what`.
    pub(super) fn misconfigured(&mut self, name: impl Into<String>, block: &str, what: &str) {
        let faults = self.machine.faults_with(block);
        let named = faults.lines().find(|line| line.contains(what));
        let wrong = match named {
            Some(_) => Vec::new(),
            None => vec![format!("no fault names {what}: {faults:?}")],
        };
        let seen = if faults.is_empty() {
            "loaded"
        } else {
            "not loaded"
        };
        self.observed(name, "not loaded", seen, wrong);
    }

    /// Sends bytes, and looks for traces before and after.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<(Exchange, Traces)> {
        self.around(|machine| wire::exchange(machine.address, bytes))
    }

    /// Does something on the wire, and looks for traces before and after.
    pub(super) fn around(
        &self,
        act: impl FnOnce(&Machine) -> io::Result<Exchange>,
    ) -> Result<(Exchange, Traces)> {
        let before = self.machine.traces()?;
        let exchange = act(self.machine)?;
        Ok((exchange, self.machine.traces()? - before))
    }

    /// Compares; gives back the last answer.
    pub(super) fn judge(
        &self,
        name: impl Into<String>,
        expected: Expected,
        seen: Result<(Exchange, Traces)>,
    ) -> (Option<Answer>, Verdict) {
        let mut verdict = Verdict {
            name: name.into(),
            expected: expected.to_string(),
            seen: String::new(),
            faults: Vec::new(),
        };
        let (mut exchange, traces) = match seen {
            Ok(seen) => seen,
            Err(error) => {
                verdict.seen = format!("{error:#}");
                verdict.faults.push("no answer that could be read".into());
                return (None, verdict);
            }
        };
        verdict.seen = told(&exchange);
        let last = exchange.answers.pop();
        // What a sender that waits is told on the way.
        exchange.answers.retain(|answer| answer.status != 100);
        if !exchange.answers.is_empty() {
            verdict.faults.push("more than one answer".into());
        }
        if !exchange.closed || exchange.took > AT_ONCE {
            verdict.faults.push("the connection was left open".into());
        }
        let faults = last
            .as_ref()
            .map(|answer| answer_faults(expected, answer, traces));
        let none = || vec!["the connection was closed without an answer".into()];
        verdict.faults.extend(faults.unwrap_or_else(none));
        (last, verdict)
    }

    fn header_faults(&mut self, answer: &Answer) -> Vec<String> {
        let mut faults = Vec::new();
        match answer.status {
            401 => {
                let challenge = answer.header("www-authenticate").unwrap_or_default();
                if !["webhook-signature", "X-API-KEY"]
                    .iter()
                    .any(|name| challenge.contains(name))
                {
                    faults.push(format!("WWW-Authenticate is {challenge:?}"));
                }
                let text = without_names(answer);
                let first = self.strangers.entry(challenge.to_owned());
                if *first.or_insert_with(|| text.clone()) != text {
                    faults.push(format!("strangers get more than one answer: {text}"));
                }
            }
            405 if answer.header("allow") != Some("POST") => {
                faults.push(format!("Allow is {:?}", answer.header("allow")));
            }
            503 if answer.header("retry-after").is_none() => {
                faults.push("no Retry-After".to_owned());
            }
            _ => {}
        }
        faults
    }
}

/// Everything that a stranger can compare, apart from what names the request or the moment.
pub(super) fn without_names(answer: &Answer) -> String {
    let mut document = answer.json();
    if let Some(members) = document.as_object_mut() {
        members.remove("request_id");
        members.remove("instance");
    }
    let named = ["date", "x-request-id", "content-length"];
    let headers: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| !named.contains(&name.as_str()))
        .collect();
    format!("{} {headers:?} {document}", answer.status)
}

fn told(exchange: &Exchange) -> String {
    let answers = exchange.answers.iter().map(|answer| {
        let code = answer.code();
        format!("{} {code}", answer.status).trim_end().to_owned()
    });
    let mut told: Vec<_> = answers.collect();
    if told.is_empty() {
        told.push(if exchange.closed { "closed" } else { "silence" }.to_owned());
    }
    told.join(", ")
}

fn answer_faults(expected: Expected, answer: &Answer, traces: Traces) -> Vec<String> {
    let (status, left) = match expected {
        Expected::Refused(status, _) | Expected::Bare(status) => (status, Traces::default()),
        Expected::Replayed => (202, Traces::default()),
        Expected::Accepted => {
            let one = Traces {
                deliveries: 1,
                operations: 1,
                allocations: 0,
                messages: 1,
            };
            (202, one)
        }
    };
    let mut faults = Vec::new();
    if answer.status != status {
        faults.push(format!("the status is {}", answer.status));
    }
    let replayed = answer.header("idempotent-replayed") == Some("true");
    if replayed != (expected == Expected::Replayed) {
        faults.push(format!("Idempotent-Replayed is {replayed}"));
    }
    if traces != left {
        faults.push(format!("left {traces:?}"));
    }
    faults
}

fn problem_faults(answer: &Answer, request: &Request, code: &str) -> Vec<String> {
    let document = answer.json();
    let path = request.path.split('?').next().unwrap_or_default();
    let kind = format!("https://gpuhook.dev/problems/{code}");
    let mut faults = Vec::new();
    for (what, seen, expected) in [
        ("code", document["code"].as_str(), Some(code)),
        ("type", document["type"].as_str(), Some(kind.as_str())),
        ("instance", document["instance"].as_str(), Some(path)),
        (
            "request_id",
            document["request_id"].as_str(),
            answer.header("x-request-id"),
        ),
        (
            "content type",
            answer.header("content-type"),
            Some("application/problem+json"),
        ),
    ] {
        if seen != expected {
            faults.push(format!("{what} is {seen:?}"));
        }
    }
    if document["status"] != answer.status {
        faults.push(format!("the document's status is {}", document["status"]));
    }
    faults
}
