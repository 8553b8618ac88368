//! First fit against a brute-force model: put the partitions on the board one by one, under the two
//! rules that a board has, and see whether they go.

use events::inventory::{HostInventory, Reservation};
use placement::{Candidate, Class, place};
use proptest::prelude::*;

use crate::board::{T4, host, put, request, reservation, t4};

/// What is on one board and promised of it: allocation number, profile, how many are promised, how
/// many of them exist.
type Load = Vec<(u32, usize, u32, u32)>;

fn loads() -> impl Strategy<Value = Vec<Vec<Load>>> {
    let entry = (1_u32..8, 0..T4.len(), 0_u32..4, 0_u32..4);
    let board = proptest::collection::vec(entry, 0..4);
    proptest::collection::vec(proptest::collection::vec(board, 0..3), 0..3)
}

/// One host with what is promised of it.
type Host = (HostInventory, Vec<Reservation>);

/// The model's board: sizes that stand on it.
#[derive(Default)]
struct Board(Vec<u64>);

impl Board {
    fn try_put(&mut self, profile: usize) -> bool {
        let (_, size, max) = T4[profile];
        let fits = self.0.iter().all(|other| *other == size) && self.0.len() < max as usize;
        if fits {
            self.0.push(size);
        }
        fits
    }
}

/// Builds hosts whose loads are possible (an impossible entry is left out), with the model's boards.
fn build(loads: &[Vec<Load>]) -> (Vec<Host>, Vec<Vec<Board>>) {
    let mut hosts = Vec::new();
    let mut model = Vec::new();
    for (number, boards) in loads.iter().enumerate() {
        let (mut gpus, mut reserved, mut of_host) = (Vec::new(), Vec::new(), Vec::new());
        for (index, load) in boards.iter().enumerate() {
            let mut gpu = t4(u8::try_from(10 * number + index).unwrap());
            let mut board = Board::default();
            let mut seen = Vec::new();
            for (allocation, profile, promised, existing) in load {
                if seen.contains(allocation) {
                    continue;
                }
                seen.push(*allocation);
                let name = T4[*profile].0;
                let there = (0..*existing).filter(|_| board.try_put(*profile)).count();
                let there = u32::try_from(there).unwrap();
                (0..there).for_each(|_| put(&mut gpu, name, Some(*allocation)));
                let missing = promised.saturating_sub(there);
                let kept = (0..missing).filter(|_| board.try_put(*profile)).count();
                let kept = u32::try_from(kept).unwrap();
                if there + kept > 0 && *promised > 0 {
                    reserved.push(reservation(*allocation, &gpu, name, there + kept));
                }
            }
            gpus.push(gpu);
            of_host.push(board);
        }
        hosts.push((host(&format!("h{number}"), gpus), reserved));
        model.push(of_host);
    }
    (hosts, model)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn first_fit_agrees_with_putting_partitions_one_by_one(loads in loads(), wanted in 0..T4.len(), count in 1_u32..6) {
        let (hosts, mut model) = build(&loads);
        let expect = hosts.iter().zip(&mut model).find_map(|((inventory, _), boards)| {
            inventory.gpus.iter().zip(boards).find_map(|(gpu, board)| {
                let mut board = Board(board.0.clone());
                (0..count).all(|_| board.try_put(wanted)).then(|| (inventory.host.clone(), gpu.uuid.clone()))
            })
        });
        let candidates: Vec<_> = hosts.iter().map(|(inventory, reserved)| Candidate { inventory, reserved }).collect();
        let asked = request(&format!(r#""profile":"{}","count":{count}"#, T4[wanted].0));
        let placed = place(&asked, &candidates);
        prop_assert_eq!(placed.as_ref().ok().map(|placed| (placed.host.clone(), placed.gpu.clone())), expect);
        if let Err(refused) = placed {
            let boards: usize = hosts.iter().map(|(inventory, _)| inventory.gpus.len()).sum();
            let never = count > T4[wanted].2 || boards == 0;
            let class = if hosts.is_empty() { Class::NoHost } else if never { Class::Impossible } else { Class::NoCapacity };
            prop_assert_eq!(refused.class, class);
            prop_assert!(refused.gpus.len() >= boards);
        }
    }
}
