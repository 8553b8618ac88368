//! Writes by whoever calls, for as long as the kernel takes: files on hardware, a socket elsewhere.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Attributes, WriteError};

/// Longest answer of an attribute server.
const MAX_ANSWER: u64 = 64 * 1024;

/// Attributes that are files below a root.
#[derive(Debug, Clone)]
pub struct FileAttributes {
    /// The root, `/` on hardware.
    pub root: PathBuf,
}

impl Attributes for FileAttributes {
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        // Neither created nor truncated: an attribute exists or the write must fail.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.root.join(path.trim_start_matches('/')))?;
        let written = file.write(bytes)?;
        if written == bytes.len() {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::WriteZero).into())
        }
    }
}

/// Attributes behind a Unix socket, one connection per write so that one that blocks blocks alone.
#[derive(Debug, Clone)]
pub struct SocketAttributes {
    /// The socket.
    pub socket: PathBuf,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ok: bool,
    errno: Option<i32>,
    error: Option<String>,
}

impl Attributes for SocketAttributes {
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let request = serde_json::json!({ "attribute_write": { "path": path, "bytes": STANDARD.encode(bytes) } });
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(io::Read::take(stream, MAX_ANSWER)).read_line(&mut line)?;
        let answer: Answer = serde_json::from_str(&line).map_err(io::Error::other)?;
        match answer {
            Answer { ok: true, .. } => Ok(()),
            Answer {
                errno: Some(errno), ..
            } => Err(io::Error::from_raw_os_error(errno).into()),
            Answer { error, .. } => {
                let text = error.unwrap_or_else(|| "no answer".to_owned());
                Err(io::Error::other(text).into())
            }
        }
    }
}
