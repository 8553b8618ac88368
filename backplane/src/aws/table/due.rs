//! What is due, by the index of that name. Claiming moves a row's next hour to the end of the lease, on
//! the item itself and only if it still is where the index had it.

use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::ReturnValue;
use events::OperationId;

use super::DynamoStore;
use super::fault::Fault;
use super::item::{Fields, Item, number, text};
use super::key::{DUE, DUE_CALLBACKS, DUE_OVERDUE, DUE_PARTITIONS, Key};
use super::rows;
use super::unit::{Tries, Unit};
use crate::lifecycle;
use crate::store::{Attempt, Due, DueCallback, DueKinds};

impl DynamoStore {
    /// Leases up to `max` rows until `now_ms + lease_ms`.
    pub(super) async fn claim(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>, Fault> {
        let until_ms = now_ms.saturating_add(lease_ms);
        let mut due = Vec::new();
        for partition in DUE_PARTITIONS {
            let rest = max.saturating_sub(due.len());
            let wanted = match partition {
                DUE_CALLBACKS => kinds.callbacks(),
                _ => kinds.operations(),
            };
            if rest == 0 || !wanted {
                continue;
            }
            for item in self.in_partition(partition, now_ms, rest).await? {
                if let Some(claimed) = self.lease(partition, &item, until_ms).await? {
                    due.push(read(partition, &claimed, now_ms)?);
                }
            }
        }
        Ok(due)
    }

    async fn in_partition(
        &self,
        partition: &str,
        now_ms: i64,
        max: usize,
    ) -> Result<Vec<Item>, Fault> {
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .index_name(DUE)
            .key_condition_expression("due_pk = :pk AND due_at <= :now")
            .expression_attribute_values(":pk", text(partition))
            .expression_attribute_values(":now", number(now_ms))
            .limit(i32::try_from(max).unwrap_or(i32::MAX));
        let found = query.send().await.map_err(|error| Fault::call(&error))?;
        Ok(found.items.unwrap_or_default())
    }

    /// Leases one row; `None` if it has moved since the index saw it.
    async fn lease(
        &self,
        partition: &str,
        item: &Item,
        until_ms: i64,
    ) -> Result<Option<Item>, Fault> {
        let fields = Fields::of(item, "due row");
        let seen: i64 = fields.number("due_at")?;
        let lease = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("pk", text(fields.text("pk")?))
            .key("sk", text(fields.text("sk")?))
            .update_expression("SET due_at = :until ADD ver :one")
            .condition_expression("due_pk = :pk AND due_at = :seen")
            .expression_attribute_values(":until", number(until_ms))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":pk", text(partition))
            .expression_attribute_values(":seen", number(seen))
            .return_values(ReturnValue::AllNew);
        match lease.send().await {
            Ok(leased) => Ok(leased.attributes),
            Err(error) => match error.as_service_error() {
                Some(
                    UpdateItemError::ConditionalCheckFailedException(_)
                    | UpdateItemError::TransactionConflictException(_),
                ) => Ok(None),
                _ => Err(Fault::call(&error)),
            },
        }
    }

    /// Records what came of a callback.
    pub(super) async fn attempted(
        &self,
        callback: &DueCallback,
        attempt: &Attempt,
        now_ms: i64,
    ) -> Result<(), Fault> {
        let key = Key::callback(&callback.endpoint, &callback.webhook_id);
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([key.clone()]).await?;
            let after = match unit.item(&key) {
                Some(item) => rows::attempted(item, attempt, now_ms)?,
                None => None,
            };
            let Some(after) = after else {
                return Ok(());
            };
            unit.put(key.clone(), after);
            if unit.commit(&mut tries).await? {
                return Ok(());
            }
        }
    }

    /// Records that an operation's command is in its host's queue.
    pub(super) async fn sent(&self, id: OperationId) -> Result<(), Fault> {
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([Key::operation(id)]).await?;
            let record = unit.operation(id)?.filter(|record| !record.sent);
            let Some(mut record) = record else {
                return Ok(());
            };
            record.sent = true;
            unit.put_operation(&record)?;
            if unit.commit(&mut tries).await? {
                return Ok(());
            }
        }
    }
}

fn read(partition: &str, item: &Item, now_ms: i64) -> Result<Due, Fault> {
    if partition == DUE_CALLBACKS {
        return Ok(Due::Callback(rows::read_callback(item)?));
    }
    let record = Box::new(rows::read_operation(item)?);
    let overdue = partition == DUE_OVERDUE || lifecycle::is_overdue(&record, now_ms);
    Ok(if overdue {
        Due::Overdue(record)
    } else {
        Due::Unsent(record)
    })
}
