//! MIG GPUs: what fits depends on the map of slices, not on sums.

use events::inventory::{
    Backend, GpuInventory, PartitionInventory, Placements, ProfileInventory, Reservation, Slices,
};
use events::operation::Mode;
use placement::{Candidate, Class, Placement, Unplaceable, place};

use crate::board::{allocation, host, request, reservation, t4};

/// An H100 whose MIG is on, with these instances: first slice, slices, profile, spare.
fn h100(instances: &[(u8, u8, &str, bool)]) -> GpuInventory {
    let taken = |start: u8, size: u8| {
        instances
            .iter()
            .any(|(at, width, ..)| *at < start + size && start < at + width)
    };
    let offer = |name: &str, memory_mib, starts: &[u8], size, max| ProfileInventory {
        mode: Mode::Mig,
        placements: Some(Placements {
            starts: starts.to_vec(),
            size,
        }),
        ..ProfileInventory::vgpu(
            name.parse().unwrap(),
            memory_mib,
            max,
            u32::try_from(starts.iter().filter(|start| !taken(**start, size)).count()).unwrap(),
        )
    };
    let partition = |(start, size, profile, spare): &(u8, u8, &str, bool)| PartitionInventory {
        slices: Some(Slices {
            start: *start,
            size: *size,
        }),
        spare: *spare,
        ..PartitionInventory::foreign(
            allocation(900 + u32::from(*start)).partition(0),
            profile.parse().unwrap(),
        )
    };
    GpuInventory {
        backend: Some(Backend::Mig),
        profiles: vec![
            offer("1g.10gb", 9984, &[0, 1, 2, 3, 4, 5, 6], 1, 7),
            offer("2g.20gb", 20096, &[0, 2, 4], 2, 3),
            offer("3g.40gb", 40448, &[0, 4], 4, 2),
            offer("4g.40gb", 40448, &[0], 4, 1),
            offer("7g.80gb", 81152, &[0], 8, 1),
        ],
        partitions: instances.iter().map(partition).collect(),
        ..t4(0)
    }
}

fn placed(
    gpu: GpuInventory,
    reserved: &[Reservation],
    fields: &str,
) -> Result<Placement, Unplaceable> {
    let inventory = host("a", vec![gpu]);
    let candidate = Candidate {
        inventory: &inventory,
        reserved,
    };
    place(&request(fields), &[candidate])
}

#[test]
fn instances_fit_where_the_map_has_room() {
    for (instances, fields, expect) in [
        (
            &[][..],
            r#""profile":"1g.10gb","mode":"mig","count":7"#,
            true,
        ),
        (&[], r#""profile":"3g.40gb","mode":"any","count":2"#, true),
        (&[], r#""memory_mib":12000,"mode":"mig""#, true),
        (
            &[(4, 4, "3g.40gb", false)],
            r#""profile":"4g.40gb","mode":"mig""#,
            true,
        ),
        (
            &[(0, 1, "1g.10gb", false)],
            r#""profile":"4g.40gb","mode":"mig""#,
            false,
        ),
        // Six slices are free in all, and no two of them where 2g may lie more than once.
        (
            &[(1, 1, "1g.10gb", false), (3, 1, "1g.10gb", false)],
            r#""profile":"2g.20gb","mode":"mig","count":2"#,
            false,
        ),
        (
            &[(1, 1, "1g.10gb", false), (3, 1, "1g.10gb", false)],
            r#""profile":"2g.20gb","mode":"mig""#,
            true,
        ),
        // What the layout keeps for whoever comes is there to be given.
        (
            &[(0, 4, "3g.40gb", true), (4, 4, "3g.40gb", true)],
            r#""profile":"3g.40gb","mode":"mig","count":2"#,
            true,
        ),
        (
            &[(0, 4, "3g.40gb", false), (4, 4, "3g.40gb", true)],
            r#""profile":"3g.40gb","mode":"mig","count":2"#,
            false,
        ),
    ] {
        let found = placed(h100(instances), &[], fields);
        assert_eq!(found.is_ok(), expect, "{instances:?} {fields} {found:?}");
        match found {
            Ok(placement) => assert_eq!(placement.mode, Mode::Mig),
            Err(refused) => assert_eq!(refused.class, Class::NoCapacity),
        }
    }
}

#[test]
fn promises_take_places_too() {
    let gpu = h100(&[]);
    for (promised, fields, expect) in [
        (
            &[("4g.40gb", 1)][..],
            r#""profile":"3g.40gb","mode":"mig""#,
            true,
        ),
        (
            &[("4g.40gb", 1)],
            r#""profile":"3g.40gb","mode":"mig","count":2"#,
            false,
        ),
        (
            &[("3g.40gb", 1), ("2g.20gb", 1)],
            r#""profile":"1g.10gb","mode":"mig","count":2"#,
            true,
        ),
        (
            &[("3g.40gb", 1), ("2g.20gb", 1)],
            r#""profile":"1g.10gb","mode":"mig","count":3"#,
            false,
        ),
        (
            &[("7g.80gb", 1)],
            r#""profile":"1g.10gb","mode":"mig""#,
            false,
        ),
        (
            &[("1g.10gb", 5)],
            r#""profile":"1g.10gb","mode":"mig","count":2"#,
            true,
        ),
        (
            &[("1g.10gb", 5)],
            r#""profile":"1g.10gb","mode":"mig","count":3"#,
            false,
        ),
        // Of a size that nobody knows.
        (
            &[("1g.5gb", 1)],
            r#""profile":"1g.10gb","mode":"mig""#,
            false,
        ),
    ] {
        let reserved: Vec<_> = (0..)
            .zip(promised)
            .map(|(number, (profile, count))| reservation(number, &gpu, profile, *count))
            .collect();
        let found = placed(gpu.clone(), &reserved, fields);
        assert_eq!(found.is_ok(), expect, "{promised:?} {fields} {found:?}");
    }
}

#[test]
fn a_gpu_that_cannot_says_why() {
    let mut off = h100(&[]);
    for offer in &mut off.profiles {
        offer.available = 0;
    }
    let mut strange = h100(&[]);
    strange.profiles[0].placements = Some(Placements {
        starts: vec![255, 31],
        size: 255,
    });
    for (gpu, fields, class, words) in [
        (
            h100(&[]),
            r#""profile":"1g.10gb","mode":"vgpu""#,
            Class::Impossible,
            "it serves containers with MIG instances",
        ),
        (
            off,
            r#""profile":"1g.10gb","mode":"mig""#,
            Class::NoCapacity,
            "its MIG is off",
        ),
        (
            h100(&[]),
            r#""profile":"1g.10gb","mode":"mps""#,
            Class::Impossible,
            "makes no",
        ),
        (
            strange,
            r#""profile":"1g.10gb","mode":"mig""#,
            Class::NoCapacity,
            "0 of 7",
        ),
    ] {
        let refused = placed(gpu, &[], fields).unwrap_err();
        assert_eq!(refused.class, class, "{refused:?}");
        assert!(
            refused.gpus[0].to_string().contains(words),
            "{}",
            refused.gpus[0]
        );
    }
}
