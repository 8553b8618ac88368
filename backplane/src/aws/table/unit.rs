//! A unit of work: items read consistently, decided on, and written in one transaction that holds only
//! if none of those written has changed since. Whoever finds that they have, starts over.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes, Put, TransactWriteItem};
use uuid::Uuid;

use super::DynamoStore;
use super::fault::Fault;
use super::item::{Fields, Item, number, text};
use super::key::Key;

/// DynamoDB's bound on one transaction, and on one batch of reads.
pub(super) const MAX_ITEMS: usize = 100;
/// Attempts at one unit of work; hosts are contended by their own results only.
const MAX_TRIES: u32 = 16;
/// Pauses between attempts: the first doubles up to the last, each shortened by up to its half.
const PAUSES_MS: [u64; 2] = [8, 400];
/// Rounds of asking for what a batch left out, which it does when it is throttled.
const MAX_ROUNDS: u32 = 8;

/// Items of one unit of work.
pub(super) struct Unit<'a> {
    store: &'a DynamoStore,
    slots: BTreeMap<Key, Slot>,
}

/// One item: as read, then as it is to be.
#[derive(Default)]
struct Slot {
    version: Option<u64>,
    item: Option<Item>,
    changed: bool,
}

/// Attempts made so far.
#[derive(Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// Whether this is not the first.
    pub(super) fn were_made(&self) -> bool {
        self.0 > 0
    }

    /// Waits before the next attempt.
    async fn again(&mut self) -> Result<(), Fault> {
        self.0 += 1;
        if self.0 >= MAX_TRIES {
            return Err(Fault::Contended(self.0));
        }
        pause(self.0).await;
        Ok(())
    }
}

async fn pause(round: u32) {
    let [first, last] = PAUSES_MS;
    let full = first.saturating_mul(1 << round.min(10)).min(last);
    // A UUIDv7 ends in random bits.
    let random = u64::try_from(Uuid::now_v7().as_u128() % 1024).expect("below 1024");
    let jittered = full - full / 2 * random / 1024;
    tokio::time::sleep(Duration::from_millis(jittered)).await;
}

impl<'a> Unit<'a> {
    pub(super) fn new(store: &'a DynamoStore) -> Self {
        Self {
            store,
            slots: BTreeMap::new(),
        }
    }

    /// Reads items, unless they were read before in this unit.
    pub(super) async fn load(&mut self, keys: impl IntoIterator<Item = Key>) -> Result<(), Fault> {
        let mut wanted: Vec<_> = keys.into_iter().collect();
        wanted.retain(|key| !self.slots.contains_key(key));
        wanted.sort();
        wanted.dedup();
        let mut found = self.store.get(&wanted).await?;
        for key in wanted {
            let item = found.remove(&key);
            let version = match &item {
                Some(item) => Some(Fields::of(item, "item").number("ver")?),
                None => None,
            };
            let slot = Slot {
                version,
                item,
                changed: false,
            };
            self.slots.insert(key, slot);
        }
        Ok(())
    }

    /// An item that was loaded, as it is to be; `None` if there is none.
    pub(super) fn item(&self, key: &Key) -> Option<&Item> {
        debug_assert!(self.slots.contains_key(key), "{key:?} was not loaded");
        self.slots.get(key)?.item.as_ref()
    }

    /// Replaces an item that was loaded.
    pub(super) fn put(&mut self, key: Key, item: Item) {
        debug_assert!(self.slots.contains_key(&key), "{key:?} was not loaded");
        let slot = self.slots.entry(key).or_default();
        slot.item = Some(item);
        slot.changed = true;
    }

    /// Items that are to be written.
    pub(super) fn changes(&self) -> usize {
        self.slots.values().filter(|slot| slot.changed).count()
    }

    /// Writes what changed, all or nothing. Whether it held: if not, start over with what is there now.
    pub(super) async fn commit(self, tries: &mut Tries) -> Result<bool, Fault> {
        let table = &self.store.table;
        let puts = self.slots.into_values().filter_map(|slot| slot.put(table));
        let mut puts: Vec<Put> = puts.collect();
        let held = match puts.len() {
            0 => true,
            1 => self.store.put_one(puts.remove(0)).await?,
            _ => self.store.put_all(puts).await?,
        };
        if !held {
            tries.again().await?;
        }
        Ok(held)
    }
}

impl Slot {
    fn put(self, table: &str) -> Option<Put> {
        let mut item = self.item.filter(|_| self.changed)?;
        let next = self.version.map_or(1, |version| version + 1);
        item.insert("ver".to_owned(), number(next));
        let put = Put::builder().table_name(table).set_item(Some(item));
        let put = match self.version {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(version) => put
                .condition_expression("ver = :ver")
                .expression_attribute_values(":ver", number(version)),
        };
        Some(put.build().expect("table and item are set"))
    }
}

impl DynamoStore {
    /// Reads items by their keys, consistently.
    pub(super) async fn get(&self, keys: &[Key]) -> Result<BTreeMap<Key, Item>, Fault> {
        let mut found = BTreeMap::new();
        for batch in keys.chunks(MAX_ITEMS) {
            let mut left: Vec<_> = batch.iter().map(attributes).collect();
            let mut round = 0;
            while !left.is_empty() {
                if round == MAX_ROUNDS {
                    return Err(Fault::Call("reads are throttled".to_owned()));
                }
                if round > 0 {
                    pause(round).await;
                }
                round += 1;
                left = self.get_batch(left, &mut found).await?;
            }
        }
        Ok(found)
    }

    /// One batch; returns the keys that it left out.
    async fn get_batch(
        &self,
        keys: Vec<HashMap<String, AttributeValue>>,
        found: &mut BTreeMap<Key, Item>,
    ) -> Result<Vec<HashMap<String, AttributeValue>>, Fault> {
        let wanted = KeysAndAttributes::builder()
            .set_keys(Some(keys))
            .consistent_read(true)
            .build()
            .expect("keys are set");
        let get = self
            .client
            .batch_get_item()
            .request_items(&self.table, wanted);
        let mut got = get.send().await.map_err(|error| Fault::call(&error))?;
        let items = got
            .responses
            .as_mut()
            .and_then(|tables| tables.remove(&self.table));
        for item in items.unwrap_or_default() {
            let fields = Fields::of(&item, "item");
            let key = Key {
                pk: fields.text("pk")?.to_owned(),
                sk: fields.text("sk")?.to_owned(),
            };
            found.insert(key, item);
        }
        let left = got
            .unprocessed_keys
            .as_mut()
            .and_then(|tables| tables.remove(&self.table));
        Ok(left.map(|left| left.keys).unwrap_or_default())
    }

    async fn put_one(&self, put: Put) -> Result<bool, Fault> {
        let call = self
            .client
            .put_item()
            .table_name(put.table_name)
            .set_item(Some(put.item))
            .set_condition_expression(put.condition_expression)
            .set_expression_attribute_values(put.expression_attribute_values);
        match call.send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(
                    PutItemError::ConditionalCheckFailedException(_)
                    | PutItemError::TransactionConflictException(_),
                ) => Ok(false),
                _ => Err(Fault::call(&error)),
            },
        }
    }

    async fn put_all(&self, puts: Vec<Put>) -> Result<bool, Fault> {
        let items = puts
            .into_iter()
            .map(|put| TransactWriteItem::builder().put(put).build());
        self.write_all(items.collect()).await
    }

    /// Writes all or nothing. Whether the conditions held.
    pub(super) async fn write_all(&self, items: Vec<TransactWriteItem>) -> Result<bool, Fault> {
        // The SDK gives each call a token: what it sends again after a lost answer is done once.
        let call = self
            .client
            .transact_write_items()
            .set_transact_items(Some(items));
        match call.send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(canceled))
                    if is_conflict(canceled.cancellation_reasons()) =>
                {
                    Ok(false)
                }
                Some(TransactWriteItemsError::TransactionInProgressException(_)) => Ok(false),
                _ => Err(Fault::call(&error)),
            },
        }
    }
}

/// Whether a transaction was cancelled only because of what others did, or of throttling: then it may
/// hold the next time.
fn is_conflict(reasons: &[aws_sdk_dynamodb::types::CancellationReason]) -> bool {
    const PASSING: [&str; 5] = [
        "None",
        "ConditionalCheckFailed",
        "TransactionConflict",
        "ProvisionedThroughputExceeded",
        "ThrottlingError",
    ];
    let passes = |code: Option<&str>| code.is_none_or(|code| PASSING.contains(&code));
    !reasons.is_empty() && reasons.iter().all(|reason| passes(reason.code()))
}

fn attributes(key: &Key) -> HashMap<String, AttributeValue> {
    HashMap::from([
        ("pk".to_owned(), text(key.pk.clone())),
        ("sk".to_owned(), text(key.sk.clone())),
    ])
}
