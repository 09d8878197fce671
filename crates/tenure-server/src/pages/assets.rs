//! The style sheet, the script and the logo, in the binary.
//!
//! Their addresses carry a hash of what they hold, so that browsers may keep them for ever and never show a new page with
//! an old style.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use sha2::{Digest, Sha256};

/// A file in the binary.
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

/// Where an asset is to be had.
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
    // A replica of another version rendered the page: ours is better than none, but nobody may keep it.
    let ours = url(at) == format!("/assets/{hash}/{name}");
    let keep = if ours { "public, max-age=31536000, immutable" } else { "no-store" };
    ([(CONTENT_TYPE, ASSETS[at].kind), (CACHE_CONTROL, keep)], ASSETS[at].text).into_response()
}
