//! Many writers at once: exactly one wins what only one can have.

use std::{sync::Barrier, thread};

use crate::fixture::{EEXIST, EIO, ENODEV, ENOENT, FIRST, Fixture, SECOND, remove, uuid};

fn at_once<T: Send>(writers: usize, write: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(writers);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|n| {
                let (barrier, write) = (&barrier, &write);
                scope.spawn(move || {
                    barrier.wait();
                    write(n)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn of_concurrent_creates_of_one_uuid_exactly_one_wins() {
    let host = Fixture::builtin("two-t4");
    let mut results = at_once(8, |n| {
        host.create(if n % 2 == 0 { FIRST } else { SECOND }, 232, uuid(1))
    });
    results.sort_unstable();
    assert_eq!(
        results,
        [0, EEXIST, EEXIST, EEXIST, EEXIST, EEXIST, EEXIST, EEXIST]
    );
    assert_eq!(host.client().state().unwrap().writes.created, 1);
}

#[test]
fn concurrent_creates_never_exceed_the_maximum() {
    let host = Fixture::builtin("t4");
    let results = at_once(8, |n| host.create(FIRST, 232, uuid(n as u8)));
    assert_eq!(
        results.iter().filter(|errno| **errno == 0).count(),
        4,
        "{results:?}"
    );
    assert!(
        results.iter().all(|errno| [0, EIO].contains(errno)),
        "{results:?}"
    );
    assert_eq!(host.available(FIRST, 232), 0);
}

#[test]
fn of_concurrent_removes_exactly_one_wins() {
    let host = Fixture::builtin("t4");
    host.create(FIRST, 232, uuid(1));
    let results = at_once(4, |_| host.write(&remove(uuid(1)), b"1"));
    assert_eq!(
        results.iter().filter(|errno| **errno == 0).count(),
        1,
        "{results:?}"
    );
    assert!(
        results
            .iter()
            .all(|errno| [0, ENOENT, ENODEV].contains(errno)),
        "{results:?}"
    );
}
