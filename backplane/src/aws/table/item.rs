//! Attributes of items, by type.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use super::fault::Fault;
use super::key::Key;

/// An item as DynamoDB has it.
pub(super) type Item = HashMap<String, AttributeValue>;

/// A string attribute.
pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// A number attribute.
pub(super) fn number(value: impl Display) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// An item under construction.
pub(super) struct Draft(Item);

impl Draft {
    pub(super) fn new(key: &Key) -> Self {
        let pk = ("pk".to_owned(), text(key.pk.clone()));
        let sk = ("sk".to_owned(), text(key.sk.clone()));
        Self(Item::from([pk, sk]))
    }

    pub(super) fn text(self, name: &str, value: impl Into<String>) -> Self {
        self.with(name, text(value))
    }

    pub(super) fn number(self, name: &str, value: impl Display) -> Self {
        self.with(name, number(value))
    }

    pub(super) fn bytes(self, name: &str, value: &[u8]) -> Self {
        self.with(name, AttributeValue::B(Blob::new(value)))
    }

    pub(super) fn texts(self, name: &str, values: impl Iterator<Item = String>) -> Self {
        self.with(name, AttributeValue::L(values.map(text).collect()))
    }

    pub(super) fn with(mut self, name: &str, value: AttributeValue) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }

    /// Goes on with `more` if there is something.
    pub(super) fn maybe<T>(self, value: Option<T>, more: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => more(self, value),
            None => self,
        }
    }

    pub(super) fn item(self) -> Item {
        self.0
    }
}

/// An item being read; `what` names it for people.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    item: &'a Item,
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub(super) fn of(item: &'a Item, what: &'static str) -> Self {
        Self { item, what }
    }

    fn fault(&self, attribute: &'static str) -> Fault {
        Fault::Stored {
            what: self.what,
            attribute,
        }
    }

    pub(super) fn value(&self, name: &'static str) -> Option<&'a AttributeValue> {
        self.item.get(name)
    }

    pub(super) fn text(&self, name: &'static str) -> Result<&'a str, Fault> {
        let value = self.value(name).and_then(|value| value.as_s().ok());
        value.map(String::as_str).ok_or_else(|| self.fault(name))
    }

    /// A string with a rule of its own.
    pub(super) fn parsed<T: FromStr>(&self, name: &'static str) -> Result<T, Fault> {
        self.text(name)?.parse().map_err(|_| self.fault(name))
    }

    pub(super) fn number<T: FromStr>(&self, name: &'static str) -> Result<T, Fault> {
        let value = self.value(name).and_then(|value| value.as_n().ok());
        let number = value.and_then(|number| number.parse().ok());
        number.ok_or_else(|| self.fault(name))
    }

    /// A number that may be absent, but not malformed.
    pub(super) fn maybe_number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, Fault> {
        self.value(name).map(|_| self.number(name)).transpose()
    }

    pub(super) fn maybe_text(&self, name: &'static str) -> Result<Option<&'a str>, Fault> {
        self.value(name).map(|_| self.text(name)).transpose()
    }

    pub(super) fn bytes<const N: usize>(&self, name: &'static str) -> Result<[u8; N], Fault> {
        let value = self.value(name).and_then(|value| value.as_b().ok());
        let bytes = value.and_then(|blob| blob.as_ref().try_into().ok());
        bytes.ok_or_else(|| self.fault(name))
    }

    /// A list of strings with a rule of their own.
    pub(super) fn texts<T: FromStr>(&self, name: &'static str) -> Result<Vec<T>, Fault> {
        let list = self.value(name).and_then(|value| value.as_l().ok());
        let list = list.ok_or_else(|| self.fault(name))?;
        let parsed = list.iter().map(|value| value.as_s().ok()?.parse().ok());
        parsed
            .collect::<Option<_>>()
            .ok_or_else(|| self.fault(name))
    }

    pub(super) fn map(
        &self,
        name: &'static str,
    ) -> Result<&'a HashMap<String, AttributeValue>, Fault> {
        let map = self.value(name).and_then(|value| value.as_m().ok());
        map.ok_or_else(|| self.fault(name))
    }
}
