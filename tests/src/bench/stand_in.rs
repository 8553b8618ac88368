//! A stand-in for AWS over TLS: one host that has an inventory of nothing, secrets that hold a real
//! configuration, and a table that takes everything.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::http;

/// The running stand-in.
pub(super) struct StandIn {
    pub(super) endpoint: String,
    /// The one root that its certificate chains to.
    pub(super) root: PathBuf,
}

/// What it answers with.
struct Answers {
    /// Files of the configuration, of any secret.
    secret: String,
    host_key: String,
}

impl StandIn {
    /// Starts one that serves the configuration of `folder`.
    pub(super) fn start(folder: &Path, files: &[&str], host_key: &str) -> Result<Self> {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let root = folder.join("aws-root.pem");
        std::fs::write(&root, certified.cert.pem())?;
        let chain = vec![CertificateDer::from_pem_slice(
            certified.cert.pem().as_bytes(),
        )?];
        let key = PrivateKeyDer::from_pem_slice(certified.signing_key.serialize_pem().as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("https://localhost:{}", listener.local_addr()?.port());
        let mut secret = serde_json::Map::new();
        for file in files {
            let text = std::fs::read_to_string(folder.join(file))
                .with_context(|| format!("read {file}"))?;
            secret.insert((*file).to_owned(), text.into());
        }
        let answers = Arc::new(Answers {
            secret: Value::Object(secret).to_string(),
            host_key: host_key.to_owned(),
        });
        let config = Arc::new(config);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, answers) = (Arc::clone(&config), Arc::clone(&answers));
                std::thread::spawn(move || serve(stream, config, &answers));
            }
        });
        Ok(Self { endpoint, root })
    }
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, answers: &Answers) {
    // A function that was killed leaves its connection; that is no fault of anybody.
    let _ = stream.set_nodelay(true);
    let Ok(connection) = ServerConnection::new(config) else {
        return;
    };
    let mut stream = StreamOwned::new(connection, stream);
    while let Ok(Some(request)) = http::read(&mut stream) {
        let target = request
            .header("x-amz-target")
            .unwrap_or_default()
            .to_owned();
        let call = target.rsplit('.').next().unwrap_or_default();
        let body = answers.to(call, &request.body).to_string();
        let headers = "content-type: application/x-amz-json-1.1\r\n";
        if http::answer(&mut stream, 200, headers, body.as_bytes()).is_err() {
            return;
        }
    }
}

impl Answers {
    fn to(&self, call: &str, request: &[u8]) -> Value {
        let text = |text: &str| json!({ "S": text });
        match call {
            "GetSecretValue" => json!({"SecretString": self.secret, "VersionId": "1"}),
            "Query" => json!({"Count": 1, "ScannedCount": 1, "Items": [
                {"pk": text("HOSTS"), "sk": text("gpu-1"), "ver": {"N": "1"}}]}),
            "BatchGetItem" => {
                let request: Value = serde_json::from_slice(request).unwrap_or_default();
                let asked = request["RequestItems"]["bench"]["Keys"].as_array().cloned();
                let is_head = |key: &Value| key["pk"]["S"] == "HOST#gpu-1" && key["sk"]["S"] == "-";
                let head = json!({
                    "pk": text("HOST#gpu-1"), "sk": text("-"), "ver": {"N": "1"}, "version": {"N": "1"},
                    "pools": text(r#"{"v":1,"doc":["default"]}"#), "public_key": text(&self.host_key), "reserved": {"M": {}}});
                let found = asked.unwrap_or_default().iter().any(is_head);
                let items = if found { vec![head] } else { Vec::new() };
                json!({"Responses": {"bench": items}, "UnprocessedKeys": {}})
            }
            "SendMessage" => {
                json!({"MessageId": "m", "MD5OfMessageBody": "", "SequenceNumber": "1"})
            }
            "GetQueueUrl" => json!({"QueueUrl": "https://localhost/bench"}),
            _ => json!({}),
        }
    }
}
