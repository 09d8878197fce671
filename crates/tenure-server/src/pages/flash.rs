//! One-time messages: what a form did is told by the page that the browser is sent to, and by that page only once.
//!
//! The message travels in a cookie, not in the address: a link that is shared, bookmarked or reloaded tells nothing. It names the
//! page that it is meant for, so that another tab does not show it. The word is not signed: a page shows only texts that it
//! knows, so a forged word can at most show one of them to the browser that forged it. A secret is in a cookie of its own, which
//! goes to its page only and is out of reach of scripts; the browser deletes both with the answer that shows them.

use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::frame::cookie;
use super::parts::{escape, unescape};
use crate::envelope::Secret;

const DONE: &str = "tenure_done";
const SECRET: &str = "tenure_secret";
/// How long a browser keeps a message that no page has shown.
const KEPT_S: u32 = 60;
/// Sent by the script when it refreshes a page that is open: such a request shows no message, and uses none up.
const REFRESH: HeaderName = HeaderName::from_static("x-tenure-refresh");

/// What the request before this one did, as far as this page is to tell it.
#[derive(Clone, Default)]
pub(super) struct Flash {
    pub(super) done: Option<String>,
    pub(super) secret: Option<String>,
    /// The path of this page.
    path: String,
}

impl Flash {
    /// The message for the page at this path and query.
    pub(super) fn of(headers: &HeaderMap, here: &str) -> Flash {
        if headers.contains_key(REFRESH) {
            return Flash::default();
        }
        let meant = |name: &str| {
            let (value, to) = cookie(headers, name)?.split_once('!')?;
            (to == escape(here)).then(|| unescape(value)).flatten()
        };
        Flash { done: meant(DONE), secret: meant(SECRET), path: path_of(here).to_owned() }
    }

    /// Has the browser delete what this answer has told.
    pub(super) fn forget(&self, response: &mut Response) {
        if self.done.is_some() {
            response.headers_mut().append(SET_COOKIE, set(DONE, "", "/", 0, false));
        }
        if self.secret.is_some() {
            response.headers_mut().append(SET_COOKIE, set(SECRET, "", &self.path, 0, false));
            response.extensions_mut().insert(Secret);
        }
    }
}

/// Sends the browser to one of our pages, with a message for it.
pub(super) fn redirect(to: &str, done: &str, secret: Option<&str>, tls: bool) -> Response {
    let page = to.split('#').next().unwrap_or(to);
    let value = |text: &str| format!("{}!{}", escape(text), escape(page));
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response();
    let headers = response.headers_mut();
    headers.append(SET_COOKIE, set(DONE, &value(done), "/", KEPT_S, tls));
    if let Some(secret) = secret {
        headers.append(SET_COOKIE, set(SECRET, &value(secret), path_of(page), KEPT_S, tls));
    }
    response
}

fn path_of(address: &str) -> &str {
    address.split(['?', '#']).next().unwrap_or("/")
}

fn set(name: &str, value: &str, path: &str, seconds: u32, tls: bool) -> HeaderValue {
    let secure = if tls { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    // Escaped values and paths are plain ASCII.
    let mut value = HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::COOKIE;

    fn sent(response: &Response) -> HeaderMap {
        let pairs = response.headers().get_all(SET_COOKIE).iter();
        let pairs: Vec<_> =
            pairs.filter_map(|value| value.to_str().ok()?.split(';').next().map(str::to_owned)).collect();
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(&pairs.join("; ")).expect("plain"))])
    }

    #[test]
    fn a_message_is_for_one_page_and_for_one_time() {
        let to = "/tasks/5?namespace=a%2Fb#life";
        let response = redirect(to, "cancel", Some("whsec_a+b/c=="), true);
        assert_eq!(response.headers()[LOCATION], to);
        let mut headers = sent(&response);
        let flash = Flash::of(&headers, "/tasks/5?namespace=a%2Fb");
        assert_eq!((flash.done.as_deref(), flash.secret.as_deref()), (Some("cancel"), Some("whsec_a+b/c==")));
        let mut shown = ().into_response();
        flash.forget(&mut shown);
        let gone: Vec<_> = shown.headers().get_all(SET_COOKIE).iter().collect();
        assert!(
            gone.len() == 2
                && gone.iter().all(|value| value.to_str().is_ok_and(|text| text.contains("Max-Age=0")))
        );
        // Neither another page nor a refresh by the script tells it, or uses it up.
        assert!(Flash::of(&headers, "/tasks/6?namespace=a%2Fb").done.is_none());
        headers.insert(REFRESH, HeaderValue::from_static("1"));
        assert!(Flash::of(&headers, "/tasks/5?namespace=a%2Fb").done.is_none());
    }
}
