//! JSON values carried as text.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A JSON value kept as its text. Payloads and results pass through without being parsed.
///
/// ```
/// use tenure_core::port::RawJson;
///
/// let payload: RawJson = r#"{"to":"ada"}"#.parse().unwrap();
/// assert_eq!(payload.as_str(), r#"{"to":"ada"}"#);
/// assert!("{to:".parse::<RawJson>().is_err());
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = serde_json::Value))]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Serializes a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<RawJson, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(RawJson)
    }

    /// Deserializes the value.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    /// Nesting depth of arrays and objects.
    ///
    /// ```
    /// # use tenure_core::port::RawJson;
    /// let deep: RawJson = r#"{"a":[[1],"[[\"[["]}"#.parse().unwrap();
    /// assert_eq!((deep.depth(), RawJson::of(&7).unwrap().depth()), (3, 0));
    /// ```
    pub fn depth(&self) -> usize {
        let (mut depth, mut deepest) = (0usize, 0);
        let (mut in_text, mut escaped) = (false, false);
        for byte in self.0.get().bytes() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_text => escaped = true,
                b'"' => in_text = !in_text,
                _ if in_text => {}
                b'[' | b'{' => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        deepest
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl Default for RawJson {
    /// An empty object.
    fn default() -> Self {
        RawJson(RawValue::from_string("{}".into()).expect("an empty object is JSON"))
    }
}

impl std::str::FromStr for RawJson {
    type Err = serde_json::Error;
    fn from_str(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(RawJson)
    }
}

impl TryFrom<String> for RawJson {
    type Error = serde_json::Error;
    fn try_from(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(RawJson)
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RawJson {}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
