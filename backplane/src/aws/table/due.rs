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
            let wanted = match partition {
                DUE_CALLBACKS => kinds.callbacks(),
                _ => kinds.operations(),
            };
            if due.len() >= max || !wanted {
                continue;
            }
            self.claim_of(partition, now_ms, until_ms, max, &mut due)
                .await?;
        }
        Ok(due)
    }

    /// Leases rows of one partition until there are `max` in all. A page of the index may end early, at
    /// 1 MB, and others may lease rows of it meanwhile: then there may be more.
    async fn claim_of(
        &self,
        partition: &str,
        now_ms: i64,
        until_ms: i64,
        max: usize,
        due: &mut Vec<Due>,
    ) -> Result<(), Fault> {
        let mut after = None;
        while due.len() < max {
            let page = self.page_of(partition, now_ms, max - due.len(), after);
            let (items, next) = match page.await {
                Ok(page) => page,
                Err(error) => return unless_some(due, error),
            };
            for item in items {
                match self.lease(partition, &item, until_ms).await {
                    Ok(None) => {}
                    Ok(Some(claimed)) => match read(partition, &claimed, now_ms) {
                        Ok(claimed) => due.push(claimed),
                        // A later program's, or damaged: it must not hold up the others.
                        Err(error) => tell_unreadable(&item, &error),
                    },
                    Err(error) => return unless_some(due, error),
                }
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn page_of(
        &self,
        partition: &str,
        now_ms: i64,
        max: usize,
        after: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), Fault> {
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .index_name(DUE)
            .key_condition_expression("due_pk = :pk AND due_at <= :now")
            .expression_attribute_values(":pk", text(partition))
            .expression_attribute_values(":now", number(now_ms))
            .limit(i32::try_from(max).unwrap_or(i32::MAX))
            .set_exclusive_start_key(after);
        let found = query.send().await.map_err(|error| Fault::call(&error))?;
        Ok((found.items.unwrap_or_default(), found.last_evaluated_key))
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

/// What is leased already is to be done, not to wait for the end of its lease.
fn unless_some(due: &[Due], error: Fault) -> Result<(), Fault> {
    if due.is_empty() {
        return Err(error);
    }
    tracing::warn!(%error, "not everything that is due can be claimed now");
    Ok(())
}

/// Told each time that its lease ends: only a person, or a later program, can do something about it.
fn tell_unreadable(item: &Item, error: &Fault) {
    let pk = Fields::of(item, "due row").text("pk").unwrap_or_default();
    tracing::error!(alert = "unreadable", row = pk, %error, "a due row cannot be read; it is left alone");
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
