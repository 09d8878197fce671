//! JSON that is carried, and not looked into.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A JSON value as its text: payloads and outputs are carried, and nobody on the way looks into them.
///
/// ```
/// use tenure_core::port::Json;
///
/// let payload: Json = r#"{"to":"ada"}"#.parse().unwrap();
/// assert_eq!(payload.as_str(), r#"{"to":"ada"}"#);
/// assert!("{to:".parse::<Json>().is_err());
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = serde_json::Value))]
pub struct Json(Box<RawValue>);

impl Json {
    /// The JSON of a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Json, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Json)
    }

    /// The value, as what it is taken to be.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    /// How deep lists and objects lie in each other.
    ///
    /// ```
    /// # use tenure_core::port::Json;
    /// let deep: Json = r#"{"a":[[1],"[[\"[["]}"#.parse().unwrap();
    /// assert_eq!((deep.depth(), Json::of(&7).unwrap().depth()), (3, 0));
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

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl Default for Json {
    /// An object with nothing in it.
    fn default() -> Self {
        Json(RawValue::from_string("{}".into()).expect("an empty object is JSON"))
    }
}

impl std::str::FromStr for Json {
    type Err = serde_json::Error;
    fn from_str(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Json)
    }
}

impl TryFrom<String> for Json {
    type Error = serde_json::Error;
    fn try_from(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Json)
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Json {}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
