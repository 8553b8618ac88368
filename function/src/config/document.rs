//! A TOML file being read: collects faults instead of stopping at the first, and knows which keys
//! were asked for, so that what nobody asked for is a fault too.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zeroize::Zeroizing;

use super::fault::{Fault, line_of};
use super::files::Files;
use super::vocabulary;

/// The file and its faults so far.
pub(super) struct Document<'a> {
    file: &'a Path,
    text: &'a str,
    files: &'a dyn Files,
    faults: RefCell<Vec<Fault>>,
}

impl<'a> Document<'a> {
    /// A file's text, not read yet.
    pub(super) fn new(file: &'a Path, text: &'a str, files: &'a dyn Files) -> Self {
        Self {
            file,
            text,
            files,
            faults: RefCell::default(),
        }
    }

    /// Notes a fault at a place of the file.
    pub(super) fn fault(&self, at: usize, message: impl Into<String>) {
        let line = Some(line_of(self.text, at));
        self.push(Fault {
            file: self.file.to_owned(),
            line,
            message: message.into(),
        });
    }

    /// Notes a fault, possibly of another file.
    pub(super) fn push(&self, fault: Fault) {
        self.faults.borrow_mut().push(fault);
    }

    /// All faults, in file order.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults.into_inner();
        faults.sort_by_key(|fault| (fault.file != self.file, fault.line));
        faults.dedup();
        faults
    }

    /// A path of the file, relative to the file's own folder.
    pub(super) fn resolve(&self, relative: &str) -> PathBuf {
        self.file
            .parent()
            .unwrap_or_else(|| Path::new("."))
            .join(relative)
    }

    /// What a file that is named here says.
    pub(super) fn text_of(&self, relative: &str) -> Result<String, String> {
        self.files.text(&self.resolve(relative))
    }

    /// The secret in a file that is named here.
    pub(super) fn private(&self, relative: &str) -> Result<Zeroizing<String>, String> {
        self.files.private(&self.resolve(relative))
    }
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct At<T> {
    /// The value.
    pub(super) value: T,
    /// Byte offset in the file.
    pub(super) at: usize,
}

/// One table being read.
pub(super) struct Section<'a> {
    document: &'a Document<'a>,
    table: &'a DeTable<'a>,
    /// As it stands in brackets; empty for the top.
    name: &'static str,
    /// Where it begins.
    pub(super) at: usize,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn top(document: &'a Document<'a>, table: &'a DeTable<'a>) -> Self {
        Self {
            document,
            table,
            name: "",
            at: 0,
            asked: RefCell::default(),
        }
    }

    fn get(&self, key: &'static str) -> Option<(&'a DeValue<'a>, usize)> {
        self.asked.borrow_mut().insert(key);
        self.table
            .get(key)
            .map(|value| (value.get_ref(), value.span().start))
    }

    fn typed<T>(
        &self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<At<T>> {
        let (value, at) = self.get(key)?;
        let read = read(value);
        if read.is_none() {
            self.document.fault(
                at,
                format!(
                    "{} must be {wanted}, not {}",
                    self.path(key),
                    article(value.type_str())
                ),
            );
        }
        read.map(|value| At { value, at })
    }

    /// How people call a key of this table.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Notes that a required key is missing, unless it is there with a fault of its own.
    pub(super) fn require<T>(&self, key: &'static str, found: Option<T>) -> Option<T> {
        if found.is_none() && self.table.get(key).is_none() {
            self.document
                .fault(self.at, format!("{} is missing", self.path(key)));
        }
        found
    }

    /// A string.
    pub(super) fn string(&self, key: &'static str) -> Option<At<&'a str>> {
        self.typed(key, "a string", |value| value.as_str())
    }

    /// A string that is the name of something, or another text with a rule.
    pub(super) fn parsed<T: FromStr<Err: std::fmt::Display>>(
        &self,
        key: &'static str,
    ) -> Option<At<T>> {
        let text = self.string(key)?;
        match text.value.parse() {
            Ok(value) => Some(At { value, at: text.at }),
            Err(error) => {
                self.document.fault(
                    text.at,
                    format!("{} {:?}: {error}", self.path(key), text.value),
                );
                None
            }
        }
    }

    /// An integer within a range.
    pub(super) fn integer(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Option<At<i64>> {
        let whole = |value: &'a DeValue<'a>| {
            let integer = value.as_integer()?;
            i64::from_str_radix(integer.as_str(), integer.radix()).ok()
        };
        let found = self.typed(key, "an integer", whole)?;
        if range.contains(&found.value) {
            return Some(found);
        }
        self.document.fault(
            found.at,
            format!(
                "{} must be from {} to {}",
                self.path(key),
                range.start(),
                range.end()
            ),
        );
        None
    }

    /// A list of strings, empty when absent.
    pub(super) fn strings(&self, key: &'static str) -> Vec<At<&'a str>> {
        let Some(list) = self.typed(key, "a list of strings", |value| value.as_array()) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for item in list.value {
            match item.get_ref().as_str() {
                Some(value) => found.push(At {
                    value,
                    at: item.span().start,
                }),
                None => self.document.fault(
                    item.span().start,
                    format!("{} must hold strings only", self.path(key)),
                ),
            }
        }
        found
    }

    /// A list of strings with a rule each, empty when absent.
    pub(super) fn parsed_list<T: FromStr<Err: std::fmt::Display>>(
        &self,
        key: &'static str,
    ) -> Vec<At<T>> {
        let mut found = Vec::new();
        for text in self.strings(key) {
            match text.value.parse() {
                Ok(value) => found.push(At { value, at: text.at }),
                Err(error) => self.document.fault(
                    text.at,
                    format!("{} {:?}: {error}", self.path(key), text.value),
                ),
            }
        }
        found
    }

    /// A table.
    pub(super) fn table(&self, key: &'static str) -> Option<Section<'a>> {
        let found = self.typed(key, "a table", |value| value.as_table())?;
        Some(self.section(key, found))
    }

    /// Every `[[key]]`.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Section<'a>> {
        let wanted = format!("a list: write [[{key}]]");
        let Some(list) = self.typed(key, &wanted, |value| value.as_array()) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for item in list.value {
            match item.get_ref().as_table() {
                Some(table) => found.push(self.section(
                    key,
                    At {
                        value: table,
                        at: item.span().start,
                    },
                )),
                None => self.document.fault(
                    item.span().start,
                    format!("{} must hold tables only", self.path(key)),
                ),
            }
        }
        found
    }

    fn section(&self, name: &'static str, table: At<&'a DeTable<'a>>) -> Section<'a> {
        Section {
            document: self.document,
            table: table.value,
            name,
            at: table.at,
            asked: RefCell::default(),
        }
    }

    /// Notes every key that nobody asked for, with where it belongs if that is easily told.
    pub(super) fn finish(self) {
        let asked = self.asked.into_inner();
        for (key, _) in self.table {
            let name: &str = key.get_ref();
            if !asked.contains(name) {
                let place = if self.name.is_empty() {
                    "at the top".to_owned()
                } else {
                    format!("in [{}]", self.name)
                };
                let hint = vocabulary::hint(self.name, name, &asked);
                self.document.fault(
                    key.span().start,
                    format!("unknown key {name} {place}{hint}"),
                );
            }
        }
    }
}

/// Parses a file, noting syntax faults.
pub(super) fn parse<'a>(document: &Document<'a>, text: &'a str) -> Spanned<DeTable<'a>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        document.fault(error.span().map_or(0, |span| span.start), error.message());
    }
    table
}

fn article(kind: &str) -> String {
    let an = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if an { "an" } else { "a" })
}
