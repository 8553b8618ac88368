//! What becomes of each operation of a delivery: policy, then where it goes, or its outcome at once.
//!
//! Nothing here changes anything. The plan is handed to `Store::accept`, which refuses it when a host
//! changed meanwhile; then it is made again from a fresh look.

mod allocate;

mod settled;

use backplane::store::{AllocationRecord, AllocationState, HostView, NewOperation, Route};
use events::command::DEFAULT_EXPIRY_S;
use events::inventory::Reservation;
use events::operation::{HostTarget, Partition, Problem as FieldProblem};
use events::{AllocationId, GpuSelector, GpuUuid, HostName, Operation, OperationId, PoolName};

use crate::App;
use crate::config::Caller;
use crate::policy::Question;
use crate::problem::Problem;
use axum::http::StatusCode;

/// One operation as it was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Its id, made before anything else, so that a second plan keeps it.
    pub(crate) id: OperationId,
    /// What for.
    pub(crate) operation: Operation,
    /// Where it stands in the body; prefix of the pointers of its problems.
    pub(crate) pointer: String,
}

/// Plans one delivery.
pub(crate) struct Planner<'a> {
    app: &'a App,
    caller: &'a Caller,
    hosts: Vec<HostView>,
    /// Promised to earlier operations of this delivery.
    promised: Vec<Reservation>,
    traceparent: Option<String>,
}

impl<'a> Planner<'a> {
    /// Looks at the hosts as they are now.
    pub(crate) async fn look(
        app: &'a App,
        caller: &'a Caller,
        traceparent: Option<String>,
    ) -> Result<Self, Problem> {
        let hosts = app
            .reads
            .hosts()
            .await
            .map_err(|error| Problem::store_unavailable(&error))?;
        Ok(Self {
            app,
            caller,
            hosts,
            promised: Vec::new(),
            traceparent,
        })
    }

    /// Plans every operation, or refuses them all.
    pub(crate) async fn plan(mut self, asked: &[Asked]) -> Result<Vec<NewOperation>, Problem> {
        self.refuse_repetition(asked)?;
        let mut planned = Vec::with_capacity(asked.len());
        for one in asked {
            planned.push(self.plan_one(one).await?);
        }
        Ok(planned)
    }

    /// Two operations on one allocation in one delivery have no order between them that could be
    /// promised: they are accepted together, and the second would be planned on a state that the
    /// first is about to change.
    fn refuse_repetition(&self, asked: &[Asked]) -> Result<(), Problem> {
        let allocation = |one: &Asked| one.operation.allocation(&self.caller.principal.tenant);
        for (position, one) in asked.iter().enumerate() {
            let earlier =
                |other: &Asked| allocation(other).is_some() && allocation(other) == allocation(one);
            if asked[..position].iter().any(earlier) {
                let detail = "names the same allocation as an earlier operation of this delivery; send them one after the other";
                return Err(invalid(one, "/key", detail));
            }
        }
        Ok(())
    }

    async fn plan_one(&mut self, one: &Asked) -> Result<NewOperation, Problem> {
        if let Some(ending) = settled::not_executed(&one.operation) {
            return Ok(self.settle(one, ending));
        }
        match &one.operation {
            Operation::Allocate(allocate) => self.allocate(one, allocate).await,
            Operation::Inspect(inspect) => {
                let view = self.host(one, &inspect.target.host)?;
                self.permit(&one.operation, Some(view))?;
                let route = host_route(view, view.record.host.to_string(), None);
                Ok(self.new_operation(one, one.operation.clone(), route))
            }
            Operation::Partition(partition) => self.partition(one, partition),
            _ => self.on_existing(one).await,
        }
    }

    /// `partition`: to the GPU's own worker, which keeps order with everything else on it.
    fn partition(&self, one: &Asked, partition: &Partition) -> Result<NewOperation, Problem> {
        let view = self.host(one, &partition.target.host)?;
        self.permit(&one.operation, Some(view))?;
        if view.cordoned {
            let detail = "is being removed and takes nothing new";
            return Err(invalid(one, "/target/host", detail));
        }
        let selector = partition.target.gpu.as_ref();
        let gpu = selector.and_then(|selector| gpu_of(view, selector));
        let gpu = gpu.ok_or_else(|| invalid(one, "/target/gpu", "is no GPU of the host"))?;
        let target = HostTarget {
            gpu: Some(GpuSelector::Uuid(gpu.clone())),
            ..partition.target.clone()
        };
        let operation = Operation::Partition(Partition {
            target,
            ..partition.clone()
        });
        Ok(self.new_operation(one, operation, host_route(view, gpu.to_string(), None)))
    }

    /// `renew` and `release`: they follow their allocation to its host and GPU.
    async fn on_existing(&mut self, one: &Asked) -> Result<NewOperation, Problem> {
        let id = one.operation.allocation(&self.caller.principal.tenant);
        let id = id.ok_or_else(|| invalid(one, "/key", "names no allocation"))?;
        let Some(allocation) = self.present(id).await? else {
            self.permit(&one.operation, None)?;
            return Ok(self.settle(one, settled::on_unknown(&one.operation, id)));
        };
        let view = self.host_of(&allocation)?;
        self.permit(&one.operation, Some(view))?;
        let route = host_route(view, allocation.gpu.to_string(), None);
        Ok(self.new_operation(one, one.operation.clone(), route))
    }

    /// An allocation that is pending or live.
    async fn present(&self, id: AllocationId) -> Result<Option<AllocationRecord>, Problem> {
        let found = self
            .app
            .reads
            .allocation(&self.caller.principal.tenant, id)
            .await;
        let found = found.map_err(|error| Problem::store_unavailable(&error))?;
        Ok(found.filter(|allocation| allocation.state != AllocationState::Ended))
    }

    fn host(&self, one: &Asked, host: &HostName) -> Result<&HostView, Problem> {
        let found = self.hosts.iter().find(|view| view.record.host == *host);
        found.ok_or_else(|| invalid(one, "/target/host", "is not an enrolled host"))
    }

    fn host_of(&self, allocation: &AllocationRecord) -> Result<&HostView, Problem> {
        let found = self
            .hosts
            .iter()
            .find(|view| view.record.host == allocation.host);
        found.ok_or_else(|| {
            let detail = format!(
                "host {} of this allocation is not enrolled any more",
                allocation.host
            );
            Problem::unavailable("host-not-enrolled", detail)
        })
    }

    /// Asks the policy; a denial is the caller's answer.
    fn permit(&self, operation: &Operation, view: Option<&HostView>) -> Result<(), Problem> {
        if self.is_permitted(operation, view) {
            Ok(())
        } else {
            Err(denied(self.caller, operation))
        }
    }

    fn is_permitted(&self, operation: &Operation, view: Option<&HostView>) -> bool {
        let pools: &[PoolName] = view.map_or(&[], |view| &view.record.pools);
        let host = view.map(|view| &view.record.host);
        let question = Question {
            principal: &self.caller.principal,
            operation,
            host,
            pools,
        };
        let decision = self.app.config.policy.decide(&question);
        tracing::info!(
            policy.permitted = decision.permitted, policy.ids = ?decision.policies, source.name = %self.caller.name,
            operation.op = operation.name(), host.name = host.map(tracing::field::display), "policy decided"
        );
        decision.permitted
    }

    fn settle(&self, one: &Asked, ending: backplane::store::Ending) -> NewOperation {
        self.new_operation(one, one.operation.clone(), Route::Settled(ending))
    }

    fn new_operation(&self, one: &Asked, operation: Operation, route: Route) -> NewOperation {
        NewOperation {
            id: one.id,
            operation,
            route,
            callbacks: self.caller.callbacks.clone(),
            traceparent: self.traceparent.clone(),
            expires_at_s: self.app.clock.now_s() + DEFAULT_EXPIRY_S,
        }
    }
}

/// The GPU that a selector means on a host, as the host last told.
fn gpu_of<'a>(view: &'a HostView, selector: &GpuSelector) -> Option<&'a GpuUuid> {
    let mut gpus = view.inventory.iter().flat_map(|inventory| &inventory.gpus);
    let found = gpus.find(|gpu| match selector {
        GpuSelector::Uuid(uuid) => gpu.uuid == *uuid,
        GpuSelector::Pci(pci) => gpu.pci == *pci,
        GpuSelector::Index(index) => gpu.index == *index,
    });
    found.map(|gpu| &gpu.uuid)
}

fn host_route(view: &HostView, group: String, reservation: Option<Reservation>) -> Route {
    Route::Host {
        host: view.record.host.clone(),
        group,
        reservation,
        host_version: view.version,
    }
}

/// 422 about one field of one operation.
fn invalid(one: &Asked, pointer: &str, detail: &str) -> Problem {
    let pointer = format!("{}{pointer}", one.pointer);
    let errors = vec![FieldProblem {
        pointer,
        detail: detail.to_owned(),
    }];
    Problem::unprocessable(
        "invalid-operation",
        "The operation names something that does not exist or does not fit",
        errors,
    )
}

fn denied(caller: &Caller, operation: &Operation) -> Problem {
    let detail = format!(
        "No policy permits {} to {} this; its roles decide",
        caller.name,
        operation.name()
    );
    Problem::new(
        StatusCode::FORBIDDEN,
        "not-permitted",
        "Not permitted",
        detail,
    )
}
