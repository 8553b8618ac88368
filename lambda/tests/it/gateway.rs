//! HTTP events: the same request from every carrier, and a 400 for what is none (field F27, webhook facts
//! §2 and §10).

use axum::body::Body;
use axum::http::{Request, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use lambda::gateway::{self, Malformed};
use serde_json::{Value, json};

const BODY: &str = r#"{"op":"release","key":"Grüße 猫"}"#;

/// One signed webhook as each carrier gives it.
fn carriers(body: &str, is_base64: bool) -> Vec<(&'static str, Value)> {
    let headers = json!({"content-type": "application/json", "webhook-id": "msg_1", "host": "x", "content-length": "1"});
    let mixed = json!({"Content-Type": "application/json", "Webhook-Id": "msg_1", "Host": "x"});
    let lists =
        json!({"Content-Type": ["application/json"], "Webhook-Id": ["msg_1"], "Host": ["x"]});
    let http = json!({"http": {"method": "POST", "path": "/v1/hooks/ci"}});
    vec![
        (
            "HTTP API, function URL",
            json!({"version": "2.0", "rawPath": "/v1/hooks/ci", "rawQueryString": "a=1&b=%20x", "headers": headers,
                "requestContext": http, "body": body, "isBase64Encoded": is_base64}),
        ),
        (
            "REST API",
            json!({"version": "1.0", "path": "/v1/hooks/ci", "httpMethod": "POST", "headers": mixed, "multiValueHeaders": lists,
                "multiValueQueryStringParameters": {"a": ["1"], "b": [" x"]}, "body": body, "isBase64Encoded": is_base64}),
        ),
        (
            "REST API, single values only",
            json!({"path": "/v1/hooks/ci", "httpMethod": "POST", "headers": mixed, "queryStringParameters": {"a": "1", "b": " x"},
                "body": body, "isBase64Encoded": is_base64}),
        ),
        (
            "load balancer",
            // Which does not decode parameters.
            json!({"requestContext": {"elb": {}}, "path": "/v1/hooks/ci", "httpMethod": "POST", "multiValueHeaders": lists,
                "multiValueQueryStringParameters": {"a": ["1"], "b": ["%20x"]}, "body": body, "isBase64Encoded": is_base64}),
        ),
    ]
}

async fn bytes(request: Request<Body>) -> Vec<u8> {
    request
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes()
        .to_vec()
}

#[tokio::test]
async fn every_carrier_gives_the_same_request() {
    let encoded = STANDARD.encode(BODY);
    for (body, is_base64) in [(BODY, false), (encoded.as_str(), true)] {
        for (carrier, event) in carriers(body, is_base64) {
            let request = gateway::request(&event).unwrap();
            assert_eq!(request.method(), "POST", "{carrier}");
            assert_eq!(request.uri(), "/v1/hooks/ci?a=1&b=%20x", "{carrier}");
            let headers = request.headers();
            assert_eq!(headers["content-type"], "application/json", "{carrier}");
            assert_eq!(headers["webhook-id"], "msg_1", "{carrier}");
            assert!(!headers.contains_key("content-length"), "{carrier}");
            assert_eq!(bytes(request).await, BODY.as_bytes(), "{carrier}");
        }
    }
}

#[test]
fn nobody_waits_in_a_function() {
    let asked = event(|event| event["headers"]["prefer"] = json!("wait=25"));
    let request = gateway::request(&asked).unwrap();
    assert!(!request.headers().contains_key("prefer"));
}

fn event(change: impl FnOnce(&mut Value)) -> Value {
    let mut event = carriers(BODY, false).remove(0).1;
    change(&mut event);
    event
}

#[tokio::test]
async fn bodies_are_absent_empty_or_decoded_once() {
    for (body, is_base64, expect) in [
        (Value::Null, json!(false), ""),
        (Value::Null, json!(true), ""),
        (json!(""), json!(true), ""),
        (json!("ZXlKdklqb3gi"), json!(true), "eyJvIjox\""),
        (json!("ZXlK"), json!(false), "ZXlK"),
        (json!("ZXlK"), Value::Null, "ZXlK"),
    ] {
        let request = gateway::request(&event(|event| {
            event["body"] = body.clone();
            event["isBase64Encoded"] = is_base64;
        }));
        let read = bytes(request.unwrap()).await;
        assert_eq!(read, expect.as_bytes(), "{body}");
    }
    let mut absent = event(|_| {});
    absent.as_object_mut().unwrap().remove("body");
    assert_eq!(bytes(gateway::request(&absent).unwrap()).await, b"");
}

#[test]
fn what_is_no_request_is_refused_and_not_panicked_about() {
    let code = |event: &Value| match gateway::request(event) {
        Err(Malformed { code, .. }) => code,
        Ok(request) => panic!("{event} is {request:?}"),
    };
    for (body, is_base64) in [
        (json!("%%%"), true),
        (json!("ZXl"), true),
        (json!("ZXlK\n"), true),
        (json!("ZX-_"), true),
        (json!({"a": 1}), false),
        (json!(7), false),
    ] {
        let bad = event(|event| {
            event["body"] = body.clone();
            event["isBase64Encoded"] = is_base64.into();
        });
        assert_eq!(code(&bad), "malformed-body", "{body}");
    }
    for (name, value) in [
        ("webhook-id", json!("a\u{0}b")),
        ("webhook-id", json!("a\u{7f}b")),
        ("webhook-id", json!("a\r\nb")),
        ("webhook id", json!("x")),
        ("", json!("x")),
        ("webhook-id", json!(7)),
    ] {
        let bad = event(|event| event["headers"][name] = value.clone());
        assert_eq!(code(&bad), "malformed-header", "{name} {value}");
    }
    for bad in [
        json!(null),
        json!("text"),
        json!([]),
        json!({}),
        event(|event| event["rawPath"] = Value::Null),
        event(|event| event["requestContext"]["http"]["method"] = json!("NO SUCH")),
    ] {
        assert_eq!(code(&bad), "malformed-request", "{bad}");
    }
}

/// What a carrier has decoded is encoded again, so that any path is one.
#[test]
fn paths_are_uris_whatever_the_carrier_did_to_them() {
    for (given, expect) in [
        (
            "/v1/allocations/github:org/repo",
            "/v1/allocations/github:org/repo",
        ),
        (
            "/v1/allocations/github%3Aorg%2Frepo",
            "/v1/allocations/github%3Aorg%2Frepo",
        ),
        ("/v1/allocations/a b", "/v1/allocations/a%20b"),
        ("/v1/hooks/ä\u{1}\"<>", "/v1/hooks/%C3%A4%01%22%3C%3E"),
        ("/", "/"),
    ] {
        let request = gateway::request(&event(|event| event["rawPath"] = given.into())).unwrap();
        assert_eq!(request.uri().path(), expect, "{given:?}");
    }
}

#[tokio::test]
async fn an_answer_keeps_status_headers_and_body() {
    let response = Response::builder()
        .status(202)
        .header("content-type", "application/json")
        .header("location", "/v1/deliveries/1")
        .header("connection", "close")
        .body(Body::from("{}"))
        .unwrap();
    let answer = gateway::answer(response).await;
    assert_eq!(
        answer,
        json!({"statusCode": 202, "body": "{}", "isBase64Encoded": false,
            "headers": {"content-type": "application/json", "location": "/v1/deliveries/1"}})
    );
    let binary = Response::new(Body::from(vec![0xff, 0x00]));
    let answer = gateway::answer(binary).await;
    assert_eq!(
        (&answer["body"], &answer["isBase64Encoded"]),
        (&json!("/wA="), &json!(true))
    );
    let refused = gateway::refusal(gateway::request(&json!({})).unwrap_err());
    assert_eq!(refused["statusCode"], 400);
    let problem: Value = serde_json::from_str(refused["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&problem["status"], &problem["code"]),
        (&json!(400), &json!("malformed-request"))
    );
}
