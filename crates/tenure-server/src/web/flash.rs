//! One-time messages: the page after a form shows the result of the form once.
//!
//! A cookie carries the message, not the URL, so a shared, bookmarked or reloaded link shows nothing. The
//! cookie names its page, so another tab does not show the message. The cookie is not signed: a page maps the
//! word to a fixed text, so a forged word can only show one of these texts to the browser that forged it. A
//! secret has its own cookie, limited to the path of its page and hidden from scripts. The response that
//! shows a message deletes both cookies.

use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::components::{escape, unescape};
use super::layout::cookie;
use crate::middleware::Secret;

const MESSAGE: &str = "tenure_message";
const SECRET: &str = "tenure_secret";
/// Lifetime of a message that no page has shown, in seconds.
const LIFETIME_S: u32 = 60;
/// Header of the script's refresh requests. They neither show nor delete a message.
const REFRESH: HeaderName = HeaderName::from_static("x-tenure-refresh");

/// The message for this page, if there is one.
#[derive(Clone, Default)]
pub(super) struct Flash {
    pub(super) message: Option<String>,
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
        let for_this_page = |name: &str| {
            let (value, to) = cookie(headers, name)?.split_once('!')?;
            (to == escape(here)).then(|| unescape(value)).flatten()
        };
        Flash {
            message: for_this_page(MESSAGE),
            secret: for_this_page(SECRET),
            path: path_of(here).to_owned(),
        }
    }

    /// Delete the cookies of the messages that this response shows.
    pub(super) fn forget(&self, response: &mut Response) {
        if self.message.is_some() {
            response.headers_mut().append(SET_COOKIE, set(MESSAGE, "", "/", 0, false));
        }
        if self.secret.is_some() {
            response.headers_mut().append(SET_COOKIE, set(SECRET, "", &self.path, 0, false));
            response.extensions_mut().insert(Secret);
        }
    }
}

/// Redirect to a page of this server with a message for it.
pub(super) fn redirect(to: &str, message: &str, secret: Option<&str>, tls: bool) -> Response {
    let page = to.split('#').next().unwrap_or(to);
    let value = |text: &str| format!("{}!{}", escape(text), escape(page));
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response();
    let headers = response.headers_mut();
    headers.append(SET_COOKIE, set(MESSAGE, &value(message), "/", LIFETIME_S, tls));
    if let Some(secret) = secret {
        headers.append(SET_COOKIE, set(SECRET, &value(secret), path_of(page), LIFETIME_S, tls));
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
    fn a_message_is_shown_by_one_page_once() {
        let to = "/tasks/5?namespace=a%2Fb#timeline";
        let response = redirect(to, "cancel", Some("whsec_a+b/c=="), true);
        assert_eq!(response.headers()[LOCATION], to);
        let mut headers = sent(&response);
        let flash = Flash::of(&headers, "/tasks/5?namespace=a%2Fb");
        assert_eq!(
            (flash.message.as_deref(), flash.secret.as_deref()),
            (Some("cancel"), Some("whsec_a+b/c=="))
        );
        let mut shown = ().into_response();
        flash.forget(&mut shown);
        let deleted: Vec<_> = shown.headers().get_all(SET_COOKIE).iter().collect();
        assert!(
            deleted.len() == 2
                && deleted.iter().all(|value| value.to_str().is_ok_and(|text| text.contains("Max-Age=0")))
        );
        // Another page and a refresh by the script neither show nor delete it.
        assert!(Flash::of(&headers, "/tasks/6?namespace=a%2Fb").message.is_none());
        headers.insert(REFRESH, HeaderValue::from_static("1"));
        assert!(Flash::of(&headers, "/tasks/5?namespace=a%2Fb").message.is_none());
    }
}
