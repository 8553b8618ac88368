//! Webhook facts §10: each bad input gets its documented answer on the real socket and leaves no
//! trace: nothing accepted, nothing sent.

mod headers;

mod bodies;

mod carriers;

mod places;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Request, exchange};
use crate::machine::{Machine, TOKEN};

const GOOD: &str = r#"{"op":"release","key":"k"}"#;

struct Case {
    name: String,
    request: Request,
    status: u16,
    code: &'static str,
}

fn case(name: impl Into<String>, request: Request, status: u16, code: &'static str) -> Case {
    Case {
        name: name.into(),
        request,
        status,
        code,
    }
}

#[tokio::test]
async fn bad_input_gets_its_documented_answer_and_leaves_no_trace() {
    let machine = Machine::start().await;
    let mut texts = std::collections::BTreeSet::new();
    let cases = [
        headers::cases(&machine),
        bodies::cases(&machine),
        carriers::cases(&machine),
        places::cases(&machine),
    ]
    .concat();
    assert!(cases.len() > 100, "{}", cases.len());
    for Case {
        name,
        request,
        status,
        code,
    } in cases
    {
        let answer = request.send(machine.address).await;
        let got = (answer.status, answer.code());
        assert_eq!(got, (status, code.to_owned()), "{name}: {answer:?}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{name}"
        );
        let problem = answer.json();
        assert_eq!(
            problem["type"],
            format!("https://gpuhook.dev/problems/{code}"),
            "{name}"
        );
        assert_eq!(problem["status"], status, "{name}");
        assert_eq!(
            problem["request_id"].as_str(),
            answer.header("x-request-id"),
            "{name}"
        );
        assert_eq!(problem["instance"], request.path, "{name}");
        match status {
            401 => {
                assert!(
                    answer
                        .header("www-authenticate")
                        .unwrap()
                        .contains("webhook-signature"),
                    "{name}"
                );
                texts.insert((problem["title"].to_string(), problem["detail"].to_string()));
            }
            405 => assert_eq!(answer.header("allow"), Some("POST"), "{name}"),
            422 if code == "invalid-operation" => {
                assert!(!problem["errors"].as_array().unwrap().is_empty(), "{name}")
            }
            _ => {}
        }
        assert_eq!(machine.spy.effects(), (0, 0), "{name}");
    }
    assert_eq!(texts.len(), 1, "strangers get one answer");
    let listing = machine.get(TOKEN, "/v1/operations").await.json();
    assert_eq!(listing["items"], serde_json::json!([]));
    machine.stop().await;
}

impl Clone for Case {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            request: self.request.clone(),
            ..*self
        }
    }
}

/// Row 26, and what no HTTP client sends.
#[tokio::test]
async fn broken_framing_is_answered_400_or_closed() {
    let machine = Machine::start().await;
    let post = "POST /v1/hooks/ci HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    for (name, bytes) in [
        (
            "two lengths",
            format!("{post}content-length: 5\r\ncontent-length: 6\r\n\r\nhello"),
        ),
        (
            "no number",
            format!("{post}content-length: five\r\n\r\nhello"),
        ),
        ("negative", format!("{post}content-length: -5\r\n\r\nhello")),
        (
            "bad chunk",
            format!("{post}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        ),
        ("no HTTP", "hello\r\n\r\n".to_owned()),
        ("header with NUL", format!("{post}x: a\0b\r\n\r\n")),
    ] {
        let answer = exchange(machine.address, bytes.as_bytes()).await;
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
    }
    // What hyper reads as chunks, or as one length, may have been read otherwise on the way here.
    for twice in [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 5",
        "content-length: 5\r\ncontent-length: 5",
        "transfer-encoding: gzip, chunked",
    ] {
        // Also behind a request that leaves the connection open.
        for before in ["", "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"] {
            let bytes = format!("{before}{post}{twice}\r\n\r\n0\r\n\r\n{post}\r\n");
            let answer = exchange(machine.address, bytes.as_bytes()).await;
            let text = format!("HTTP/1.1 {} \r\n\r\n{}", answer.status, answer.text);
            let statuses: Vec<_> = text.split("HTTP/1.1 ").skip(1).map(|at| &at[..3]).collect();
            let healthy: &[_] = if before.is_empty() { &[] } else { &["200"] };
            assert_eq!(
                statuses,
                [healthy, &["400"]].concat(),
                "{twice}: {answer:?}"
            );
            assert!(text.contains("malformed-framing"), "{answer:?}");
        }
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    machine.stop().await;
}

/// Row 48: what the head alone decides is answered without asking for the body.
#[tokio::test]
async fn a_body_is_only_asked_for_once_its_head_is_acceptable() {
    let machine = Machine::start().await;
    let awaited = |request: Request, length: &str| {
        let mut request = request
            .with("expect", "100-continue")
            .with("content-length", length);
        request.body.clear();
        request
    };
    let good = || machine.signed("ci", "msg", GOOD.as_bytes());
    let at = |path: &str| Request {
        path: path.to_owned(),
        ..good()
    };
    let json = |request: Request| request.with("content-type", "application/json");
    for (name, request, length, status) in [
        (
            "text",
            good().replacing("content-type", "text/plain"),
            "5",
            415,
        ),
        ("too large", good(), "262145", 413),
        ("unsigned", good().without("webhook-signature"), "5", 401),
        (
            "stale by its form",
            good().replacing("webhook-timestamp", "-1"),
            "5",
            401,
        ),
        ("dotted id", good().replacing("webhook-id", "a.5"), "5", 400),
        (
            "unknown source",
            at("/v1/hooks/x").without("webhook-id"),
            "5",
            404,
        ),
        (
            "no API key",
            json(Request::new("POST", "/vgpu", "")),
            "5",
            401,
        ),
        (
            "API key and too large",
            json(Request::new("POST", "/vgpu", "")),
            "262145",
            413,
        ),
    ] {
        let answer = awaited(request, length).send(machine.address).await;
        assert_eq!(answer.status, status, "{name}: {answer:?}");
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    // A head that may do is answered by asking.
    let mut stream = TcpStream::connect(machine.address).await.unwrap();
    let length = GOOD.len().to_string();
    let head = awaited(good(), &length).bytes();
    stream.write_all(&head).await.unwrap();
    let mut asked = [0; 25];
    stream.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(GOOD.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 202 "), "{text}");
    machine.stop().await;
}
