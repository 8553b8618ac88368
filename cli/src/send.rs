//! `gpuhook send`: signs a webhook, posts it, waits for the result, and says what to do next.

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::client::{Client, problem};
use crate::data::Data;
use crate::{setup, webhook};

/// Sign a webhook, post it, and wait for its result.
///
/// BODY is one operation, or {"operations":[...]}. Examples:
///
///   gpuhook send --simulate '{"op":"allocate","key":"job-7","profile":"T4-4Q","count":2}'
///   gpuhook send --simulate '{"op":"release","key":"job-7"}'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct SendArgs {
    /// The body, `-` for standard input, or `@FILE`.
    body: String,
    /// Data folder of a `gpuhook up` on this machine; gives URL, secret and token.
    #[arg(long, env = "GPUHOOK_DATA")]
    data: Option<PathBuf>,
    /// Use the simulated machine's data folder.
    #[arg(long)]
    simulate: bool,
    /// Another gpuhook: its base URL.
    #[arg(long, requires = "secret_file")]
    url: Option<String>,
    /// File with the source's whsec_ secret.
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// File with a bearer token for reading the status; without it the result is not waited for.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// The source to post to.
    #[arg(long, default_value = setup::NAME)]
    source: String,
    /// The webhook's id; the same id and body again are the same delivery. Fresh by default.
    #[arg(long)]
    id: Option<String>,
    /// Seconds to wait for final states.
    #[arg(long, default_value_t = 120)]
    wait: u64,
    /// Print the answer and the results as JSON only.
    #[arg(long)]
    json: bool,
}

/// Runs `gpuhook send`. Fails when any operation did not succeed.
pub(crate) fn run(args: SendArgs) -> Result<()> {
    let body = read_body(&args.body)?;
    let (base, secret, token) = peer(&args)?;
    let id = args
        .id
        .clone()
        .unwrap_or_else(|| format!("msg_{}", uuid::Uuid::now_v7().simple()));
    let now_s = jiff::Timestamp::now().as_second();
    let signed = webhook::sign(&webhook::key(&secret)?, &id, now_s, body.as_bytes());
    let client = Client::new(&base, token.as_ref().map_or("", |token| token.as_str()));
    let answer = client.post(&args.source, &signed, body.as_bytes())?;
    if !matches!(answer.status, 200 | 202) {
        bail!("{} {}", answer.status, problem(&answer.body));
    }
    if args.json && token.is_none() {
        println!("{:#}", answer.body);
    }
    if !args.json {
        let again = if answer.replayed {
            " (replayed: this delivery was known, nothing new was done)"
        } else {
            ""
        };
        println!(
            "accepted as delivery {}{again}",
            answer.body["delivery_id"].as_str().unwrap_or("-")
        );
    }
    let Some(_) = token else {
        eprintln!("no bearer token given: not waiting for the result");
        return Ok(());
    };
    let operations = answer.body["operations"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut failed = 0;
    for operation in &operations {
        let status = wait(
            &client,
            operation["status_url"]
                .as_str()
                .context("no status_url in the answer")?,
            args.wait,
        )?;
        failed += usize::from(status["state"] != "succeeded");
        if args.json {
            println!("{status:#}")
        } else {
            explain(&status)
        }
    }
    if failed > 0 {
        bail!(
            "{failed} of {} operations did not succeed",
            operations.len()
        );
    }
    Ok(())
}

fn read_body(given: &str) -> Result<String> {
    let mut text = String::new();
    if given == "-" {
        std::io::stdin()
            .read_to_string(&mut text)
            .context("read the body from standard input")?;
    } else if let Some(file) = given.strip_prefix('@') {
        text = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    } else {
        given.clone_into(&mut text);
    }
    Ok(text)
}

type Peer = (
    String,
    zeroize::Zeroizing<String>,
    Option<zeroize::Zeroizing<String>>,
);

fn peer(args: &SendArgs) -> Result<Peer> {
    let read = |path: &PathBuf| {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
        text.map(|text| zeroize::Zeroizing::new(text.trim_end().to_owned()))
    };
    if let Some(url) = &args.url {
        let secret = args
            .secret_file
            .as_ref()
            .context("--url needs --secret-file")?;
        return Ok((
            url.clone(),
            webhook::read_secret(secret)?,
            args.token_file.as_ref().map(read).transpose()?,
        ));
    }
    let data = Data::locate(args.data.clone(), args.simulate)?;
    let config = data.config();
    let text = std::fs::read_to_string(&config).with_context(|| {
        format!(
            "read {}: run `gpuhook up` first, or name a gpuhook with --url",
            config.display()
        )
    })?;
    let parsed: toml::Table = text
        .parse()
        .with_context(|| format!("parse {}", config.display()))?;
    let listen = parsed
        .get("server")
        .and_then(|server| server.get("listen"))
        .and_then(toml::Value::as_str);
    let listen = listen.with_context(|| format!("{} has no server.listen", config.display()))?;
    let own = data.path("secrets/webhook.whsec");
    let secret = webhook::read_secret(args.secret_file.as_ref().unwrap_or(&own))?;
    let token = args
        .token_file
        .as_ref()
        .map_or_else(|| data.secret("secrets/bearer.token"), read)?;
    Ok((format!("http://{listen}"), secret, Some(token)))
}

/// Waits for an operation's final state with a line that shows what it waits for.
pub(crate) fn wait(client: &Client, path: &str, seconds: u64) -> Result<Value> {
    let bar = ProgressBar::new_spinner();
    bar.set_style(
        ProgressStyle::with_template("{spinner} {msg} {elapsed}").context("progress style")?,
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        let status = client.wait(path)?;
        let state = status["state"].as_str().unwrap_or_default().to_owned();
        bar.set_message(format!("{state}: waiting for the host"));
        if !matches!(state.as_str(), "queued" | "running") || Instant::now() >= deadline {
            bar.finish_and_clear();
            if matches!(state.as_str(), "queued" | "running") {
                bail!(
                    "still {state} after {seconds} s; read it later at {path} (is the host's agent running?)"
                );
            }
            return Ok(status);
        }
    }
}

/// Prints a final status for people, and what to do next.
pub(crate) fn explain(status: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    println!(
        "{}  {} {}",
        text(&status["state"]),
        text(&status["op"]),
        text(&status["key"])
    );
    let outcome = &status["outcome"];
    for partition in outcome["partitions"].as_array().into_iter().flatten() {
        println!(
            "  partition {} at {}",
            text(&partition["id"]),
            text(&partition["sysfs_path"])
        );
        if let Some(group) = partition["cgroup_path"].as_str() {
            println!("    control group {group}");
        }
    }
    if let Some(limits) = outcome["limits_state"].as_str() {
        let reason = outcome["limits_reason"]
            .as_str()
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        println!(
            "  isolation {}, limits {limits}{reason}",
            text(&outcome["isolation"])
        );
    }
    if outcome["existed"] == false {
        println!("  there was no such allocation: nothing to release");
    }
    let failure = &status["failure"];
    if failure.is_object() {
        println!(
            "  {}: {}",
            text(&failure["code"]),
            text(&failure["message"])
        );
        for rest in failure["residue"].as_array().into_iter().flatten() {
            println!("  left on the host: {}", text(rest));
        }
        let again = failure["retryable"] == true;
        println!(
            "  next: {}",
            if again {
                "send it again later, unchanged"
            } else {
                "change the request; the same one fails again"
            }
        );
    } else if outcome["kind"] == "allocated" {
        println!(
            "  next: hand the partition to its VM (libvirt_xml and qemu_args with --json), then release the key"
        );
    }
}
