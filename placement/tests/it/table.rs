//! Cases by hand: what goes where, and what a person is told otherwise.

use placement::{Candidate, Class, place};

use crate::board::{host, put, request, reservation, t4};

fn check(
    fields: &str,
    hosts: &[(events::HostInventory, Vec<events::inventory::Reservation>)],
    expect: Result<&str, (Class, &str)>,
) {
    let candidates: Vec<_> = hosts
        .iter()
        .map(|(inventory, reserved)| Candidate {
            inventory,
            reserved,
        })
        .collect();
    let placed = place(&request(fields), &candidates);
    let placed = placed.map(|placed| {
        let gpus = hosts.iter().flat_map(|(inventory, _)| &inventory.gpus);
        let index = gpus
            .filter(|gpu| gpu.uuid == placed.gpu)
            .map(|gpu| gpu.index)
            .next()
            .unwrap();
        format!("{}/{index} {}", placed.host, placed.profile)
    });
    match (placed, expect) {
        (Ok(placed), Ok(expect)) => assert_eq!(placed, expect, "{fields}"),
        (Err(refused), Err((class, words))) => {
            let said: Vec<_> = refused.gpus.iter().map(ToString::to_string).collect();
            assert_eq!(refused.class, class, "{fields}: {said:?}");
            assert!(said.join("\n").contains(words), "{fields}: {said:?}");
        }
        (placed, expect) => panic!("{fields}: {placed:?} instead of {expect:?}"),
    }
}

#[test]
fn requests_go_to_the_first_gpu_that_takes_them_whole() {
    let mut first = t4(0);
    put(&mut first, "T4-4Q", Some(1));
    put(&mut first, "T4-4Q", None);
    let mut third = t4(2);
    third.unavailable = Some("stuck".to_owned());
    let hosts = [
        (host("a", vec![first, t4(1), third]), vec![]),
        (host("b", vec![t4(3)]), vec![]),
    ];
    for (fields, expect) in [
        (r#""profile":"T4-4Q""#, Ok("a/0 T4-4Q")),
        (r#""profile":"T4-4Q","count":2"#, Ok("a/0 T4-4Q")),
        (r#""profile":"T4-4Q","count":3"#, Ok("a/1 T4-4Q")),
        (r#""profile":"T4-8Q""#, Ok("a/1 T4-8Q")),
        (r#""memory_mib":3000"#, Ok("a/0 T4-4Q")),
        (r#""memory_mib":4097"#, Ok("a/1 T4-8Q")),
        (r#""memory_mib":1,"mode":"vgpu""#, Ok("a/1 T4-1B")),
        (
            r#""profile":"T4-4Q","target":{"host":"a","gpu":1}"#,
            Ok("a/1 T4-4Q"),
        ),
        (
            r#""profile":"T4-4Q","target":{"host":"a","gpu":"3C:00.0"}"#,
            Ok("a/1 T4-4Q"),
        ),
        (
            r#""profile":"T4-4Q","count":5"#,
            Err((Class::NoCapacity, "5 of T4-4Q never fit")),
        ),
        (
            r#""profile":"T4-4Q","target":{"host":"a","gpu":2}"#,
            Err((Class::NoCapacity, "unavailable: stuck")),
        ),
    ] {
        check(fields, &hosts, expect);
    }
}

#[test]
fn what_never_fits_is_told_apart_from_what_does_not_fit_now() {
    let mut full = t4(0);
    (0..4).for_each(|number| put(&mut full, "T4-4Q", Some(number)));
    let full = [(host("a", vec![full]), vec![])];
    let empty = [(host("a", vec![t4(0)]), vec![])];
    let mut bare = t4(0);
    bare.backend = None;
    let bare = [(host("a", vec![bare]), vec![])];
    for (hosts, fields, class, words) in [
        (
            &full,
            r#""profile":"T4-4Q""#,
            Class::NoCapacity,
            "0 of 4 T4-4Q are free",
        ),
        (
            &full,
            r#""profile":"T4-2Q""#,
            Class::NoCapacity,
            "holds T4-4Q",
        ),
        (
            &empty,
            r#""profile":"T4-3Q""#,
            Class::Impossible,
            "does not offer T4-3Q",
        ),
        (
            &empty,
            r#""memory_mib":16385"#,
            Class::Impossible,
            "no profile holds 16385 MiB",
        ),
        (
            &empty,
            r#""profile":"T4-16Q","count":2"#,
            Class::Impossible,
            "at most 1",
        ),
        (
            &empty,
            r#""profile":"T4-4Q","target":{"host":"a","gpu":9}"#,
            Class::Impossible,
            "no such GPU",
        ),
        (
            &empty,
            r#""profile":"T4-4Q","mode":"mig""#,
            Class::Impossible,
            "makes no MIG instances: it serves virtual machines",
        ),
        (
            &bare,
            r#""profile":"T4-4Q""#,
            Class::Impossible,
            "makes no vGPUs",
        ),
    ] {
        check(fields, hosts, Err((class, words)));
    }
    check(
        r#""profile":"T4-4Q""#,
        &[(host("a", vec![]), vec![])],
        Err((Class::Impossible, "no GPU")),
    );
    assert_eq!(
        place(&request(r#""profile":"T4-4Q""#), &[])
            .unwrap_err()
            .class,
        Class::NoHost
    );
}

#[test]
fn unknown_profiles_are_answered_with_the_valid_ones() {
    let inventory = host("a", vec![t4(0), t4(1)]);
    let refused = place(
        &request(r#""profile":"T4-3Q""#),
        &[Candidate {
            inventory: &inventory,
            reserved: &[],
        }],
    )
    .unwrap_err();
    let valid: Vec<_> = refused
        .valid_profiles
        .iter()
        .map(events::ProfileName::as_str)
        .collect();
    assert_eq!(
        valid,
        ["T4-1B", "T4-1Q", "T4-2Q", "T4-4Q", "T4-8Q", "T4-16Q"]
    );
}

#[test]
fn promises_count_until_their_partitions_are_there_and_only_once() {
    let mut gpu = t4(0);
    put(&mut gpu, "T4-4Q", Some(1));
    let promised = |count| vec![reservation(1, &gpu, "T4-4Q", count)];
    let inventory = host("a", vec![gpu.clone()]);
    let three = r#""profile":"T4-4Q","count":3"#;
    check(three, &[(inventory.clone(), promised(1))], Ok("a/0 T4-4Q"));
    check(
        three,
        &[(inventory.clone(), promised(2))],
        Err((Class::NoCapacity, "2 of 4")),
    );
    // The same promise twice, as a repeated allocate makes it, is one promise.
    let twice = [promised(2), promised(2)].concat();
    check(
        r#""profile":"T4-4Q","count":2"#,
        &[(inventory, twice)],
        Ok("a/0 T4-4Q"),
    );
    // A promise alone fixes the size of an empty GPU.
    let empty = t4(0);
    let other = vec![reservation(2, &empty, "T4-8Q", 1)];
    check(
        r#""profile":"T4-4Q""#,
        &[(host("a", vec![empty]), other)],
        Err((Class::NoCapacity, "holds T4-8Q")),
    );
}

#[test]
fn partitions_of_unknown_profiles_are_never_assumed_to_fit() {
    let mut gpu = t4(0);
    put(&mut gpu, "GRID-9X", None);
    gpu.profiles
        .iter_mut()
        .for_each(|profile| profile.available = profile.max_instances);
    check(
        r#""profile":"T4-4Q""#,
        &[(host("a", vec![gpu]), vec![])],
        Err((Class::NoCapacity, "holds GRID-9X")),
    );
}
