//! Secrets that are missing, empty, weak or pasted wrongly: start-up refuses them and says why,
//! wherever they stand. Once running, a signature that fails leaves a hint and nothing to forge with.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::SecretKey;
use function::Config;

use crate::log;
use crate::machine::{Machine, NOW, sign, whsec};

/// Loads a configuration whose source and callback have the secrets of these references, and gives
/// its faults; none if it loads.
fn faults(file: &str, environment: Option<&str>, source: &str, callback: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let key = SecretKey::generate().unwrap().expose();
    for (name, text) in [
        ("f.whsk", key.as_str()),
        ("good", &whsec("good")),
        ("tried", file),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let text = format!(
        "[signing]\nkey_file = \"f.whsk\"\n[store]\npath = \"b.db\"\n\
         [[source]]\nname = \"s\"\ntenant = \"t\"\npreset = \"standard-webhooks\"\n{source}\n\
         [[callback]]\nname = \"c\"\nurl = \"https://hooks.example/\"\n{callback}\n"
    );
    let path = folder.path().join("gpuhook.toml");
    fs::write(&path, text).unwrap();
    let environment = |name: &str| {
        let text = environment.filter(|_| name == "TRIED");
        text.map(str::to_owned)
    };
    match Config::load_with(&path, &environment) {
        Ok(_) => Vec::new(),
        Err(error) => error
            .faults
            .into_iter()
            .map(|fault| fault.message)
            .collect(),
    }
}

const GOOD: &str = "secrets = [\"file:good\"]";

/// field F29: every listed form, as file and as environment variable, for who posts and for what is
/// posted.
#[test]
fn secrets_that_are_no_secrets_stop_the_start_with_their_reason() {
    let whole = STANDARD.encode([7_u8; 32]);
    let url_safe = STANDARD
        .encode([0xfb; 32])
        .replace('+', "-")
        .replace('/', "_");
    let unpadded = whole.trim_end_matches('=');
    let short = STANDARD.encode([7_u8; 8]);
    for (text, reason) in [
        (String::new(), "is empty"),
        ("   ".to_owned(), "is empty"),
        ("\t \u{a0}".to_owned(), "is empty"),
        ("whsec_".to_owned(), "is empty"),
        (format!("whsec_{whole}\n\n"), "contains white space"),
        (format!("whsec_{whole} \n"), "contains white space"),
        (format!(" whsec_{whole}"), "contains white space"),
        ("v1,whsec_AAAA".to_owned(), "begins with v1,"),
        (format!("v1,whsec_{whole}"), "begins with v1,"),
        (format!("whsec_{unpadded}"), "is base64 without its padding"),
        (
            format!("whsec_{url_safe}"),
            "is in the url-safe base64 alphabet",
        ),
        (
            format!("whsec_{short}"),
            "holds only 8 bytes, at least 24 are needed",
        ),
        ("whsec_AAAA".to_owned(), "holds only 3 bytes"),
        (whole.clone(), "must begin with whsec_"),
        (format!("whsec_{whole}!"), "is not standard base64"),
    ] {
        for reference in ["file:tried", "env:TRIED"] {
            let tried = format!("secrets = [\"{reference}\"]");
            for (source, callback) in [(tried.as_str(), GOOD), (GOOD, tried.as_str())] {
                let faults = faults(&text, Some(&text), source, callback);
                let expect = format!("secret {reference}: {reason}");
                assert_eq!(faults.len(), 1, "{text:?}: {faults:?}");
                assert!(faults[0].starts_with(&expect), "{text:?}: {faults:?}");
                let secret = [&whole[..8], &url_safe[..8], &short[..8]];
                assert!(
                    !secret.iter().any(|part| faults[0].contains(part)),
                    "the secret is repeated: {faults:?}"
                );
            }
        }
    }
}

/// field F29: one line break at the end of a file is the editor's; of a variable, nobody's.
#[test]
fn a_line_break_at_the_end_of_a_file_does_not_count() {
    let good = whsec("good");
    for (text, by_file, by_variable) in [
        (good.clone(), true, true),
        (format!("{good}\n"), true, false),
        (format!("{good}\r\n"), true, false),
        (format!("{good}\r\r\n"), false, false),
        (format!("{good}\n\n"), false, false),
    ] {
        for (reference, good) in [("file:tried", by_file), ("env:TRIED", by_variable)] {
            let tried = format!("secrets = [\"{reference}\"]");
            let faults = faults(&text, Some(&text), &tried, &tried);
            assert_eq!(faults.is_empty(), good, "{reference} {text:?}: {faults:?}");
        }
    }
}

/// field F29: nothing configured is never an empty secret.
#[test]
fn a_secret_that_is_not_set_stops_the_start() {
    let unset = "secrets = [\"env:TRIED\"]";
    let not_set = "environment variable TRIED is not set";
    for (source, callback, expect) in [
        (unset, GOOD, not_set),
        (GOOD, unset, not_set),
        ("secrets = [\"file:none\"]", GOOD, "cannot open"),
        (GOOD, "secrets = [\"file:none\"]", "cannot open"),
        ("", GOOD, "source.secrets must list 1 to 10"),
        ("secrets = []", GOOD, "source.secrets must list 1 to 10"),
        ("secrets = [\"\"]", GOOD, "a secret must be a reference"),
        (
            "secrets = \"\"",
            GOOD,
            "source.secrets must be a list of strings",
        ),
        (GOOD, "", "callback has neither secrets nor key_files"),
        (
            GOOD,
            "secrets = []",
            "callback has neither secrets nor key_files",
        ),
    ] {
        let faults = faults("", None, source, callback);
        let told = faults.iter().any(|fault| fault.contains(expect));
        assert!(told, "{source:?} {callback:?}: {faults:?}");
    }
}

/// field F29: who pastes a secret where its reference belongs is told so, and the secret is not
/// repeated to whoever reads the start-up's output.
#[test]
fn a_secret_in_place_of_its_reference_is_not_repeated() {
    let secret = whsec("pasted");
    let key = SecretKey::generate().unwrap().expose();
    for (source, callback) in [
        (format!("secrets = [\"{secret}\"]"), GOOD.to_owned()),
        (format!("secrets = [\"file:{secret}\"]"), GOOD.to_owned()),
        (format!("secrets = [\"env:{secret}\"]"), GOOD.to_owned()),
        (format!("secrets = \"{secret}\""), GOOD.to_owned()),
        (format!("secret = \"{secret}\""), GOOD.to_owned()),
        (format!("secrets = [\"{secret}"), GOOD.to_owned()),
        (GOOD.to_owned(), format!("secrets = [\"file:{secret}\"]")),
        (
            GOOD.to_owned(),
            format!("key_files = [\"{}\"]", key.as_str()),
        ),
    ] {
        let faults = faults("", None, &source, &callback);
        assert!(!faults.is_empty(), "{source} {callback}");
        for part in [&secret[6..], &key[5..]] {
            assert!(!format!("{faults:?}").contains(part), "{faults:?}");
        }
    }
}

/// field F29: which secrets were tried, and length and hash of what they were tried on; no secret,
/// no MAC.
#[tokio::test]
async fn a_signature_that_fails_leaves_a_hint_in_the_log() {
    let machine = Machine::start().await;
    let body = br#"{"op":"release","key":"hint"}"#;
    let timestamp = NOW.to_string();
    let right = sign("ci", b"msg", timestamp.as_bytes(), body);
    let wrong = sign("stranger", b"msg", timestamp.as_bytes(), body);
    let request = machine.signed("ci", "msg", body);
    let request = request.replacing("webhook-signature", wrong.as_str());
    assert_eq!(request.send(machine.address).await.status, 401);
    let line = log::refusal(body);
    let length = format!("body.bytes={}", body.len());
    for hint in ["file:ci", "file:next", "no signature verifies", &length] {
        assert!(line.contains(hint), "{hint}: {line}");
    }
    for secret in [&right[3..], &wrong[3..], &whsec("ci")[6..], "\"key\""] {
        assert!(!line.contains(secret), "{secret}: {line}");
    }
    machine.stop().await;
}
