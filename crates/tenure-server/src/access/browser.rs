//! What only browsers do: requests that a strange page made them send, names that lead here and should not, cookies.

use std::net::IpAddr;

use http::header::{HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use crate::problem::Problem;

/// The cookie with the dashboard's session. Under TLS its name makes browsers take it only from this host, only over TLS, and
/// for all paths; without TLS they would not take such a name.
const COOKIE: (&str, &str) = ("tenure_session", "__Host-tenure_session");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

fn cookie_name(tls: bool) -> &'static str {
    if tls { COOKIE.1 } else { COOKIE.0 }
}

/// A `Set-Cookie` that keeps a session in the browser, out of reach of scripts and of other sites.
pub(crate) fn cookie(session: &str, tls: bool) -> Option<HeaderValue> {
    super::session::parse(session)?;
    let mut value =
        HeaderValue::from_str(&set_cookie(session, super::session::LIFETIME_MS / 1000, tls)).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A `Set-Cookie` that takes it away.
pub(crate) fn no_cookie(tls: bool) -> HeaderValue {
    HeaderValue::from_str(&set_cookie("", 0, tls)).unwrap_or(HeaderValue::from_static(""))
}

fn set_cookie(value: &str, max_age: i64, tls: bool) -> String {
    let (name, secure) = (cookie_name(tls), if tls { "; Secure" } else { "" });
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age}{secure}")
}

/// The session in the request's cookies.
pub(super) fn cookie_of(headers: &HeaderMap, tls: bool) -> Option<&str> {
    let all = headers.get_all(http::header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name.trim() == cookie_name(tls) && !value.trim().is_empty()).then_some(value.trim())
    })
}

/// Refuses what came through a proxy where nobody has to prove who they are. A proxy makes clients of other machines look
/// like clients of this one, and may set a `Host` that this server answers to.
pub(super) fn check_forwarded(headers: &HeaderMap) -> Result<(), Problem> {
    let forwarded = |name: &HeaderName| {
        matches!(name.as_str(), "forwarded" | "via" | "x-real-ip")
            || name.as_str().starts_with("x-forwarded-")
    };
    let Some(name) = headers.keys().find(|name| forwarded(name)) else { return Ok(()) };
    let detail = format!(
        "this request came through a proxy (it has the header `{name}`), and this server asks nobody for credentials"
    );
    Err(Problem::new(StatusCode::FORBIDDEN, "forwarded-request", detail)
        .field(name.as_str())
        .remedy("start the server with --auth, or ask it directly from this machine"))
}

/// Where nobody has to prove who they are, a page from elsewhere must not get here under a name of its own: such a name
/// may lead to this machine (DNS rebinding). Only names that can not are answered.
pub(super) fn check_host(parts: &Parts) -> Result<(), Problem> {
    let allowed = match host_of(parts) {
        Some(host) => is_loopback(host),
        // Browsers always say it; old health checks do not.
        None => parts.version <= Version::HTTP_10,
    };
    if allowed {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "host-not-allowed",
        "this server answers to loopback names and addresses only",
    )
    .field("host")
    .remedy("use http://127.0.0.1 or http://localhost; for other names start it with --auth"))
}

/// What changes something must not come from another site's page.
pub(super) fn check_origin(parts: &Parts) -> Result<(), Problem> {
    if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let text = |name: HeaderName| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let own = match (text(FETCH_SITE), text(ORIGIN)) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => host_of(parts).is_some_and(|host| {
            origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
        }),
        // No browser.
        (None, None) => true,
    };
    if own {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "cross-site-request",
        "this request was sent by a page of another site",
    )
    .field("origin")
    .remedy("send it from the dashboard itself, or from a program that is no browser"))
}

/// The host and port that the client asked for.
fn host_of(parts: &Parts) -> Option<&str> {
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    authority.or_else(|| parts.headers.get(HOST).map(|host| host.to_str().unwrap_or("?")))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let number = name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    number || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let builder = headers
            .iter()
            .fold(Request::builder().method(method), |b, (name, value)| b.header(*name, *value));
        builder.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn only_names_that_cannot_be_rebound_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:8368",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]:8368",
        ] {
            assert!(check_host(&parts("GET", &[("host", host)])).is_ok(), "{host}");
        }
        let strange = [
            "evil.example",
            "localhost.evil.example:8368",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[2001:db8::1]",
            "",
            "é",
        ];
        for host in strange {
            assert_eq!(
                check_host(&parts("GET", &[("host", host)])).expect_err(host).code,
                "host-not-allowed"
            );
        }
        assert!(check_host(&parts("GET", &[])).is_err(), "HTTP/1.1 has a host");
    }

    #[test]
    fn what_changes_something_must_come_from_the_same_origin() {
        let own = [
            vec![],
            vec![("sec-fetch-site", "same-origin")],
            vec![("sec-fetch-site", "none")],
            vec![("host", "localhost:8368"), ("origin", "http://localhost:8368")],
        ];
        for headers in own {
            assert!(check_origin(&parts("POST", &headers)).is_ok(), "{headers:?}");
        }
        let strange = [
            vec![("sec-fetch-site", "cross-site")],
            vec![("sec-fetch-site", "same-site")],
            vec![("host", "localhost:8368"), ("origin", "http://localhost:9999")],
            vec![("host", "localhost:8368"), ("origin", "null")],
            vec![("origin", "http://localhost:8368")],
            // A browser that says where it comes from is believed before what it says of its origin.
            vec![("sec-fetch-site", "cross-site"), ("host", "a"), ("origin", "http://a")],
        ];
        for headers in strange {
            assert_eq!(
                check_origin(&parts("POST", &headers)).expect_err("strange").code,
                "cross-site-request"
            );
            assert!(check_origin(&parts("GET", &headers)).is_ok());
        }
    }

    /// A proxy that set `Host: 127.0.0.1` made everybody who reached it an administrator.
    #[test]
    fn what_came_through_a_proxy_is_refused_where_nobody_authenticates() {
        for name in
            ["forwarded", "via", "x-forwarded-for", "X-Forwarded-Host", "x-forwarded-proto", "x-real-ip"]
        {
            let problem = check_forwarded(&parts("GET", &[(name, "x"), ("host", "127.0.0.1")]).headers);
            assert_eq!(problem.expect_err(name).code, "forwarded-request");
        }
        assert!(check_forwarded(&parts("GET", &[("host", "127.0.0.1"), ("accept", "x")]).headers).is_ok());
    }

    #[test]
    fn the_cookie_is_out_of_reach() {
        let session = format!("{:016x}.{:064x}", 1, 2);
        let value = cookie(&session, true).expect("a cookie");
        let text = value.to_str().expect("text");
        for part in
            ["__Host-tenure_session=", "HttpOnly", "SameSite=Strict", "Secure", "Path=/", "Max-Age=43200"]
        {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("Domain"));
        assert!(value.is_sensitive());
        assert!(cookie("x; Domain=evil", true).is_none());
        for (tls, name) in [(true, "__Host-tenure_session"), (false, "tenure_session")] {
            let request = parts("GET", &[("cookie", &format!("a=b; {name}={session}; c=d"))]);
            assert_eq!(cookie_of(&request.headers, tls), Some(session.as_str()));
            assert_eq!(cookie_of(&request.headers, !tls), None, "a cookie of the other kind is not taken");
            assert!(no_cookie(tls).to_str().expect("text").starts_with(&format!("{name}=; ")));
        }
    }
}
