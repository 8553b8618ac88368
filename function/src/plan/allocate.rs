//! `allocate`: the key is already held, or a GPU is found for it.

use axum::http::StatusCode;
use backplane::store::{AllocationRecord, HostView, NewOperation};
use events::inventory::Reservation;
use events::operation::{Allocate, HostTarget, Mode, Problem as FieldProblem, Target};
use events::{AllocationId, GpuSelector, GpuUuid, HostName, Limits, Operation, ProfileName};
use placement::{Candidate, Class, Placement, Unplaceable, place, smallest_profile};

use super::{Asked, Planner, denied, host_route, invalid, settled};
use crate::problem::Problem;

/// GPUs named in one refusal; a fleet has more than anybody reads.
const MAX_REASONS: usize = 32;

impl Planner<'_> {
    /// Plans one `allocate`.
    pub(super) async fn allocate(
        &mut self,
        one: &Asked,
        allocate: &Allocate,
    ) -> Result<NewOperation, Problem> {
        let id = AllocationId::of(&self.caller.principal.tenant, &allocate.key);
        if let Some(held) = self.present(id).await? {
            return self.allocate_again(one, allocate, &held);
        }
        let candidates = self.candidates(one, allocate)?;
        if let Some(ending) = settled::mode_not_executed(allocate) {
            return Ok(self.settle(one, ending));
        }
        let placement = place_on(&candidates, &self.promised, &self.located(allocate))
            .map_err(|refused| unplaceable(one, refused))?;
        let view = candidates
            .into_iter()
            .find(|view| view.record.host == placement.host);
        let view = view.ok_or_else(|| invalid(one, "/target/host", "is not an enrolled host"))?;
        let reservation = Reservation {
            allocation: id,
            gpu: placement.gpu.clone(),
            profile: placement.profile.clone(),
            count: allocate.count,
        };
        let route = host_route(view, placement.gpu.to_string(), Some(reservation.clone()));
        let planned = self.new_operation(one, placed(allocate, &placement), route);
        self.promised.push(reservation);
        Ok(planned)
    }

    /// The same key again: the same spec goes to the same place and reserves nothing more; another
    /// spec is refused.
    fn allocate_again(
        &self,
        one: &Asked,
        allocate: &Allocate,
        held: &AllocationRecord,
    ) -> Result<NewOperation, Problem> {
        let view = self.host_of(held)?;
        self.permit(&one.operation, Some(view))?;
        let Operation::Allocate(spec) = &held.spec else {
            return Ok(self.settle(one, settled::use_resize("spec")));
        };
        if let Some(difference) = difference(allocate, spec, held, view) {
            return Ok(self.settle(one, settled::use_resize(difference)));
        }
        let profile = spec.profile.clone().or_else(|| {
            held.allocated
                .as_ref()
                .map(|allocated| allocated.profile.clone())
        });
        let profile = profile
            .ok_or_else(|| invalid(one, "/key", "is held by an allocation without a profile"))?;
        let placement = Placement {
            host: held.host.clone(),
            gpu: held.gpu.clone(),
            profile,
            mode: spec.mode,
        };
        let route = host_route(view, held.gpu.to_string(), None);
        Ok(self.new_operation(one, placed(allocate, &placement), route))
    }

    /// With the source's target where none is given.
    fn located(&self, allocate: &Allocate) -> Allocate {
        let mut located = allocate.clone();
        located.target = located
            .target
            .or_else(|| self.caller.default_target.clone());
        located
    }

    /// Hosts that the target names and policy permits, by name.
    fn candidates(&self, one: &Asked, allocate: &Allocate) -> Result<Vec<&HostView>, Problem> {
        let target = self.located(allocate).target;
        let target = target.ok_or_else(|| {
            invalid(
                one,
                "/target",
                "is missing, and the source has no default_target",
            )
        })?;
        match &target {
            Target::Host(target) => {
                let view = self.host(one, &target.host)?;
                self.permit(&one.operation, Some(view))?;
                if view.cordoned {
                    return Err(invalid(
                        one,
                        "/target/host",
                        "is being removed and takes nothing new",
                    ));
                }
                Ok(vec![view])
            }
            Target::Pool(target) => {
                let of_pool =
                    |view: &&HostView| view.record.pools.contains(&target.pool) && !view.cordoned;
                let members: Vec<_> = self.hosts.iter().filter(of_pool).collect();
                if members.is_empty() {
                    return Err(invalid(one, "/target/pool", "has no enrolled host"));
                }
                let permitted: Vec<_> = members
                    .into_iter()
                    .filter(|view| self.is_permitted(&one.operation, Some(view)))
                    .collect();
                if permitted.is_empty() {
                    Err(denied(self.caller, &one.operation))
                } else {
                    Ok(permitted)
                }
            }
        }
    }
}

fn place_on(
    views: &[&HostView],
    promised: &[Reservation],
    allocate: &Allocate,
) -> Result<Placement, Unplaceable> {
    // Promises name their GPU, so those of other hosts do no harm here.
    let reserved: Vec<Vec<Reservation>> = views
        .iter()
        .map(|view| view.reserved.iter().chain(promised).cloned().collect())
        .collect();
    let candidates: Vec<_> = views
        .iter()
        .zip(&reserved)
        .filter_map(|(view, reserved)| {
            view.inventory.as_ref().map(|inventory| Candidate {
                inventory,
                reserved,
            })
        })
        .collect();
    place(allocate, &candidates)
}

/// The operation with everything decided, as the host executes it.
fn placed(allocate: &Allocate, placement: &Placement) -> Operation {
    let target = HostTarget {
        host: placement.host.clone(),
        gpu: Some(GpuSelector::Uuid(placement.gpu.clone())),
    };
    Operation::Allocate(Allocate {
        target: Some(Target::Host(target)),
        profile: Some(placement.profile.clone()),
        memory_mib: None,
        mode: placement.mode,
        ..allocate.clone()
    })
}

/// In what a repeated `allocate` differs from what is held; what it leaves open does not differ.
fn difference(
    asked: &Allocate,
    spec: &Allocate,
    held: &AllocationRecord,
    view: &HostView,
) -> Option<&'static str> {
    let target = asked.target.as_ref();
    [
        (asked.count != spec.count, "count"),
        (limits(asked) != limits(spec), "limits"),
        (asked.ttl_s != spec.ttl_s, "ttl_s"),
        (asked.consumer != spec.consumer, "consumer"),
        (
            asked.compute_percent != spec.compute_percent,
            "compute_percent",
        ),
        (asked.mode != Mode::Any && asked.mode != spec.mode, "mode"),
        (
            !fits_profile(asked, spec.profile.as_ref(), &held.gpu, view),
            "profile",
        ),
        (
            target.is_some_and(|target| !is_at(target, &held.host, &held.gpu, view)),
            "target",
        ),
    ]
    .into_iter()
    .find_map(|(differs, what)| differs.then_some(what))
}

/// No limits, and a list of none, are the same.
fn limits(allocate: &Allocate) -> Option<&Limits> {
    allocate
        .limits
        .as_ref()
        .filter(|limits| **limits != Limits::default())
}

fn fits_profile(
    asked: &Allocate,
    held: Option<&ProfileName>,
    gpu: &GpuUuid,
    view: &HostView,
) -> bool {
    match (&asked.profile, asked.memory_mib) {
        (Some(profile), _) => Some(profile) == held,
        (None, Some(memory_mib)) => {
            let gpus = view.inventory.iter().flat_map(|inventory| &inventory.gpus);
            let gpu = gpus.into_iter().find(|other| other.uuid == *gpu);
            let smallest = gpu.and_then(|gpu| smallest_profile(gpu, memory_mib));
            smallest.map(|smallest| &smallest.profile) == held
        }
        (None, None) => true,
    }
}

/// Whether a target that was given leads where the allocation is.
fn is_at(target: &Target, host: &HostName, gpu: &GpuUuid, view: &HostView) -> bool {
    match target {
        Target::Pool(target) => view.record.pools.contains(&target.pool),
        Target::Host(target) => {
            let gpus = view.inventory.iter().flat_map(|inventory| &inventory.gpus);
            let here = gpus.into_iter().find(|other| other.uuid == *gpu);
            let selected = match (&target.gpu, here) {
                (None, _) => true,
                (Some(GpuSelector::Uuid(uuid)), _) => uuid == gpu,
                (Some(GpuSelector::Pci(pci)), Some(here)) => here.pci == *pci,
                (Some(GpuSelector::Index(index)), Some(here)) => here.index == *index,
                (Some(_), None) => false,
            };
            target.host == *host && selected
        }
    }
}

fn unplaceable(one: &Asked, refused: Unplaceable) -> Problem {
    let reason = |reason: String| FieldProblem {
        pointer: one.pointer.clone(),
        detail: reason,
    };
    let errors: Vec<_> = refused
        .gpus
        .iter()
        .take(MAX_REASONS)
        .map(|gpu| reason(gpu.to_string()))
        .collect();
    match refused.class {
        Class::NoHost => Problem::unavailable(
            "no-host",
            "The target's hosts have not reported what they have yet; send it again",
        ),
        Class::NoCapacity => {
            let detail =
                "There is no room now; send it again, unchanged, when something was released";
            Problem::new(StatusCode::CONFLICT, "no_capacity", "No capacity", detail)
                .with_errors(errors)
                .retry_after_s(30)
        }
        Class::Impossible => {
            let valid: Vec<_> = refused
                .valid_profiles
                .iter()
                .map(ProfileName::as_str)
                .collect();
            let detail = if valid.is_empty() {
                "The request never fits on its target".to_owned()
            } else {
                format!(
                    "The request never fits on its target, whose profiles are {}",
                    valid.join(", ")
                )
            };
            Problem::unprocessable("unplaceable", detail, errors)
        }
    }
}
