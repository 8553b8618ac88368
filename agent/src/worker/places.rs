//! Where an allocation's partitions will be, settled before its first effect.

use std::collections::BTreeSet;

use events::outcome::Failure;
use events::{Code, GpuUuid};

use super::{Shared, WorkError};
use crate::operation::allocation::Allocation;
use crate::operation::choice::{Around, settle};
use crate::operation::place::Place;
use crate::operation::plan::refuse_before_start;
use crate::operation::sharing;
use crate::partitioner::ObservedGpu;

impl Shared {
    /// Everything that can be judged before the first effect, and where the partitions will be: what
    /// this operation's earlier life made (`ours`) stays where it is.
    pub(super) fn settle_on_places(
        &self,
        wanted: &mut Allocation,
        observed: &ObservedGpu,
        ours: &[Place],
    ) -> Result<Option<Failure>, WorkError> {
        if let Some(reason) = self.ledger.quarantined(&observed.uuid)? {
            return Ok(Some(Failure::new(
                Code::GpuQuarantined,
                format!("GPU {} is quarantined: {reason}", observed.pci),
            )));
        }
        if let Some(failure) = self.settle_around(wanted, observed, ours)? {
            return Ok(Some(failure));
        }
        let limits = wanted
            .limits()
            .map(|limits| self.limiter.check(limits, observed.numa_node));
        Ok(limits
            .and_then(Result::err)
            .map(|error| Failure::new(error.code, error.message)))
    }

    /// Where the partitions of an allocation will be that gives up those it has, on a GPU seen without
    /// them.
    pub(super) fn settle_beside(
        &self,
        wanted: &mut Allocation,
        observed: &ObservedGpu,
    ) -> Result<Option<Failure>, WorkError> {
        self.settle_around(wanted, observed, &[])
    }

    fn settle_around(
        &self,
        wanted: &mut Allocation,
        observed: &ObservedGpu,
        ours: &[Place],
    ) -> Result<Option<Failure>, WorkError> {
        let failed = |(code, text)| Some(Failure::new(code, text));
        let others = self.others(&observed.uuid, wanted)?;
        let around = Around {
            ours,
            spare: &self.spare(observed, wanted, &others)?,
            taken: &others.iter().flat_map(Allocation::places).collect(),
        };
        let (places, missing) = match settle(observed, wanted, &around) {
            Ok(found) => found,
            Err(fault) => return Ok(failed(fault)),
        };
        if let Some(seen) = places
            .iter()
            .filter_map(|place| observed.at(place))
            .find(|seen| !around.knows(&seen.place))
        {
            let text = format!("{} exists and was not made by this agent", seen.place);
            return Ok(failed((Code::DriverError, text)));
        }
        let refused = sharing::refuse(observed, wanted, &others)
            .or_else(|| refuse_before_start(observed, &wanted.profile, missing))
            .filter(|_| missing > 0);
        if let Some(fault) = refused {
            return Ok(failed(fault));
        }
        wanted.place(places);
        Ok(None)
    }

    /// The other allocations on a GPU.
    fn others(&self, gpu: &GpuUuid, wanted: &Allocation) -> Result<Vec<Allocation>, WorkError> {
        let mut allocations = self.ledger.allocations()?;
        allocations.retain(|other| other.gpu == *gpu && other.id != wanted.id);
        Ok(allocations)
    }

    /// Partitions of this GPU's layout that nobody has and that are of the profile wanted.
    fn spare(
        &self,
        observed: &ObservedGpu,
        wanted: &Allocation,
        others: &[Allocation],
    ) -> Result<Vec<Place>, WorkError> {
        let taken: BTreeSet<_> = others.iter().flat_map(Allocation::places).collect();
        let layout = self.ledger.gpu(&observed.uuid)?.layout;
        let is_spare = |place: &Place| {
            let seen = observed.at(place);
            !taken.contains(place)
                && seen
                    .is_some_and(|seen| seen.profile == wanted.profile && seen.holders.is_empty())
        };
        let spare = layout.into_iter().map(|planned| planned.place);
        Ok(spare.filter(is_spare).collect())
    }

    /// The places of an allocation that go when it goes: what other allocations share or the GPU's
    /// layout keeps stays.
    pub(super) fn places_to_free(&self, allocation: &Allocation) -> Result<Vec<Place>, WorkError> {
        let others = self.others(&allocation.gpu, allocation)?;
        let kept: BTreeSet<_> = others.iter().flat_map(Allocation::places).collect();
        let layout = self.ledger.gpu(&allocation.gpu)?.layout;
        let mut places = allocation.places();
        places.retain(|place| {
            !kept.contains(place) && !layout.iter().any(|planned| planned.place == *place)
        });
        Ok(places)
    }
}
