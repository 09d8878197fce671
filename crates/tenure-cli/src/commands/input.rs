//! What commands are given: as it is typed, from the standard input, or from a file.

use std::io::Read;
use std::path::Path;

use tenure::port::{Json, PAYLOAD_MAX};

use crate::exit::Failure;

/// Reads what stands at `option`: JSON, `-` or `@FILE`.
pub(crate) fn json(option: &str, text: &str) -> Result<Json, Failure> {
    let (from, content) = match (text, text.strip_prefix('@')) {
        ("-", _) => ("the standard input".to_owned(), read(std::io::stdin().lock(), "the standard input")?),
        (_, Some(path)) => {
            let file = std::fs::File::open(path).map_err(|error| {
                Failure::usage(format!("{option} @{path}: the file cannot be read: {error}"))
            })?;
            (path.to_owned(), read(file, path)?)
        }
        _ => (crate::output::clipped(text, 60), text.to_owned()),
    };
    let content = content.trim().to_owned();
    Json::try_from(content).map_err(|error| {
        Failure::usage(format!(
            "{option}: {from} is not JSON ({error}); a text is written with its quotes, as in '\"ada\"', and a file as @FILE"
        ))
    })
}

/// Reads a file, or the standard input (`-`), as it is.
pub(crate) fn bytes(option: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display().to_string();
    if name == "-" {
        return raw(std::io::stdin().lock(), "the standard input");
    }
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::usage(format!("{option} {name}: the file cannot be read: {error}")))?;
    raw(file, &name)
}

fn read(source: impl Read, from: &str) -> Result<String, Failure> {
    String::from_utf8(raw(source, from)?)
        .map_err(|error| Failure::usage(format!("{from} cannot be read as text: {error}")))
}

/// One byte more than may be is enough to see that it is too much.
fn raw(source: impl Read, from: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let most = PAYLOAD_MAX as u64 + 1;
    source
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("{from} cannot be read: {error}")))?;
    if bytes.len() > PAYLOAD_MAX {
        return Err(Failure::usage(format!(
            "{from} holds more than {PAYLOAD_MAX} bytes; keep what is large elsewhere, and say in the payload where"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_taken_as_it_is() {
        assert_eq!(json("--payload", r#" {"to": "ada"} "#).unwrap().as_str(), r#"{"to": "ada"}"#);
        let refused = json("--payload", "ada").unwrap_err();
        assert!(refused.message().contains("--payload: ada is not JSON"), "{refused:?}");
        let away = json("--output", "@/no/such/file").unwrap_err();
        assert!(away.message().contains("/no/such/file"), "{away:?}");
    }
}
