//! Which errno a write gets: the mdev core's rules, the driver's, and those of opening an attribute.

use crate::fixture::{
    EACCES, EEXIST, EINVAL, EIO, EISDIR, ENOENT, FIRST, Fixture, SECOND, create, remove, uuid,
};

#[test]
fn create_answers_the_errno_of_the_kernel() {
    let host = Fixture::builtin("two-t4");
    let taken = uuid(1);
    assert_eq!(host.create(FIRST, 232, taken), 0);
    for (what, path, bytes, expect) in [
        (
            "empty write creates nothing",
            create(FIRST, 232),
            String::new(),
            0,
        ),
        ("garbage", create(FIRST, 232), "not-a-uuid".into(), EINVAL),
        (
            "36 characters that are no UUID",
            create(FIRST, 232),
            "x".repeat(36),
            EINVAL,
        ),
        (
            "braces",
            create(FIRST, 232),
            format!("{{{}}}", uuid(9)),
            EINVAL,
        ),
        (
            "two newlines",
            create(FIRST, 232),
            format!("{}\n\n", uuid(9)),
            EINVAL,
        ),
        (
            "same UUID, same type",
            create(FIRST, 232),
            taken.to_string(),
            EEXIST,
        ),
        (
            "same UUID in capitals",
            create(FIRST, 232),
            taken.to_string().to_uppercase(),
            EEXIST,
        ),
        (
            "same UUID, other type",
            create(FIRST, 226),
            taken.to_string(),
            EEXIST,
        ),
        (
            "same UUID, other parent",
            create(SECOND, 230),
            taken.to_string(),
            EEXIST,
        ),
        (
            "other size on the same GPU",
            create(FIRST, 231),
            uuid(9).to_string(),
            EIO,
        ),
        (
            "type that the board lacks",
            create(FIRST, 999),
            uuid(9).to_string(),
            ENOENT,
        ),
        (
            "parent that the host lacks",
            create("0000:00:00.0", 232),
            uuid(9).to_string(),
            ENOENT,
        ),
        (
            "path out of the host",
            "/../../../../etc/hostname".into(),
            "x".into(),
            ENOENT,
        ),
        (
            "read-only attribute",
            format!("/sys/bus/pci/devices/{FIRST}/vendor"),
            "x".into(),
            EACCES,
        ),
        (
            "directory",
            format!("/sys/bus/pci/devices/{FIRST}"),
            "x".into(),
            EISDIR,
        ),
        ("relative path", "sys/bus".into(), "x".into(), ENOENT),
    ] {
        assert_eq!(host.write(&path, bytes.as_bytes()), expect, "{what}");
    }
    assert_eq!(host.client().state().unwrap().mdevs.len(), 1);
}

#[test]
fn create_accepts_a_newline_capitals_and_one_unchecked_byte() {
    let host = Fixture::builtin("t4");
    for (n, text) in [
        (1, format!("{}\n", uuid(1))),
        (2, uuid(2).to_string().to_uppercase()),
        (3, format!("{}x", uuid(3))),
    ] {
        assert_eq!(
            host.write(&create(FIRST, 232), text.as_bytes()),
            0,
            "{text:?}"
        );
        // The kernel names the device in lower case whatever was written.
        assert!(
            host.path(&format!("/sys/bus/mdev/devices/{}", uuid(n)))
                .is_dir(),
            "{text:?}"
        );
    }
}

#[test]
fn remove_reads_a_number_and_only_one_that_is_not_zero_removes() {
    let host = Fixture::builtin("t4");
    host.create(FIRST, 232, uuid(1));
    for (bytes, expect) in [
        ("", 0),
        ("0", 0),
        ("0\n", 0),
        ("0x0", 0),
        ("abc", EINVAL),
        ("-1", EINVAL),
    ] {
        assert_eq!(
            host.write(&remove(uuid(1)), bytes.as_bytes()),
            expect,
            "{bytes:?}"
        );
        assert!(
            host.client().state().unwrap().mdev(uuid(1)).is_some(),
            "{bytes:?}"
        );
    }
    assert_eq!(host.write(&remove(uuid(1)), b"1\n"), 0);
    assert_eq!(host.write(&remove(uuid(1)), b"1"), ENOENT);
    assert!(
        !host
            .path(&format!("/sys/bus/mdev/devices/{}", uuid(1)))
            .exists()
    );
}

#[test]
fn instances_of_one_gpu_share_a_counter_and_a_size() {
    let host = Fixture::builtin("two-t4");
    let table = |parent| [230, 231, 232, 233, 234, 226].map(|id| host.available(parent, id));
    assert_eq!(table(FIRST), [16, 8, 4, 2, 1, 8]);
    host.create(FIRST, 231, uuid(1));
    assert_eq!(table(FIRST), [0, 7, 0, 0, 0, 7]);
    assert_eq!(table(SECOND), [16, 8, 4, 2, 1, 8]);
    assert_eq!(host.create(FIRST, 230, uuid(2)), EIO);
    for n in 2..=8 {
        assert_eq!(
            host.create(FIRST, if n % 2 == 0 { 226 } else { 231 }, uuid(n)),
            0
        );
    }
    assert_eq!(table(FIRST), [0, 0, 0, 0, 0, 0]);
    assert_eq!(host.create(FIRST, 231, uuid(9)), EIO);
    for n in 1..=8 {
        assert_eq!(host.write(&remove(uuid(n)), b"1"), 0);
    }
    assert_eq!(table(FIRST), [16, 8, 4, 2, 1, 8]);
}

#[test]
fn driver_can_answer_another_errno_for_capacity() {
    let mut description = simulator::HostDescription::builtin("t4").unwrap();
    description.quirks.capacity_errno = Some(28);
    let host = Fixture::with(description);
    host.create(FIRST, 234, uuid(1));
    assert_eq!(host.create(FIRST, 234, uuid(2)), 28);
}
