//! `gpuhook.toml`: read once, whole, and strictly. All faults are reported at once, each with file
//! and line; unknown and misplaced keys are faults. What leaves this module is ready for use:
//! secrets loaded, keys checked, policies validated.

mod fault;

mod document;

mod vocabulary;

mod reference;

mod source;

mod callback;

mod files;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use backplane::store::HostRecord;
use events::key::{PublicKey, SecretKey};
use events::operation::Target;
use events::{HostName, PoolName};

use crate::callback::endpoint::Endpoint;
use crate::callback::trust::Trust;
use crate::policy::Policy;
use document::{At, Document, Section};

pub use fault::{ConfigError, Fault};
pub use files::{Bundle, Disk, Files};
pub use reference::Environment;
pub use source::{Caller, Scheme, Source, Token};

/// Bytes of the largest body, unless configured: well above any sender's own bound for JSON.
const DEFAULT_MAX_BODY: usize = 256 * 1024;
/// The largest that may be configured; API Gateway passes about 4.5 MB (webhook facts §2).
const LARGEST_MAX_BODY: i64 = 4 * 1024 * 1024;

/// A loaded configuration.
#[derive(Debug)]
pub struct Config {
    /// Where the front door listens; loopback.
    pub listen: SocketAddr,
    /// Bytes of the largest body.
    pub max_body_bytes: usize,
    /// Signs commands; `None` if it was not wanted.
    pub signing_key: Option<SecretKey>,
    /// The backplane's file, where that is one.
    pub store_path: Option<PathBuf>,
    /// Who may do what.
    pub policy: Policy,
    /// Who may post.
    pub sources: Vec<Source>,
    /// Who may read.
    pub tokens: Vec<Token>,
    /// Where results go.
    pub callbacks: Vec<Endpoint>,
    /// Enrolled hosts.
    pub hosts: Vec<HostRecord>,
}

impl Config {
    /// Loads a configuration with this process's environment.
    ///
    /// # Errors
    /// Every fault.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::load_with(file, &|name| std::env::var(name).ok())
    }

    /// Loads a configuration with a given environment.
    ///
    /// # Errors
    /// Every fault.
    pub fn load_with(file: &Path, environment: Environment<'_>) -> Result<Self, ConfigError> {
        Self::load_parts(file, &Disk, Wanted::ALL, environment)
    }

    /// Loads the parts of a configuration that a function wants, from wherever its files are.
    ///
    /// # Errors
    /// Every fault of what is wanted.
    pub fn load_parts(
        file: &Path,
        files: &dyn Files,
        wanted: Wanted,
        environment: Environment<'_>,
    ) -> Result<Self, ConfigError> {
        let text = files.text(file).map_err(|message| ConfigError {
            faults: vec![Fault {
                file: file.to_owned(),
                line: None,
                message,
            }],
        })?;
        let document = Document::new(file, &text, files);
        let table = document::parse(&document, &text);
        let config = read(
            &document,
            Section::top(&document, table.get_ref()),
            wanted,
            environment,
        );
        let faults = document.into_faults();
        match config {
            Some(config) if faults.is_empty() => Ok(config),
            _ => Err(ConfigError { faults }),
        }
    }
}

/// Parts of a configuration that have secrets. What is not wanted is neither read nor judged, so that
/// each function is given its own secrets only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The key that signs commands.
    pub signing: bool,
    /// Who may post and read.
    pub sources: bool,
    /// Where results go.
    pub callbacks: bool,
}

impl Wanted {
    /// Everything: one process does it all.
    pub const ALL: Self = Self {
        signing: true,
        sources: true,
        callbacks: true,
    };
    /// What the front door needs.
    pub const DOOR: Self = Self {
        callbacks: false,
        ..Self::ALL
    };
    /// What delivers callbacks.
    pub const DELIVERY: Self = Self {
        signing: false,
        sources: false,
        callbacks: true,
    };
    /// What sends commands again.
    pub const SWEEP: Self = Self {
        signing: true,
        sources: false,
        callbacks: false,
    };
}

fn read(
    document: &Document<'_>,
    top: Section<'_>,
    wanted: Wanted,
    environment: Environment<'_>,
) -> Option<Config> {
    let server = top.table("server").map(|section| server(document, section));
    let signing = top.require("signing", top.table("signing"));
    let signing_key = signing.filter(|_| wanted.signing).and_then(|section| {
        let file = section.require("key_file", section.string("key_file"));
        section.finish();
        file.and_then(|file| callback::secret_key(document, &file))
    });
    let store_path = top.table("store").and_then(|section| {
        let path = section.require("path", section.string("path"));
        section.finish();
        path.map(|path| document.resolve(path.value))
    });
    let policy = match top.table("policy") {
        None => Some(Policy::shipped()),
        Some(section) => policy(document, section),
    };
    let (callbacks, names) = callbacks(document, &top, wanted, environment);
    let hosts = top.tables("host");
    let hosts = hosts
        .into_iter()
        .filter_map(|section| host(document, section));
    let hosts = unique(document, hosts.collect(), "host", |host| {
        host.host.to_string()
    });
    let sources = top.tables("source");
    let sources = sources
        .into_iter()
        .filter(|_| wanted.sources)
        .filter_map(|section| source::source(document, section, environment));
    let sources: Vec<_> = sources.collect();
    for source in &sources {
        check_references(document, source, &names, &hosts);
    }
    let sources = unique(document, sources, "source", |source| {
        source.caller.name.to_string()
    });
    let tokens = top.tables("token");
    let tokens = tokens
        .into_iter()
        .filter(|_| wanted.sources)
        .filter_map(|section| source::token(document, section));
    let tokens = unique(document, tokens.collect(), "token", |token| {
        token.caller.name.to_string()
    });
    top.finish();
    let (listen, max_body_bytes) = server.unwrap_or((Some(default_listen()), DEFAULT_MAX_BODY));
    Some(Config {
        listen: listen?,
        max_body_bytes,
        signing_key,
        store_path,
        policy: policy?,
        sources,
        tokens,
        callbacks,
        hosts,
    })
}

/// The endpoints that can be used, and the names of all: a faulty endpoint is no reason to say that
/// sources name one that does not exist.
fn callbacks<'a>(
    document: &Document<'_>,
    top: &Section<'a>,
    wanted: Wanted,
    environment: Environment<'_>,
) -> (Vec<Endpoint>, BTreeSet<&'a str>) {
    let sections = top.tables("callback");
    let names = sections
        .iter()
        .filter_map(|section| section.string("name"))
        .map(|name| name.value)
        .collect();
    // The system's roots are read only where something is posted.
    let Some(trust) = (wanted.callbacks && !sections.is_empty()).then(Trust::load) else {
        return (Vec::new(), names);
    };
    let endpoints = sections
        .into_iter()
        .filter_map(|section| callback::callback(document, section, environment, &trust));
    let endpoints = unique(document, endpoints.collect(), "callback", |endpoint| {
        endpoint.name().to_owned()
    });
    (endpoints, names)
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

fn server(document: &Document<'_>, section: Section<'_>) -> (Option<SocketAddr>, usize) {
    let given = section.parsed::<SocketAddr>("listen");
    let absent = section.string("listen").is_none();
    let max_body = section.integer("max_body_bytes", 1024..=LARGEST_MAX_BODY);
    section.finish();
    let listen = if absent {
        Some(default_listen())
    } else {
        given.as_ref().map(|given| given.value)
    };
    if let Some(given) = given.filter(|given| !given.value.ip().is_loopback()) {
        let why = "this door speaks plain HTTP and listens on loopback only; put a TLS proxy in front of it";
        document.fault(given.at, format!("server.listen {}: {why}", given.value));
    }
    let max_body = max_body.and_then(|max| usize::try_from(max.value).ok());
    (listen, max_body.unwrap_or(DEFAULT_MAX_BODY))
}

fn policy(document: &Document<'_>, section: Section<'_>) -> Option<Policy> {
    let file = section.require("file", section.string("file"));
    section.finish();
    let file = file?;
    let path = document.resolve(file.value);
    let text = match document.text_of(file.value) {
        Ok(text) => text,
        Err(why) => {
            document.fault(file.at, why);
            return None;
        }
    };
    let faults = match Policy::parse(&text) {
        Ok(policy) => return Some(policy),
        Err(error) => error.faults,
    };
    for fault in faults {
        let line = fault.offset.map(|offset| fault::line_of(&text, offset));
        document.push(Fault {
            file: path.clone(),
            line,
            message: fault.message,
        });
    }
    None
}

fn host(document: &Document<'_>, section: Section<'_>) -> Option<At<HostRecord>> {
    let name = section.require("name", section.parsed::<HostName>("name"));
    let pools = section
        .parsed_list::<PoolName>("pools")
        .into_iter()
        .map(|pool| pool.value)
        .collect();
    let key = section.require("public_key", section.string("public_key"));
    section.finish();
    let key = key.filter(|key| match PublicKey::parse(key.value) {
        Ok(_) => true,
        Err(error) => {
            document.fault(key.at, format!("host.public_key: {error}"));
            false
        }
    });
    let (name, key) = (name?, key?);
    Some(At {
        value: HostRecord {
            host: name.value,
            pools,
            public_key: key.value.to_owned(),
        },
        at: name.at,
    })
}

/// Names that a source refers to must exist.
fn check_references(
    document: &Document<'_>,
    source: &At<Source>,
    callbacks: &BTreeSet<&str>,
    hosts: &[HostRecord],
) {
    let Caller {
        name,
        default_target,
        callbacks: wanted,
        ..
    } = &source.value.caller;
    for missing in wanted
        .iter()
        .filter(|wanted| !callbacks.contains(wanted.as_str()))
    {
        document.fault(source.at, format!("source {name} names callback {missing:?}, and there is no [[callback]] of that name"));
    }
    let known = match default_target {
        None => true,
        Some(Target::Host(target)) => hosts.iter().any(|host| host.host == target.host),
        Some(Target::Pool(target)) => hosts.iter().any(|host| host.pools.contains(&target.pool)),
    };
    // Hosts may also be enrolled later; a configuration that lists hosts should list this one.
    if !known && !hosts.is_empty() {
        document.fault(
            source.at,
            format!("source {name}: default_target is no [[host]] of this file and no pool of one"),
        );
    }
}

fn unique<T>(
    document: &Document<'_>,
    items: Vec<At<T>>,
    kind: &str,
    name: impl Fn(&T) -> String,
) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    for item in items {
        let name = name(&item.value);
        if !seen.insert(name.clone()) {
            document.fault(item.at, format!("there are two [[{kind}]] named {name}"));
        }
        kept.push(item.value);
    }
    kept
}

#[cfg(test)]
mod tests;
