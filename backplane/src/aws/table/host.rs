//! A host's items: its head (record, version, reservations), its inventory, and when it was heard.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::AttributeValue;
use events::inventory::Reservation;
use events::{HostInventory, HostName, OperationId};

use super::DynamoStore;
use super::fault::Fault;
use super::item::{Draft, Fields, Item, number, text};
use super::key::Key;
use super::unit::Unit;
use crate::document;
use crate::store::{HostRecord, HostView};

/// Reads of a host whose head and inventory were caught between two transactions.
const MAX_READS: u32 = 8;

/// A host's head.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) record: HostRecord,
    /// Changes with every change of inventory or reservations.
    pub(super) version: u64,
    /// The sequence of its inventory.
    pub(super) sequence: Option<i64>,
    /// Promised and not yet reported, by operation.
    pub(super) reserved: BTreeMap<String, Reservation>,
    /// Whether it is being removed.
    pub(super) cordoned: bool,
}

impl Head {
    pub(super) fn item(&self) -> Result<Item, Fault> {
        let mut reserved = std::collections::HashMap::new();
        for (operation, reservation) in &self.reserved {
            reserved.insert(operation.clone(), text(document::write(reservation)?));
        }
        Ok(Draft::new(&Key::head(&self.record.host))
            .text("pools", document::write(&self.record.pools)?)
            .text("public_key", self.record.public_key.clone())
            .number("version", self.version)
            .maybe(self.sequence, |draft, sequence| {
                draft.number("sequence", sequence)
            })
            .with("reserved", AttributeValue::M(reserved))
            .maybe(self.cordoned.then_some(1), |draft, yes| {
                draft.number("cordoned", yes)
            })
            .item())
    }

    pub(super) fn read(host: &HostName, item: &Item) -> Result<Self, Fault> {
        let fields = Fields::of(item, "host");
        let mut reserved = BTreeMap::new();
        for (operation, doc) in fields.map("reserved")? {
            let doc = doc.as_s().map_err(|_| Fault::Stored {
                what: "reservation",
                attribute: "reserved",
            })?;
            reserved.insert(operation.clone(), document::read("reservation", doc)?);
        }
        Ok(Self {
            record: HostRecord {
                host: host.clone(),
                pools: document::read("pools", fields.text("pools")?)?,
                public_key: fields.text("public_key")?.to_owned(),
            },
            version: fields.number("version")?,
            sequence: fields.maybe_number("sequence")?,
            reserved,
            cordoned: fields.value("cordoned").is_some(),
        })
    }
}

impl Unit<'_> {
    /// The head of a host that was loaded; `None` if it is not enrolled.
    pub(super) fn head(&self, host: &HostName) -> Result<Option<Head>, Fault> {
        let item = self.item(&Key::head(host));
        item.map(|item| Head::read(host, item)).transpose()
    }

    pub(super) fn put_head(&mut self, head: &Head) -> Result<(), Fault> {
        self.put(Key::head(&head.record.host), head.item()?);
        Ok(())
    }

    /// The inventory of a host that was loaded.
    pub(super) fn inventory(&self, host: &HostName) -> Result<Option<HostInventory>, Fault> {
        self.item(&Key::inventory(host))
            .map(read_inventory)
            .transpose()
    }

    /// Takes back what was promised to an operation, if anything was.
    pub(super) fn unreserve(
        &mut self,
        host: &HostName,
        operation: OperationId,
    ) -> Result<(), Fault> {
        let Some(mut head) = self.head(host)? else {
            return Ok(());
        };
        if head.reserved.remove(&operation.to_string()).is_some() {
            head.version += 1;
            self.put_head(&head)?;
        }
        Ok(())
    }
}

/// An inventory's item.
pub(super) fn inventory(inventory: &HostInventory, sequence: i64) -> Result<Item, Fault> {
    Ok(Draft::new(&Key::inventory(&inventory.host))
        .text("doc", document::write(inventory)?)
        .number("sequence", sequence)
        .item())
}

fn read_inventory(item: &Item) -> Result<HostInventory, Fault> {
    let fields = Fields::of(item, "inventory");
    Ok(document::read("inventory", fields.text("doc")?)?)
}

impl DynamoStore {
    /// Notes that a host was heard, unless something later is noted.
    pub(super) async fn hear(&self, host: &HostName, now_ms: i64) -> Result<(), Fault> {
        let key = Key::heard(host);
        let noted = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("pk", text(key.pk))
            .key("sk", text(key.sk))
            .update_expression("SET heard_at_ms = :now, ver = :one")
            .condition_expression("attribute_not_exists(heard_at_ms) OR heard_at_ms < :now")
            .expression_attribute_values(":now", number(now_ms))
            .expression_attribute_values(":one", number(1))
            .send()
            .await;
        match noted {
            Ok(_) => Ok(()),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(_)) => Ok(()),
                _ => Err(Fault::call(&error)),
            },
        }
    }

    /// Hosts as they are now, in the order asked for; those that are not enrolled are left out.
    pub(super) async fn views(&self, hosts: &[HostName]) -> Result<Vec<HostView>, Fault> {
        let mut seen = BTreeMap::new();
        let mut wanted: Vec<&HostName> = hosts.iter().collect();
        for _ in 0..MAX_READS {
            let keys = wanted.iter();
            let keys: Vec<_> = keys
                .flat_map(|host| [Key::head(host), Key::inventory(host), Key::heard(host)])
                .collect();
            let items = self.get(&keys).await?;
            let mut torn = Vec::new();
            for host in wanted {
                match view(host, &items)? {
                    Seen::Whole(view) => drop(seen.insert(host.clone(), *view)),
                    Seen::Torn => torn.push(host),
                    Seen::Absent => {}
                }
            }
            if torn.is_empty() {
                return Ok(hosts.iter().filter_map(|host| seen.remove(host)).collect());
            }
            wanted = torn;
        }
        Err(Fault::Contended(MAX_READS))
    }
}

enum Seen {
    Whole(Box<HostView>),
    /// Its head and its inventory are of different transactions.
    Torn,
    Absent,
}

fn view(host: &HostName, items: &BTreeMap<Key, Item>) -> Result<Seen, Fault> {
    let Some(item) = items.get(&Key::head(host)) else {
        return Ok(Seen::Absent);
    };
    let head = Head::read(host, item)?;
    let (inventory, sequence) = match items.get(&Key::inventory(host)) {
        None => (None, None),
        Some(item) => {
            let sequence: i64 = Fields::of(item, "inventory").number("sequence")?;
            (Some(read_inventory(item)?), Some(sequence))
        }
    };
    if head.sequence != sequence {
        return Ok(Seen::Torn);
    }
    let heard = items.get(&Key::heard(host));
    let heard_at_ms = heard.map(|item| Fields::of(item, "host").number("heard_at_ms"));
    Ok(Seen::Whole(Box::new(HostView {
        record: head.record,
        inventory,
        reserved: head.reserved.into_values().collect(),
        version: head.version,
        heard_at_ms: heard_at_ms.transpose()?,
        cordoned: head.cordoned,
    })))
}
