//! Cold starts: exec to the first poll, the first event to its answer, and what lies between.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::http;
use super::stand_in::StandIn;
use crate::site::{SOURCE, Site};

/// Longest that a function may take for its first poll.
const START: Duration = Duration::from_secs(20);
/// What the issue sets as goals. It has network and policy reported apart and does not say which ratio it means,
/// so all are printed.
const GOALS: &str = "goals: webhook at most 1.5 times hello; zip at most 6 MB; RSS at most 25 MB";

/// One start.
struct Start {
    to_poll_ms: f64,
    to_answer_ms: f64,
    rss_mib: f64,
    /// Phases that the function logs, by name.
    phases: Vec<(String, f64)>,
}

/// Measures every program and prints the table.
pub(super) fn run(functions: &Path, hello: &Path, spawns: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let site = Site::write(folder.path(), "acme")?;
    let files = [
        "gpuhook.toml",
        "keys/function.whsk",
        "keys/callback.whsk",
        "secrets/webhook.whsec",
        "secrets/callback.whsec",
        "receiver.pem",
    ];
    let stand_in = StandIn::start(folder.path(), &files, &host_key(folder.path())?)?;
    println!(
        "{spawns} starts each, on this machine; AWS is a stand-in on loopback over TLS; times in ms, middle of all (least to most)"
    );
    println!(
        "{:<10} {:>24} {:>24} {:>9} {:>9} {:>9}",
        "program", "exec -> first poll", "first event -> answer", "RSS MiB", "KiB", "zip KiB"
    );
    let programs = [
        ("hello", hello.to_owned(), json!({})),
        ("webhook", functions.join("webhook"), webhook(&site)),
        ("results", functions.join("results"), json!({"Records": []})),
        ("deliver", functions.join("deliver"), json!({})),
        ("sweep", functions.join("sweep"), json!({})),
    ];
    let mut medians = Vec::new();
    for (name, program, event) in &programs {
        let starts: Vec<_> = (0..spawns)
            .map(|_| start(program, event, &stand_in, name))
            .collect::<Result<_>>()?;
        medians.push(row(name, program, &starts)?);
    }
    conclude(&medians);
    Ok(())
}

fn host_key(folder: &Path) -> Result<String> {
    let text = std::fs::read_to_string(folder.join("keys/host.whsk"))?;
    Ok(events::key::SecretKey::parse(&text)?.public().to_string())
}

/// A signed webhook that ends in a command on a queue.
fn webhook(site: &Site) -> Value {
    let body = r#"{"op":"inspect","target":{"host":"gpu-1"}}"#;
    let now_s = jiff::Timestamp::now().as_second();
    let signed = format!("msg_bench.{now_s}.{body}");
    let mac = ring::hmac::sign(&site.webhook, signed.as_bytes());
    json!({
        "version": "2.0", "rawPath": format!("/v1/hooks/{SOURCE}"), "rawQueryString": "",
        "requestContext": {"http": {"method": "POST"}}, "body": body, "isBase64Encoded": false,
        "headers": {
            "content-type": "application/json", "webhook-id": "msg_bench", "webhook-timestamp": now_s.to_string(),
            "webhook-signature": format!("v1,{}", STANDARD.encode(mac)),
        },
    })
}

fn start(program: &Path, event: &Value, stand_in: &StandIn, name: &str) -> Result<Start> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let api = listener.local_addr()?;
    let begun = Instant::now();
    let mut child = spawn(program, &api.to_string(), stand_in)?;
    let served = serve(&listener, &mut child, begun, event);
    let rss_mib = peak_mib(child.id());
    let _ = child.kill();
    let mut log = String::new();
    child
        .stderr
        .take()
        .context("stderr")?
        .read_to_string(&mut log)?;
    child.wait()?;
    let (to_poll_ms, to_answer_ms, answer) = served.with_context(|| format!("{name}: {log}"))?;
    if name == "webhook" && answer["statusCode"] != 202 {
        bail!("the webhook was answered {answer}: {log}");
    }
    Ok(Start {
        to_poll_ms,
        to_answer_ms,
        rss_mib,
        phases: phases(&log),
    })
}

fn spawn(program: &Path, api: &str, stand_in: &StandIn) -> Result<Child> {
    let given = [
        ("AWS_LAMBDA_RUNTIME_API", api),
        ("AWS_LAMBDA_FUNCTION_NAME", "bench"),
        ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_SESSION_TOKEN", "x"),
        ("AWS_ENDPOINT_URL", stand_in.endpoint.as_str()),
        ("GPUHOOK_PREFIX", "bench"),
        ("GPUHOOK_TABLE", "bench"),
        ("GPUHOOK_QUEUE_BASE", "https://localhost/"),
        (
            "GPUHOOK_CALLBACK_QUEUE_URL",
            "https://localhost/bench-callbacks",
        ),
        ("GPUHOOK_SECRETS", "bench"),
        ("GPUHOOK_ROOTS", "native"),
    ];
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(given)
        // One root to parse, as good as Amazon's five.
        .env("SSL_CERT_FILE", &stand_in.root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    command
        .spawn()
        .with_context(|| format!("start {}", program.display()))
}

/// Plays the runtime API for one event: milliseconds to the first poll, from it to the answer, the answer.
fn serve(
    listener: &TcpListener,
    child: &mut Child,
    begun: Instant,
    event: &Value,
) -> Result<(f64, f64, Value)> {
    let mut polled = None;
    loop {
        let (mut stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if begun.elapsed() > START || child.try_wait()?.is_some() {
                    bail!("the function did not ask for an event");
                }
                std::hint::spin_loop();
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        while let Some(request) = http::read(&mut stream)? {
            if request.line.starts_with("GET") {
                polled = Some(Instant::now());
                let headers = "lambda-runtime-aws-request-id: 1\r\nlambda-runtime-deadline-ms: 4102444800000\r\nlambda-runtime-invoked-function-arn: arn\r\ncontent-type: application/json\r\n";
                http::answer(&mut stream, 200, headers, event.to_string().as_bytes())?;
            } else {
                let asked = polled.context("an answer before any event")?;
                let answered = asked.elapsed();
                let answer = serde_json::from_slice(&request.body).unwrap_or_default();
                http::answer(&mut stream, 202, "", b"")?;
                return Ok((ms(asked - begun), ms(answered), answer));
            }
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn peak_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

/// Every `…_ms` field of the log.
fn phases(log: &str) -> Vec<(String, f64)> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let fields = lines.filter_map(|line| line["fields"].as_object().cloned());
    fields
        .flatten()
        .filter_map(|(name, value)| Some((name.strip_suffix("_ms")?.to_owned(), value.as_f64()?)))
        .collect()
}

/// Least, middle and most of some figures.
fn spread(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    [0, last / 2, last].map(|place| figures.get(place).copied().unwrap_or_default())
}

/// The middle of what conclusions are drawn from.
struct Median {
    name: String,
    to_poll_ms: f64,
    phases: Vec<(String, f64)>,
}

fn row(name: &str, program: &Path, starts: &[Start]) -> Result<Median> {
    let bytes = std::fs::read(program)?;
    let polls = spread(starts.iter().map(|start| start.to_poll_ms).collect());
    let answers = spread(starts.iter().map(|start| start.to_answer_ms).collect());
    let rss = spread(starts.iter().map(|start| start.rss_mib).collect());
    let show = |[least, middle, most]: [f64; 3]| format!("{middle:.1} ({least:.1} to {most:.1})");
    println!(
        "{name:<10} {:>24} {:>24} {:>9.1} {:>9} {:>9}",
        show(polls),
        show(answers),
        rss[2],
        bytes.len() / 1024,
        zipped_kib(program)?.map_or_else(|| "no zip".to_owned(), |kib| kib.to_string())
    );
    let mut phases = Vec::new();
    for (phase, _) in starts
        .first()
        .map(|start| &start.phases[..])
        .unwrap_or_default()
    {
        let of = |start: &Start| {
            start
                .phases
                .iter()
                .find(|(name, _)| name == phase)
                .map(|(_, ms)| *ms)
        };
        phases.push((
            phase.clone(),
            spread(starts.iter().filter_map(of).collect())[1],
        ));
    }
    Ok(Median {
        name: name.to_owned(),
        to_poll_ms: polls[1],
        phases,
    })
}

/// The package's size, as `zip -9` makes it.
fn zipped_kib(program: &Path) -> Result<Option<u64>> {
    let folder = tempfile::tempdir()?;
    let package: PathBuf = folder.path().join("package.zip");
    let zipped = Command::new("zip")
        .args(["-q", "-9", "-j"])
        .arg(&package)
        .arg(program)
        .status();
    match zipped {
        Ok(status) if status.success() => Ok(Some(std::fs::metadata(&package)?.len() / 1024)),
        _ => Ok(None),
    }
}

/// Where the front door's milliseconds go, and what remains beside the yardstick.
fn conclude(medians: &[Median]) {
    let of = |name: &str| medians.iter().find(|median| median.name == name);
    let (Some(hello), Some(webhook)) = (of("hello"), of("webhook")) else {
        return;
    };
    let phase = |name: &str| {
        let found = webhook.phases.iter().find(|(phase, _)| phase == name);
        found.map_or(0.0, |(_, ms)| *ms)
    };
    let init = phase("init");
    println!("\nwhere the front door's start goes, ms:");
    println!(
        "  {:>6.1}  exec, dynamic linking, runtime, log",
        webhook.to_poll_ms - init
    );
    println!("  {:>6.1}  clients and TLS set-up", phase("clients"));
    println!(
        "  {:>6.1}  network: secrets read, table and queue connected to (TCP, TLS), all at once",
        phase("network")
    );
    println!(
        "  {:>6.1}  configuration and policy parsed",
        phase("configuration")
    );
    let without_network = webhook.to_poll_ms - phase("network");
    let own = without_network - phase("configuration");
    let ratio = |figure: f64| figure / hello.to_poll_ms;
    println!(
        "ratio to hello ({:.1} ms): {:.2} in all, {:.2} without network, {:.2} without network and policy ({own:.1} ms)\n{GOALS}",
        hello.to_poll_ms,
        ratio(webhook.to_poll_ms),
        ratio(without_network),
        ratio(own),
    );
}
