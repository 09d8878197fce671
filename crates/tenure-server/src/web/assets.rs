//! The style sheet, the script and the logo, embedded in the binary.
//!
//! Their URLs contain a hash of the content, so browsers may cache them without limit and never combine a new
//! page with an old style sheet.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use sha2::{Digest, Sha256};

/// An embedded file.
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

pub(super) const STYLE: usize = 0;
pub(super) const SCRIPT: usize = 1;
pub(super) const LOGO: usize = 2;

const ASSETS: [Asset; 3] = [
    Asset { name: "app.css", kind: "text/css; charset=utf-8", text: include_str!("assets/app.css") },
    Asset { name: "app.js", kind: "text/javascript; charset=utf-8", text: include_str!("assets/app.js") },
    Asset { name: "logo.svg", kind: "image/svg+xml", text: include_str!("assets/logo.svg") },
];

static URLS: LazyLock<[String; 3]> = LazyLock::new(|| ASSETS.each_ref().map(url_of));

/// The URL of an asset.
pub(super) fn url(asset: usize) -> &'static str {
    &URLS[asset]
}

fn url_of(asset: &Asset) -> String {
    let digest = Sha256::digest(asset.text.as_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("/assets/{hash}/{}", asset.name)
}

pub(super) async fn serve(Path((hash, name)): Path<(String, String)>) -> Response {
    let Some(at) = ASSETS.iter().position(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "no such file").into_response();
    };
    // A replica of another version rendered the page. Serve our version, but do not let the browser cache it.
    let ours = url(at) == format!("/assets/{hash}/{name}");
    let keep = if ours { "public, max-age=31536000, immutable" } else { "no-store" };
    ([(CONTENT_TYPE, ASSETS[at].kind), (CACHE_CONTROL, keep)], ASSETS[at].text).into_response()
}
