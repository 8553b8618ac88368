//! Rows 46, 47, 50, 53, 54: paths, methods, sources, roles and targets.

use crate::client::Request;
use crate::machine::Machine;

use super::{Case, GOOD, case};

/// The cases.
pub(super) fn cases(machine: &Machine) -> Vec<Case> {
    let good = || machine.signed("ci", "msg", GOOD.as_bytes());
    let at = |path: &str| Request {
        path: path.to_owned(),
        ..good()
    };
    let mut cases = vec![
        case("53 unknown source", at("/v1/hooks/nobody-here"), 404, "not-found"),
        case("53 unknown source, unsigned", Request { headers: Vec::new(), ..at("/v1/hooks/x") }.with("content-type", "application/json"), 404, "not-found"),
        case("api-key source by hook", at("/v1/hooks/seed"), 404, "not-found"),
        case("54 role without permission", machine.signed("nobody", "msg", GOOD.as_bytes()), 403, "not-permitted"),
        case("unknown host", machine.signed("ci", "m", br#"{"op":"inspect","target":{"host":"nowhere"}}"#), 422, "invalid-operation"),
        case("unknown pool", machine.signed("ci", "m", br#"{"op":"allocate","key":"k","profile":"T4-4Q","target":{"pool":"x"}}"#), 422, "invalid-operation"),
        case("unknown GPU", machine.signed("ci", "m", br#"{"op":"allocate","key":"k","profile":"T4-4Q","target":{"host":"gpu-1","gpu":9}}"#), 422, "unplaceable"),
        case("50 method override", good().with("x-http-method-override", "GET").replacing("webhook-signature", "v1,AAAA"), 401, "unauthenticated"),
    ];
    for path in [
        "/hooks/../admin",
        "/v1/hooks/../admin",
        "/v1/hooks/%2e%2e",
        "/v1//hooks/ci",
        "//v1/hooks/ci",
        "/v1/hooks/ci/",
        "/V1/hooks/ci",
        "/v1/hooks/CI",
        "/v1/hooks",
        "/v1/hooks/%ff",
        "/",
        "/v1/hooks/ci/x",
    ] {
        cases.push(case(format!("46 {path}"), at(path), 404, "not-found"));
    }
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        cases.push(case(
            format!("47 {method}"),
            Request {
                method: method.to_owned(),
                ..good()
            },
            405,
            "method-not-allowed",
        ));
    }
    cases
}
