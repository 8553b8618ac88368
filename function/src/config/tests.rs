//! Configurations in a temporary folder: good ones load, and every fault is told with its line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

/// A folder with a key, a secret and an API key.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write(
            "function.whsk",
            &SecretKey::generate().unwrap().expose(),
            0o600,
        );
        folder.write("demo.whsec", &format!("{}\n", whsec()), 0o600);
        folder.write("api.key", "key_0123456789abcdefghijklmn\n", 0o600);
        folder
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn load(&self, text: &str) -> Result<Config, ConfigError> {
        let file = self.write("gpuhook.toml", text, 0o644);
        let secret = whsec();
        Config::load_with(&file, &|name| {
            (name == "DEMO_SECRET").then(|| secret.clone())
        })
    }

    /// Faults as `line: message`, other files' with their name.
    fn faults(&self, text: &str) -> Vec<String> {
        let faults = self.load(text).unwrap_err().faults;
        let show = |fault: &Fault| {
            let file = fault.file.file_name().unwrap().to_str().unwrap();
            let file = if file == "gpuhook.toml" {
                String::new()
            } else {
                format!("{file}:")
            };
            format!("{file}{}: {}", fault.line.unwrap_or(0), fault.message)
        };
        faults.iter().map(show).collect()
    }
}

fn whsec() -> String {
    format!("whsec_{}", STANDARD.encode([7_u8; 32]))
}

fn base() -> String {
    let public = SecretKey::generate().unwrap().public();
    format!(
        r#"[signing]
key_file = "function.whsk"
[store]
path = "backplane.db"
[[source]]
name = "demo"
tenant = "acme"
preset = "standard-webhooks"
secrets = ["file:demo.whsec", "env:DEMO_SECRET"]
roles = ["operator"]
default_target = {{ host = "laptop" }}
[[source]]
name = "seed"
tenant = "acme"
preset = "api-key"
secrets = ["file:api.key"]
[[host]]
name = "laptop"
pools = ["default"]
public_key = "{public}"
"#
    )
}

#[test]
fn a_good_configuration_loads_with_its_defaults() {
    let folder = Folder::new();
    let config = folder.load(&base()).unwrap();
    assert_eq!(config.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.max_body_bytes, 262_144);
    assert_eq!(
        config.store_path,
        Some(folder.0.path().join("backplane.db"))
    );
    assert_eq!(
        (
            config.sources.len(),
            config.hosts.len(),
            config.tokens.len()
        ),
        (2, 1, 0)
    );
    let Scheme::StandardWebhooks {
        secrets,
        tolerance_s,
    } = &config.sources[0].scheme
    else {
        panic!()
    };
    assert_eq!((secrets.len(), *tolerance_s), (2, 300));
    let printed = format!("{config:?}");
    assert!(
        !printed.contains(&whsec()[6..]) && !printed.contains("key_0123"),
        "{printed}"
    );
}

#[test]
fn all_faults_are_reported_at_once_in_file_order() {
    let text = base()
        .replace(r#"preset = "api-key""#, r#"preset = "magic""#)
        .replace("[store]", "[stores]")
        .replace(r#"tenant = "acme""#, r#"tenant = "Acme""#)
        .replace("roles", "rolls")
        .replace("pools", "tolerance_s = 3\npools");
    let faults = Folder::new().faults(&text);
    let expect = [
        "3: unknown key stores at the top; did you mean store?",
        "7: source.tenant \"Acme\": tenant must be",
        "10: unknown key rolls in [source]; did you mean roles?",
        "14: source.tenant \"Acme\": tenant must be",
        "15: source.preset \"magic\" is unknown",
        "19: unknown key tolerance_s in [host]; it belongs in [source]",
    ];
    for expect in expect {
        assert!(
            faults.iter().any(|fault| fault.starts_with(expect)),
            "{expect}: {faults:#?}"
        );
    }
    let lines: Vec<usize> = faults
        .iter()
        .map(|fault| fault.split(':').next().unwrap().parse().unwrap())
        .collect();
    assert!(lines.is_sorted(), "{faults:#?}");
}

#[test]
fn each_fault_has_its_line_and_reason() {
    let folder = Folder::new();
    folder.write("open.whsec", &whsec(), 0o644);
    folder.write("open.whsk", &SecretKey::generate().unwrap().expose(), 0o640);
    folder.write("short.whsec", "whsec_AAAA", 0o600);
    folder.write("tagged.whsec", &format!("v1,{}", whsec()), 0o600);
    folder.write("two-lines.whsec", &format!("{}\n\n", whsec()), 0o600);
    folder.write("crlf.whsec", &format!("{}\r\n", whsec()), 0o600);
    folder.write("empty.whsec", "\n", 0o600);
    folder.write(
        "published.whsec",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
        0o600,
    );
    folder.write("bad.cedar", "permit(principal, action, resource);\n\npermit(principal, action == Action::\"fly\", resource);\n", 0o644);
    let of_secret = |reference: &str| base().replace("file:demo.whsec", reference);
    let with = |text: &str| format!("{}{text}", base());
    for (text, expect) in [
        (of_secret("file:open.whsec"), "9: "),
        (
            of_secret("file:open.whsec"),
            "may be read by others (mode 0644): chmod 600 it",
        ),
        (
            of_secret("file:short.whsec"),
            "9: secret file:short.whsec: holds only 3 bytes",
        ),
        (of_secret("file:tagged.whsec"), "begins with v1,"),
        (of_secret("file:two-lines.whsec"), "contains white space"),
        (of_secret("file:empty.whsec"), "is empty"),
        (of_secret("file:published.whsec"), "is published"),
        (of_secret("file:missing.whsec"), "cannot open"),
        (
            of_secret("env:NOT_SET"),
            "9: environment variable NOT_SET is not set",
        ),
        (
            of_secret("whsec_c2VjcmV0"),
            "9: a secret must be a reference",
        ),
        (
            base().replace(r#"["file:demo.whsec", "env:DEMO_SECRET"]"#, "[]"),
            "source.secrets must list 1 to 10",
        ),
        (base().replace("function.whsk", "open.whsk"), "2: "),
        (
            base().replace("function.whsk", "demo.whsec"),
            "2: key demo.whsec: key must start with whsk_",
        ),
        (
            base().replace("\"laptop\" }", "\"desktop\" }"),
            "6: source demo: default_target is no [[host]]",
        ),
        (
            base().replace(r#"name = "seed""#, r#"name = "demo""#),
            "13: there are two [[source]] named demo",
        ),
        (
            with("[server]\nlisten = \"0.0.0.0:80\"\n"),
            "22: server.listen 0.0.0.0:80: this door speaks plain HTTP",
        ),
        (
            with("[server]\nlisten = 80\n"),
            "22: server.listen must be a string, not an integer",
        ),
        (
            with("[server]\nmax_body_bytes = 1\n"),
            "22: server.max_body_bytes must be from 1024",
        ),
        (with("[policy]\nfile = \"bad.cedar\"\n"), "bad.cedar:3: "),
        (with("[policy]\nfile = \"none.cedar\"\n"), "22: cannot read"),
        (
            with("[[token]]\ntenant = \"acme\"\nname = \"me\"\nsha256 = \"00\"\n"),
            "24: token.sha256 must be",
        ),
        (
            with(
                "[[callback]]\nname = \"c\"\nurl = \"http://a.example/\"\nsecrets = [\"env:DEMO_SECRET\"]\n",
            ),
            "23: callback URL must begin with https://",
        ),
        (
            with("[[callback]]\nname = \"c\"\nurl = \"https://a.example/\"\n"),
            "21: callback has neither secrets nor key_files",
        ),
        (
            with(
                "[[callback]]\nname = \"c\"\nurl = \"https://a.example/\"\nca_file = \"demo.whsec\"\nsecrets = [\"env:DEMO_SECRET\"]\n",
            ),
            "ca_file holds no PEM",
        ),
        (
            with(
                "[[callback]]\nname = \"c\"\nurl = \"https://a.example/\"\nallow_private = [{ cidr = \"10.0.0.1/8\", port = 1 }]\n",
            ),
            "24: allow_private.cidr",
        ),
        (
            base().replace("roles = ", "callbacks = [\"nowhere\"]\nroles = "),
            "6: source demo names callback \"nowhere\"",
        ),
        (with("[server\n"), "21: "),
        (
            base().replace("whpk_", "whpk_x"),
            "20: host.public_key: key must be standard base64",
        ),
        (
            format!(
                "{}tolerance_s = 5\n",
                base().split("[[host]]").next().unwrap()
            ),
            "17: source.tolerance_s means nothing for api-key",
        ),
    ] {
        let faults = folder.faults(&text);
        assert!(
            faults.iter().any(|fault| fault.contains(expect)),
            "{expect}: {faults:#?}"
        );
    }
    assert!(folder.load(&of_secret("file:crlf.whsec")).is_ok());
    let missing = Config::load(&folder.0.path().join("none.toml")).unwrap_err();
    assert!(
        missing.to_string().contains("none.toml: cannot read"),
        "{missing}"
    );
}

/// Vector ED25519-SMALL-ORDER: refused wherever a configuration names a public key.
#[test]
fn small_order_keys_are_refused_at_load() {
    let vectors: serde_json::Value = serde_json::from_str(include_str!(
        "../../../events/tests/data/webhook-vectors.json"
    ))
    .unwrap();
    let vector = vectors
        .as_array()
        .unwrap()
        .iter()
        .find(|vector| vector["scheme"] == "key-load")
        .unwrap();
    let keys = vector["public_keys_hex"].as_array().unwrap();
    assert_eq!(keys.len(), 8);
    for key in keys {
        let folder = Folder::new();
        let spelt = format!(
            "whpk_{}",
            STANDARD.encode(hex::decode(key.as_str().unwrap()).unwrap())
        );
        folder.write("weak.whpk", &spelt, 0o600);
        let faults = folder.faults(&base().replace("file:demo.whsec", "file:weak.whpk"));
        assert!(faults[0].contains("small order"), "{faults:?}");
        let weak_host = format!("[[host]]\nname = \"other\"\npublic_key = \"{spelt}\"\n");
        let faults = folder.faults(&format!("{}{weak_host}", base()));
        assert!(faults[0].contains("small order"), "{faults:?}");
    }
}

/// A function that is given its own secrets only, as texts.
#[test]
fn a_part_loads_from_a_bundle_without_the_secrets_of_others() {
    let mut bundle = Bundle::default();
    let put = |bundle: &mut Bundle, path: &str, text: String| {
        bundle.insert(path, zeroize::Zeroizing::new(text));
    };
    let callback = format!(
        "{}[[callback]]\nname = \"demo\"\nurl = \"https://example.com/\"\nsecrets = [\"file:callback.whsec\"]\n",
        base()
    );
    put(&mut bundle, "gpuhook.toml", callback);
    let load = |bundle: &Bundle, wanted| {
        Config::load_parts(Path::new("gpuhook.toml"), bundle, wanted, &|name| {
            (name == "DEMO_SECRET").then(whsec)
        })
    };
    let missing = load(&bundle, Wanted::DOOR).unwrap_err().to_string();
    for name in ["function.whsk", "demo.whsec", "api.key"] {
        assert!(
            missing.contains(&format!("no file {name} in the secrets")),
            "{missing}"
        );
    }
    assert!(!missing.contains("callback.whsec"), "{missing}");
    put(
        &mut bundle,
        "function.whsk",
        SecretKey::generate().unwrap().expose().to_string(),
    );
    let sweep = load(&bundle, Wanted::SWEEP).unwrap();
    assert!(sweep.signing_key.is_some() && sweep.sources.is_empty() && sweep.callbacks.is_empty());
    put(&mut bundle, "demo.whsec", format!("{}\n", whsec()));
    put(
        &mut bundle,
        "api.key",
        "key_0123456789abcdefghijklmn".to_owned(),
    );
    let door = load(&bundle, Wanted::DOOR).unwrap();
    assert_eq!((door.sources.len(), door.callbacks.len()), (2, 0));
    put(&mut bundle, "callback.whsec", whsec());
    let delivery = load(&bundle, Wanted::DELIVERY).unwrap();
    assert!(delivery.signing_key.is_none() && delivery.sources.is_empty());
    assert_eq!(delivery.callbacks.len(), 1);
    assert!(!format!("{bundle:?}").contains(&whsec()[6..]));
}
