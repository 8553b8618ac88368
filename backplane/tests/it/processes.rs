//! The SQLite file in several hands: two handles, two processes, and a process that is killed.
//!
//! A test that needs a second process runs this binary again, for that test alone, with [`ROLE`] set.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName, Receiver, Sender, SystemClock};

use crate::implementation::{DEADLINE, open};
use crate::sample::message;

/// Set in the second process, to the file.
const ROLE: &str = "BACKPLANE_TEST_FILE";
const QUEUE: QueueName = QueueName::Results;

/// The second process of `test`. Dropping it kills it.
struct Second(Child);

impl Second {
    fn start(test: &str, path: &Path) -> Self {
        let test = format!("processes::{test}");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(ROLE, path)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Its lines that start with `word`, without it.
    fn lines(&mut self, word: &'static str) -> impl Iterator<Item = String> + use<> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        // The last line may be torn by the kill.
        let lines = lines.map_while(Result::ok);
        lines.filter_map(move |line| Some(line.strip_prefix(word)?.trim().to_owned()))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn role() -> Option<SqliteBackplane> {
    let path = std::env::var_os(ROLE)?;
    Some(open(Path::new(&path), Arc::new(SystemClock)))
}

fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // The end of the line tells a whole one from a torn one.
    writeln!(out, "{line} .").unwrap();
    out.flush().unwrap();
}

/// Where the measuring side says that it has a message, so that the next meets a waiting receiver.
fn echoes() -> QueueName {
    QueueName::Commands("echo".parse().unwrap())
}

/// Receives `count` stamped messages, one at a time, and prints how long each took.
async fn measure(what: &str, backplane: &SqliteBackplane, count: usize) {
    let receiver = backplane.receiver(&QUEUE);
    let mut took_ms = Vec::with_capacity(count);
    while took_ms.len() < count {
        let received = receiver.receive(Duration::from_secs(20)).await.unwrap();
        let received_at_ms = SystemClock.now_ms();
        let stamped = received.expect("a message was sent and did not arrive");
        took_ms.push(received_at_ms - stamped.body.parse::<i64>().unwrap());
        receiver.ack(&stamped.receipt).await.unwrap();
        let echo = message("a", &format!("{}", took_ms.len()));
        backplane.send(&echoes(), echo).await.unwrap();
    }
    took_ms.sort_unstable();
    let (p50, p99) = (took_ms[count / 2], took_ms[count * 99 / 100]);
    println!(
        "{what}: {count} messages, p50 {p50} ms, p99 {p99} ms from before the send to receipt"
    );
}

/// Sends one message after the other, each stamped with its time.
async fn send_stamped(backplane: &SqliteBackplane, count: usize) {
    let receiver = backplane.receiver(&echoes());
    for number in 0..count {
        let mut stamped = message("a", &format!("{number}"));
        stamped.body = SystemClock.now_ms().to_string();
        backplane.send(&QUEUE, stamped).await.unwrap();
        let echo = receiver.receive(Duration::from_secs(20)).await.unwrap();
        let receipt = echo.expect("the receiver is gone").receipt;
        receiver.ack(&receipt).await.unwrap();
    }
}

#[tokio::test]
async fn a_send_through_one_handle_wakes_the_receiver_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    let (here, there) = (
        open(&path, Arc::new(SystemClock)),
        open(&path, Arc::new(SystemClock)),
    );
    let sending = tokio::spawn(async move { send_stamped(&there, 100).await });
    let measured = measure("two handles", &here, 100);
    tokio::time::timeout(DEADLINE, measured).await.unwrap();
    sending.await.unwrap();
}

#[tokio::test]
async fn a_send_by_another_process_wakes_a_waiting_receiver() {
    if let Some(backplane) = role() {
        return send_stamped(&backplane, 100).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    let backplane = open(&path, Arc::new(SystemClock));
    let _second = Second::start("a_send_by_another_process_wakes_a_waiting_receiver", &path);
    let measured = measure("two processes", &backplane, 100);
    tokio::time::timeout(DEADLINE, measured).await.unwrap();
}

/// Nobody wakes a receiver for the hour of a message that was put back.
#[tokio::test]
async fn a_waiting_receiver_takes_a_delayed_message_at_its_hour() {
    let folder = tempfile::tempdir().unwrap();
    let backplane = open(&folder.path().join("backplane.db"), Arc::new(SystemClock));
    let receiver = backplane.receiver(&QUEUE);
    backplane.send(&QUEUE, message("a", "1")).await.unwrap();
    let first = receiver.receive(Duration::ZERO).await.unwrap().unwrap();
    receiver
        .nack(&first.receipt, Duration::from_millis(50))
        .await
        .unwrap();
    let again = receiver.receive(Duration::from_secs(20));
    let again = tokio::time::timeout(Duration::from_secs(15), again).await;
    assert_eq!(
        again.expect("it waited to its end").unwrap().unwrap().id,
        first.id
    );
}

/// What was confirmed is there after `kill -9`, once; so is the file's own integrity.
#[tokio::test]
async fn every_confirmed_send_survives_the_death_of_its_process() {
    if let Some(backplane) = role() {
        return send_until_killed(&backplane).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    let mut second = Second::start(
        "every_confirmed_send_survives_the_death_of_its_process",
        &path,
    );
    let mut confirmed = BTreeSet::new();
    for line in second.lines("sent ") {
        confirmed.extend(line.strip_suffix(" .").map(str::to_owned));
        // Reading goes on to the end of the pipe: what was confirmed up to the kill counts.
        if confirmed.len() == 300 {
            second.0.kill().unwrap();
        }
    }
    drop(second);
    assert!(confirmed.len() >= 300, "the sender ended early");

    let backplane = SqliteBackplane::open(&path, Arc::new(SystemClock)).unwrap();
    let receiver = backplane.receiver(&QUEUE);
    let mut found = BTreeSet::new();
    while let Some(message) = receiver.receive(Duration::ZERO).await.unwrap() {
        receiver.ack(&message.receipt).await.unwrap();
        assert!(found.insert(message.body.clone()), "{} twice", message.body);
    }
    let lost: Vec<_> = confirmed.difference(&found).collect();
    assert!(lost.is_empty(), "confirmed and gone: {lost:?}");
    println!("{} confirmed, {} found", confirmed.len(), found.len());
}

/// Eight senders, so that the kill meets commits of several.
async fn send_until_killed(backplane: &SqliteBackplane) {
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..8 {
        let backplane = backplane.clone();
        senders.spawn(async move {
            for number in 0..100_000 {
                let message = message(&format!("g{sender}"), &format!("{sender}-{number}"));
                let body = message.body.clone();
                backplane.send(&QUEUE, message).await.unwrap();
                say(format_args!("sent {body}"));
            }
        });
    }
    senders.join_all().await;
}
