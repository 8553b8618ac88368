//! Strict JSON for bytes from strangers: one object at top, no duplicate keys, bounded in depth,
//! sizes and numbers (webhook facts §10, rows 32 to 45).
//!
//! `serde_json::Value` alone keeps the last of duplicate keys silently and turns 2^64 into a float;
//! both would let two readers of one signed body disagree.

use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};

/// Levels of nesting; the contract needs 5.
const MAX_DEPTH: usize = 32;
/// Bytes in one object key.
const MAX_KEY: usize = 256;
/// Bytes in one string.
const MAX_STRING: usize = 8192;
/// Entries in one object or array.
const MAX_ITEMS: usize = 1024;

/// Why bytes are not acceptable JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Nothing but white space.
    #[error("the body is empty")]
    Empty,
    /// The first value is not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// A cap of this module; the text names it and no content.
    #[error("{0}")]
    Limit(&'static str),
    /// Syntax, UTF-8 or number range, at a place.
    #[error("malformed JSON at line {line} column {column}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// Column, from 0.
        column: usize,
    },
}

/// Parses a body.
///
/// # Errors
/// See [`JsonError`]; no variant carries any of the body's text.
pub fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, JsonError> {
    match bytes
        .iter()
        .find(|b| !matches!(b, b' ' | b'\t' | b'\r' | b'\n'))
    {
        None => return Err(JsonError::Empty),
        Some(b'{') => {}
        // A byte order mark or another encoding is malformed, not merely of the wrong type.
        Some(b'[' | b'"' | b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => {
            let whole = serde_json::from_slice::<de::IgnoredAny>(bytes);
            return Err(whole.map_or_else(|error| malformed(&error), |_| JsonError::NotAnObject));
        }
        Some(_) => return Err(JsonError::Malformed { line: 1, column: 0 }),
    }
    let limit = RefCell::new(None);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Strict {
        depth: MAX_DEPTH,
        limit: &limit,
    };
    let value = seed
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    match (value, limit.into_inner()) {
        (_, Some(text)) => Err(JsonError::Limit(text)),
        (Ok(Value::Object(map)), None) => Ok(map),
        (Ok(_), None) => Err(JsonError::NotAnObject),
        (Err(error), None) => Err(malformed(&error)),
    }
}

fn malformed(error: &serde_json::Error) -> JsonError {
    JsonError::Malformed {
        line: error.line(),
        column: error.column(),
    }
}

/// Deserialises a nested struct from an object only: derived structs also take arrays, by position.
///
/// # Errors
/// The value is not an object, or not a `T`.
pub(crate) fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    read_object(Value::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// As [`object`], for an optional field; `null` means absent.
///
/// # Errors
/// The value is neither `null` nor an object that is a `T`.
pub(crate) fn optional_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    if value.is_null() {
        return Ok(None);
    }
    read_object(value).map(Some).map_err(de::Error::custom)
}

fn read_object<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    if !value.is_object() {
        return Err("expected a JSON object".to_owned());
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

struct Strict<'a> {
    depth: usize,
    limit: &'a RefCell<Option<&'static str>>,
}

impl Strict<'_> {
    fn refuse<E: de::Error>(&self, text: &'static str) -> E {
        *self.limit.borrow_mut() = Some(text);
        E::custom(text)
    }

    fn inner<E: de::Error>(&self) -> Result<Self, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self {
                depth,
                limit: self.limit,
            }),
            None => Err(self.refuse("JSON is nested deeper than 32 levels")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        // Integers beyond 64 bits arrive here as floats that have lost digits.
        if value.abs() > 9_007_199_254_740_992.0 {
            return Err(self.refuse("a number has more than 53 bits and is no 64-bit integer"));
        }
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| self.refuse("a number is out of range"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        if value.len() > MAX_STRING {
            return Err(self.refuse("a string is longer than 8192 bytes"));
        }
        Ok(Value::from(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.inner()?)? {
            if items.len() == MAX_ITEMS {
                return Err(self.refuse("an array has more than 1024 items"));
            }
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if key.len() > MAX_KEY {
                return Err(self.refuse("an object key is longer than 256 bytes"));
            }
            if map.len() == MAX_ITEMS {
                return Err(self.refuse("an object has more than 1024 keys"));
            }
            // Keys arrive unescaped, so "\u0061" and "a" are the duplicates that they are.
            if map.contains_key(&key) {
                return Err(self.refuse("an object has a duplicate key"));
            }
            let value = entries.next_value_seed(self.inner()?)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_objects_parse_unchanged() {
        for text in [
            r#"{"test": 2432232314}"#,
            " {}\n",
            r#"{"a":{"b":[1,-2,0.5,null,true,"x"]}}"#,
            r#"{"a":9223372036854775807}"#,
        ] {
            let strict = parse_object(text.as_bytes()).unwrap();
            assert_eq!(
                Value::Object(strict),
                serde_json::from_str::<Value>(text).unwrap()
            );
        }
    }

    /// webhook §10 rows 24, 32-43 and 45.
    #[test]
    fn nasty_bodies_are_refused() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let edge = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        let (fits, exceeds) = (edge(32), edge(34));
        assert!(parse_object(fits.as_bytes()).is_ok());
        let long_key = format!("{{\"{}\":1}}", "k".repeat(257));
        let long_string = format!("{{\"k\":\"{}\"}}", "s".repeat(8193));
        let digits = format!("{{\"a\":{}}}", "9".repeat(400));
        for text in [
            "",
            "  ",
            "[]",
            "null",
            "\"x\"",
            "1",
            r#"[{"a":1}]"#,
            "\u{feff}{}",
            r#"{"a":1,"a":2}"#,
            "{\"a\":1,\"\\u0061\":2}",
            &deep,
            &exceeds,
            &long_key,
            &long_string,
            &digits,
            r#"{"a":1e400}"#,
            r#"{"a":18446744073709551616}"#,
            r#"{"a":NaN}"#,
            r#"{"a":1,}"#,
            "{'a':1}",
            "{}{}",
            "{}\0",
            "{\"a\":\"\u{1}\"}",
            r#"{"a":"\ud800"}"#,
            "// x\n{}",
        ] {
            assert!(parse_object(text.as_bytes()).is_err(), "{:.40}", text);
        }
        assert!(parse_object(&[0xff, 0xfe, b'{', 0, b'}', 0]).is_err());
        assert!(parse_object(b"{\"a\":\"\xff\"}").is_err());
        assert_eq!(parse_object(b"[1]"), Err(JsonError::NotAnObject));
    }
}
