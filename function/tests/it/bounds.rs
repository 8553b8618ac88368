//! What a stranger can hold is bounded: slow heads, slow bodies, connections.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::machine::Machine;

async fn answered(mut stream: TcpStream) -> (String, Duration) {
    let start = Instant::now();
    let mut text = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut text)).await;
    assert!(read.is_ok(), "the connection is still open");
    (String::from_utf8_lossy(&text).into_owned(), start.elapsed())
}

/// Row 28: a head is given 5 s, a body 10 s.
#[tokio::test]
async fn slow_heads_are_closed_and_slow_bodies_answered_408() {
    let machine = Machine::start().await;
    let open = async |bytes: &str| {
        let mut stream = TcpStream::connect(machine.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream
    };
    let head = open("POST /v1/hooks/ci HTTP/1.1\r\nhost: x\r\n").await;
    let body = open("POST /v1/hooks/ci HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").await;
    let (head, body) = tokio::join!(answered(head), answered(body));
    assert!(head.0.is_empty() || head.0.contains(" 408 "), "{}", head.0);
    assert!(
        body.0.contains(" 408 ") && body.0.contains("body-too-slow"),
        "{}",
        body.0
    );
    assert!(head.1 < body.1, "{:?} {:?}", head.1, body.1);
    assert_eq!(machine.spy.effects(), (0, 0));
    machine.stop().await;
}

#[tokio::test]
async fn a_door_that_stops_closes_idle_connections_and_takes_no_new_ones() {
    let machine = Machine::start().await;
    let idle = TcpStream::connect(machine.address).await.unwrap();
    // Served once, so that the connection is surely the door's.
    assert_eq!(machine.get("", "/healthz").await.status, 200);
    let address = machine.address;
    machine.stop().await;
    assert!(answered(idle).await.0.is_empty());
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_head_beyond_the_bound_is_refused() {
    let machine = Machine::start().await;
    // 64 KiB and a little, in one piece and in many.
    for padding in [65_600, 200_000] {
        let request = machine
            .signed("ci", "msg", b"{}")
            .with("x-padding", vec![b'x'; padding]);
        let answer = request.send(machine.address).await;
        assert_eq!(answer.status, 431, "{padding}");
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    machine.stop().await;
}
