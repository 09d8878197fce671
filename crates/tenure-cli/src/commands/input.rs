//! Values of options: literal, from standard input, or from a file.

use std::io::Read;
use std::path::Path;

use tenure::port::{PAYLOAD_MAX, RawJson};

use crate::error::CliError;

/// Reads the JSON value of `option`: literal, `-` for standard input, or `@FILE`.
pub(crate) fn json(option: &str, text: &str) -> Result<RawJson, CliError> {
    let (from, content) = match (text, text.strip_prefix('@')) {
        ("-", _) => ("standard input".to_owned(), read(std::io::stdin().lock(), "standard input")?),
        (_, Some(path)) => {
            let file = std::fs::File::open(path).map_err(|error| {
                CliError::usage(format!("{option} @{path}: cannot read the file: {error}"))
            })?;
            (path.to_owned(), read(file, path)?)
        }
        _ => (crate::output::clipped(text, 60), text.to_owned()),
    };
    let content = content.trim().to_owned();
    RawJson::try_from(content).map_err(|error| {
        CliError::usage(format!(
            "{option}: {from} is not JSON ({error}); write a string with quotes, as in '\"ada\"', and a file as @FILE"
        ))
    })
}

/// Reads a file, or standard input (`-`), as bytes.
pub(crate) fn bytes(option: &str, path: &Path) -> Result<Vec<u8>, CliError> {
    let name = path.display().to_string();
    if name == "-" {
        return raw(std::io::stdin().lock(), "standard input");
    }
    let file = std::fs::File::open(path)
        .map_err(|error| CliError::usage(format!("{option} {name}: cannot read the file: {error}")))?;
    raw(file, &name)
}

fn read(source: impl Read, from: &str) -> Result<String, CliError> {
    String::from_utf8(raw(source, from)?)
        .map_err(|error| CliError::usage(format!("{from} is not UTF-8 text: {error}")))
}

/// Reads at most one byte more than allowed, which is enough to detect an oversized input.
fn raw(source: impl Read, from: &str) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let most = PAYLOAD_MAX as u64 + 1;
    source
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| CliError::usage(format!("cannot read {from}: {error}")))?;
    if bytes.len() > PAYLOAD_MAX {
        return Err(CliError::usage(format!(
            "{from} has more than {PAYLOAD_MAX} bytes; store large data elsewhere and put a reference into the payload"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_passed_unchanged() {
        assert_eq!(json("--payload", r#" {"to": "ada"} "#).unwrap().as_str(), r#"{"to": "ada"}"#);
        let refused = json("--payload", "ada").unwrap_err();
        assert!(refused.message().contains("--payload: ada is not JSON"), "{refused:?}");
        let away = json("--output", "@/no/such/file").unwrap_err();
        assert!(away.message().contains("/no/such/file"), "{away:?}");
    }
}
