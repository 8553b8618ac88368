//! Rows 24 and 32 to 45: bodies that are no JSON object, or no operation.

use crate::machine::Machine;

use super::{Case, GOOD, case};

/// The cases.
pub(super) fn cases(machine: &Machine) -> Vec<Case> {
    let of = |name: &str, body: &[u8], status, code| {
        case(name, machine.signed("ci", "msg", body), status, code)
    };
    let mut cases = vec![
        of("24 empty", b"", 400, "empty-body"),
        of("24 blank", b" \n", 400, "empty-body"),
        of(
            "32 byte order mark",
            b"\xef\xbb\xbf{\"op\":\"release\",\"key\":\"k\"}",
            400,
            "malformed-json",
        ),
        of("33 UTF-16", b"{\0\"\0}\0", 400, "malformed-json"),
        of(
            "34 invalid UTF-8",
            b"{\"op\":\"\xff\"}",
            400,
            "malformed-json",
        ),
        of(
            "34 lone surrogate",
            br#"{"op":"\ud800"}"#,
            400,
            "malformed-json",
        ),
        of(
            "35 control character",
            b"{\"op\":\"a\x01\"}",
            400,
            "malformed-json",
        ),
        of(
            "35 escaped NUL in a key",
            br#"{"op":"release","key":"k\u0000"}"#,
            422,
            "invalid-operation",
        ),
        of(
            "36 duplicate key",
            br#"{"op":"release","key":"a","key":"b"}"#,
            400,
            "malformed-json",
        ),
        of(
            "36 escaped duplicate key",
            br#"{"op":"release","key":"a","\u006bey":"b"}"#,
            400,
            "malformed-json",
        ),
        of(
            "38 deep",
            format!("{{\"a\":{}", "[".repeat(100_000)).as_bytes(),
            400,
            "malformed-json",
        ),
        of(
            "39 1e400",
            br#"{"op":"release","key":1e400}"#,
            400,
            "malformed-json",
        ),
        of(
            "40 2^64",
            br#"{"op":"allocate","key":"k","profile":"T4-4Q","ttl_s":18446744073709551616}"#,
            422,
            "too-large-value",
        ),
        of(
            "41 count 1.0",
            br#"{"op":"allocate","key":"k","profile":"T4-4Q","count":1.0}"#,
            422,
            "invalid-operation",
        ),
        of(
            "41 count as string",
            br#"{"op":"allocate","key":"k","profile":"T4-4Q","count":"1"}"#,
            422,
            "invalid-operation",
        ),
        of(
            "43 required null",
            br#"{"op":"allocate","key":null,"profile":"T4-4Q"}"#,
            422,
            "invalid-operation",
        ),
        of(
            "44 unknown field",
            br#"{"op":"release","key":"k","extra":1}"#,
            422,
            "invalid-operation",
        ),
        of(
            "45 long string",
            format!(r#"{{"op":"release","key":"{}"}}"#, "k".repeat(9000)).as_bytes(),
            422,
            "too-large-value",
        ),
        of(
            "unknown operation",
            br#"{"op":"format_disk"}"#,
            422,
            "invalid-operation",
        ),
        of("no operation", b"{}", 422, "invalid-operation"),
        of(
            "operations beside",
            br#"{"operations":[],"x":1}"#,
            422,
            "invalid-operation",
        ),
        of(
            "operations no list",
            br#"{"operations":{}}"#,
            422,
            "invalid-operation",
        ),
        of(
            "operation no object",
            br#"{"operations":[[]]}"#,
            422,
            "invalid-operation",
        ),
        of(
            "33 operations",
            format!(r#"{{"operations":[{}]}}"#, [GOOD; 33].join(",")).as_bytes(),
            422,
            "invalid-operation",
        ),
        of(
            "one allocation twice",
            format!(r#"{{"operations":[{GOOD},{GOOD}]}}"#).as_bytes(),
            422,
            "invalid-operation",
        ),
    ];
    for text in [
        "[]",
        "null",
        "\"x\"",
        "1",
        r#"[{"op":"release","key":"k"}]"#,
        "{}{}",
        "{'a':1}",
        "{\"a\":1,}",
        "{\"a\":NaN}",
        "{\"a\":1}\0",
        "{/**/}",
    ] {
        cases.push(of(
            &format!("37, 42 {text}"),
            text.as_bytes(),
            400,
            "malformed-json",
        ));
    }
    cases
}
