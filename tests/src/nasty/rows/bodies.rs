//! Rows 32 to 45: bodies, all of them correctly signed.

use anyhow::Result;

use super::{Row, row};
use crate::nasty::sender::{self, GOOD};
use crate::nasty::trial::Trial;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(
        32,
        "UTF-8 byte order mark",
        "400 malformed-json",
        byte_order_mark,
    ),
    row(33, "UTF-16 body", "400", utf_16),
    row(
        34,
        "invalid UTF-8, lone surrogate escape",
        "400",
        invalid_utf_8,
    ),
    row(
        35,
        "raw control character in a string; escaped in a name",
        "400; 422",
        control_characters,
    ),
    row(
        36,
        "duplicate keys, also as \"\\u0061\" and \"a\"",
        "400",
        duplicate_keys,
    ),
    row(
        37,
        "array where an object is expected",
        "400 at the top, 422 below",
        arrays,
    ),
    row(38, "nesting deeper than 32, 100,000 brackets", "400", depth),
    row(
        39,
        "1e400, an integer of 400 digits, 1e-999999",
        "400 out of range; a float is no integer, 422",
        numbers,
    ),
    row(
        40,
        "2^53+1, 2^63, 2^64",
        "422, fields are typed and have ranges",
        large_integers,
    ),
    row(41, "1.0, 1e2, \"1\", -0 for an integer", "422", no_integers),
    row(
        42,
        "NaN, comments, trailing comma, single quotes, two documents, trailing NUL",
        "400",
        no_json,
    ),
    row(
        43,
        "null as body; null for a required field",
        "400; 422; null for an optional field is absence",
        null,
    ),
    row(44, "unknown fields", "422 on our own API", unknown_fields),
    row(
        45,
        "1 MB key or string, 100,000 keys",
        "413, 422 by caps (key 256 B, string 8 KiB, 1024 items)",
        sizes,
    ),
];

const JSON: &str = "malformed-json";
const OPERATION: &str = "invalid-operation";
const LARGE: &str = "too-large-value";

fn refused(trial: &mut Trial<'_>, bodies: &[&[u8]], status: u16, code: &'static str) {
    for body in bodies {
        let mut name: String = String::from_utf8_lossy(body).escape_debug().collect();
        if name.len() > 90 {
            name = format!(
                "{} bytes, {}…",
                body.len(),
                name.chars().take(60).collect::<String>()
            );
        }
        for webhook in trial.both() {
            trial.refused(&name, &webhook.body(*body).request(), status, code);
        }
    }
}

fn byte_order_mark(trial: &mut Trial<'_>) -> Result<()> {
    let marked = format!("\u{feff}{GOOD}");
    refused(
        trial,
        &[marked.as_bytes(), b"\xef\xbb\xbf", b"\xef\xbb\xbf{}"],
        400,
        JSON,
    );
    Ok(())
}

fn utf_16(trial: &mut Trial<'_>) -> Result<()> {
    let little: Vec<u8> = GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = GOOD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let marked = [b"\xff\xfe".as_slice(), &little].concat();
    refused(trial, &[&little, &big, &marked], 400, JSON);
    Ok(())
}

fn invalid_utf_8(trial: &mut Trial<'_>) -> Result<()> {
    let bodies: [&[u8]; 6] = [
        b"{\"op\":\"release\",\"key\":\"\xff\"}",
        b"{\"op\":\"release\",\"key\":\"\xc0\xaf\"}",
        b"{\"op\":\"release\",\"key\":\"\xed\xa0\x80\"}",
        b"{\"\xff\":1}",
        br#"{"op":"release","key":"\ud800"}"#,
        br#"{"op":"release","key":"\udc00\ud800"}"#,
    ];
    refused(trial, &bodies, 400, JSON);
    Ok(())
}

fn control_characters(trial: &mut Trial<'_>) -> Result<()> {
    let raw: [&[u8]; 4] = [
        b"{\"op\":\"release\",\"key\":\"a\x01\"}",
        b"{\"op\":\"release\",\"key\":\"a\0\"}",
        b"{\"op\":\"release\",\"key\":\"a\nb\"}",
        b"{\"op\":\"release\",\"key\":\"a\tb\"}",
    ];
    refused(trial, &raw, 400, JSON);
    let escaped: [&[u8]; 5] = [
        br#"{"op":"release","key":"k\u0000"}"#,
        br#"{"op":"release","key":"k\n"}"#,
        br#"{"op":"release\u0000","key":"k"}"#,
        br#"{"op":"allocate","key":"k","profile":"T4-4Q\u0000"}"#,
        br#"{"op":"inspect","target":{"host":"gpu-1\u0000"}}"#,
    ];
    refused(trial, &escaped, 422, OPERATION);
    Ok(())
}

fn duplicate_keys(trial: &mut Trial<'_>) -> Result<()> {
    let bodies: [&[u8]; 5] = [
        br#"{"op":"release","key":"a","key":"b"}"#,
        br#"{"op":"release","key":"a","key":"a"}"#,
        br#"{"op":"release","key":"a","\u006bey":"b"}"#,
        br#"{"op":"release","op":"allocate","key":"a"}"#,
        br#"{"op":"inspect","target":{"host":"gpu-1","host":"vault"}}"#,
    ];
    refused(trial, &bodies, 400, JSON);
    Ok(())
}

fn arrays(trial: &mut Trial<'_>) -> Result<()> {
    let listed = format!("[{GOOD}]");
    refused(
        trial,
        &[
            b"[]",
            b"[1,\"x\"]",
            br#"["release","k"]"#,
            listed.as_bytes(),
        ],
        400,
        JSON,
    );
    let below: [&[u8]; 5] = [
        br#"{"operations":[["release","k"]]}"#,
        br#"{"operations":{"op":"release","key":"k"}}"#,
        br#"{"op":"inspect","target":["gpu-1"]}"#,
        br#"{"op":"allocate","key":"k","profile":"T4-4Q","limits":[1]}"#,
        br#"{"op":["release"],"key":"k"}"#,
    ];
    refused(trial, &below, 422, OPERATION);
    Ok(())
}

fn depth(trial: &mut Trial<'_>) -> Result<()> {
    let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    let brackets = format!("{{\"a\":{}", "[".repeat(100_000));
    let closed = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let (at_34, at_128) = (nested(34), nested(128));
    let bodies = [
        at_34.as_bytes(),
        at_128.as_bytes(),
        brackets.as_bytes(),
        closed.as_bytes(),
    ];
    refused(trial, &bodies, 400, JSON);
    // Read, and then no operation.
    refused(trial, &[nested(32).as_bytes()], 422, OPERATION);
    Ok(())
}

/// An allocation with that as its `ttl_s`, and one with it as its `count`.
fn with_number(number: &str) -> [String; 2] {
    ["ttl_s", "count"].map(|field| {
        format!(r#"{{"op":"allocate","key":"k","profile":"T4-4Q","{field}":{number}}}"#)
    })
}

fn refused_numbers(trial: &mut Trial<'_>, numbers: &[&str], status: u16, code: &'static str) {
    for number in numbers {
        for body in with_number(number) {
            refused(trial, &[body.as_bytes()], status, code);
        }
    }
}

fn numbers(trial: &mut Trial<'_>) -> Result<()> {
    let digits = "9".repeat(400);
    refused_numbers(trial, &["1e400", "-1e400", &digits], 400, JSON);
    refused_numbers(trial, &["1e-999999"], 422, OPERATION);
    Ok(())
}

fn large_integers(trial: &mut Trial<'_>) -> Result<()> {
    refused_numbers(
        trial,
        &[
            "9007199254740993",
            "9223372036854775808",
            "-9223372036854775808",
        ],
        422,
        OPERATION,
    );
    refused_numbers(
        trial,
        &["18446744073709551616", "-9223372036854775809"],
        422,
        LARGE,
    );
    Ok(())
}

fn no_integers(trial: &mut Trial<'_>) -> Result<()> {
    let numbers = [
        "1.0", "1e2", "\"1\"", "-0", "-1", "0", "true", "[1]", "{}", "\"\"",
    ];
    refused_numbers(trial, &numbers, 422, OPERATION);
    Ok(())
}

fn no_json(trial: &mut Trial<'_>) -> Result<()> {
    let appended = |text: &str| format!("{GOOD}{text}");
    let (two, nul, comma) = (appended(GOOD), appended("\0"), appended(","));
    let bodies: [&[u8]; 18] = [
        b"{\"a\":NaN}",
        b"{\"a\":Infinity}",
        b"{\"a\":-Infinity}",
        b"{/**/}",
        b"// x\n{}",
        b"{\"a\":1,}",
        b"{'a':1}",
        b"{a:1}",
        b"{\"a\":01}",
        b"{\"a\":.5}",
        b"{\"a\":0x1}",
        b"{\"a\":\"\\x41\"}",
        b"{\"a\" 1}",
        b"{",
        b"not json",
        two.as_bytes(),
        nul.as_bytes(),
        comma.as_bytes(),
    ];
    refused(trial, &bodies, 400, JSON);
    Ok(())
}

fn null(trial: &mut Trial<'_>) -> Result<()> {
    refused(trial, &[b"null", b"true", b"1", b"\"x\""], 400, JSON);
    let required: [&[u8]; 4] = [
        br#"{"op":"release","key":null}"#,
        br#"{"op":null,"key":"k"}"#,
        br#"{"op":"inspect","target":null}"#,
        br#"{"operations":null}"#,
    ];
    refused(trial, &required, 422, OPERATION);
    let optional = r#"{"op":"inspect","target":{"host":"gpu-1","gpu":null}}"#;
    let webhook = trial.webhook().body(optional);
    trial.accepted("null for an optional field", &webhook.request());
    Ok(())
}

fn unknown_fields(trial: &mut Trial<'_>) -> Result<()> {
    let bodies: [&[u8]; 6] = [
        br#"{"op":"release","key":"k","extra":1}"#,
        br#"{"op":"release","key":"k","__proto__":{}}"#,
        br#"{"op":"release","Key":"k"}"#,
        br#"{"op":"inspect","target":{"host":"gpu-1","x":1}}"#,
        br#"{"op":"allocate","key":"k","profile":"T4-4Q","limits":{"memory":1}}"#,
        br#"{"operations":[],"x":1}"#,
    ];
    refused(trial, &bodies, 422, OPERATION);
    let keyed = sender::keyed(r#"{"gpu_id":0,"vgpu_type":"T4-4Q","extra":1}"#);
    trial.refused("API key", &keyed, 422, OPERATION);
    Ok(())
}

fn sizes(trial: &mut Trial<'_>) -> Result<()> {
    let million = "x".repeat(1_000_000);
    let keys = |count: usize| {
        let keys: Vec<_> = (0..count)
            .map(|number| format!("\"k{number}\":1"))
            .collect();
        format!("{{{}}}", keys.join(","))
    };
    let long_key = format!("{{\"{million}\":1}}");
    let long_string = format!("{{\"op\":\"{million}\"}}");
    let many = keys(100_000);
    let bodies = [long_key.as_bytes(), long_string.as_bytes(), many.as_bytes()];
    refused(trial, &bodies, 413, "body-too-large");
    let key = format!("{{\"{}\":1}}", &million[..257]);
    let string = format!(r#"{{"op":"release","key":"{}"}}"#, &million[..8193]);
    let items = format!(r#"{{"a":[{}0]}}"#, "0,".repeat(1024));
    let many = keys(1025);
    let bodies = [
        key.as_bytes(),
        string.as_bytes(),
        items.as_bytes(),
        many.as_bytes(),
    ];
    refused(trial, &bodies, 422, LARGE);
    let operations = vec![GOOD; 33].join(",");
    refused(
        trial,
        &[format!(r#"{{"operations":[{operations}]}}"#).as_bytes()],
        422,
        OPERATION,
    );
    Ok(())
}
