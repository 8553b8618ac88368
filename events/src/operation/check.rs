//! Ranges of what an operation asks for, each told by its place.

use super::{Allocate, Mode, Partition};
use crate::limits::Limits;

/// A point in a year at most: a longer lease is a forgotten one.
const LONGEST_LEASE_S: u64 = 31_536_000;

pub(super) fn is_lease(ttl_s: u64) -> bool {
    (1..=LONGEST_LEASE_S).contains(&ttl_s)
}

pub(super) fn check_allocate(allocate: &Allocate, check: &mut impl FnMut(bool, &str, &str)) {
    // These have one size, and need no name for it.
    let has_one_size = matches!(allocate.mode, Mode::Timeslice | Mode::Whole);
    check(
        allocate.profile.is_some() != allocate.memory_mib.is_some()
            || (has_one_size && allocate.profile.is_none()),
        "/profile",
        "give either profile or memory_mib",
    );
    check(
        allocate.mode == Mode::Mps || allocate.compute_percent.is_none(),
        "/compute_percent",
        "is for mode mps: other modes have it in their profile",
    );
    check(
        allocate
            .memory_mib
            .is_none_or(|mib| (1..=16_777_216).contains(&mib)),
        "/memory_mib",
        "must be from 1 to 16777216",
    );
    check(
        allocate
            .compute_percent
            .is_none_or(|percent| (1..=100).contains(&percent)),
        "/compute_percent",
        "must be from 1 to 100",
    );
    check(
        (1..=64).contains(&allocate.count),
        "/count",
        "must be from 1 to 64",
    );
    check(
        allocate.ttl_s.is_none_or(is_lease),
        "/ttl_s",
        "must be from 1 to 31536000",
    );
    if let Some(limits) = &allocate.limits {
        check_limits(limits, check);
    }
}

pub(super) fn check_partition(partition: &Partition, check: &mut impl FnMut(bool, &str, &str)) {
    check(
        partition.target.gpu.is_some(),
        "/target/gpu",
        "name the GPU: a layout is one GPU's",
    );
    check(
        matches!(partition.mode, Mode::Mig | Mode::Vgpu | Mode::Whole),
        "/mode",
        "a layout is of mode mig or vgpu, or whole, which has none; mps and timeslice are allocated",
    );
    check(
        partition
            .deadline_s
            .is_none_or(|seconds| (1..=604_800).contains(&seconds)),
        "/deadline_s",
        "must be from 1 to 604800",
    );
    check(
        partition.mode != Mode::Whole || partition.layout.is_empty(),
        "/layout",
        "a whole GPU has no layout",
    );
    check(
        partition.layout.len() <= 64
            && partition
                .layout
                .iter()
                .all(|entry| (1..=64).contains(&entry.count)),
        "/layout",
        "at most 64 entries, each with a count from 1 to 64",
    );
}

pub(super) fn check_limits(limits: &Limits, check: &mut impl FnMut(bool, &str, &str)) {
    check(
        limits
            .memory_mib
            .is_none_or(|mib| (4..=16_777_216).contains(&mib)),
        "/limits/memory_mib",
        "must be from 4 to 16777216",
    );
    check(
        limits.swap_mib.is_none_or(|mib| mib <= 16_777_216),
        "/limits/swap_mib",
        "must be at most 16777216",
    );
    // crun accepted swap without memory and set nothing (field F03).
    check(
        limits.swap_mib.is_none() || limits.memory_mib.is_some(),
        "/limits/swap_mib",
        "needs limits.memory_mib",
    );
    check(
        limits
            .pids
            .is_none_or(|pids| (1..=4_194_304).contains(&pids)),
        "/limits/pids",
        "must be from 1 to 4194304",
    );
}
