//! Rows 25 and 29 to 31: what carries the body.

use crate::machine::Machine;

use super::{Case, GOOD, case};

/// The cases.
pub(super) fn cases(machine: &Machine) -> Vec<Case> {
    let good = || machine.signed("ci", "msg", GOOD.as_bytes());
    let media = |media: &str| good().replacing("content-type", media);
    let kind = "unsupported-media-type";
    vec![
        case(
            "29 gzip",
            machine
                .signed("ci", "msg", b"\x1f\x8b\x08\x00")
                .with("content-encoding", "gzip"),
            415,
            kind,
        ),
        case(
            "30 no content type",
            good().without("content-type"),
            415,
            kind,
        ),
        case(
            "30 two content types",
            good().with("content-type", "application/json"),
            415,
            kind,
        ),
        case("30 text", media("text/plain"), 415, kind),
        case(
            "30 UTF-16",
            media("application/json; charset=utf-16"),
            415,
            kind,
        ),
        case(
            "31 form",
            media("application/x-www-form-urlencoded"),
            415,
            kind,
        ),
        case(
            "31 multipart",
            media("multipart/form-data; boundary=x"),
            415,
            kind,
        ),
        case(
            "25 declared too large",
            good().with("content-length", "262145"),
            413,
            "body-too-large",
        ),
        case(
            "25 too large",
            machine.signed("ci", "msg", &vec![b' '; 262_145]),
            413,
            "body-too-large",
        ),
        case(
            "25 chunked and too large",
            {
                let mut request = good().with("transfer-encoding", "chunked");
                request.body = [
                    b"40001\r\n".as_slice(),
                    &vec![b' '; 0x40001],
                    b"\r\n0\r\n\r\n",
                ]
                .concat();
                request
            },
            413,
            "body-too-large",
        ),
    ]
}
