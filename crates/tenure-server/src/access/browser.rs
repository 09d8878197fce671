//! Protection against requests of foreign pages, DNS rebinding and cookie theft.

use std::net::IpAddr;

use http::header::{HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use crate::problem::Problem;

/// Cookie of the dashboard session. Under TLS the `__Host-` prefix makes browsers accept it only from this
/// host, over TLS and for all paths; without TLS they would reject the prefix.
const COOKIE: (&str, &str) = ("tenure_session", "__Host-tenure_session");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

fn cookie_name(tls: bool) -> &'static str {
    if tls { COOKIE.1 } else { COOKIE.0 }
}

/// `Set-Cookie` header that stores the session in the browser, unreadable for scripts and other sites.
pub(crate) fn cookie(session: &str, tls: bool) -> Option<HeaderValue> {
    super::session::parse(session)?;
    let mut value =
        HeaderValue::from_str(&set_cookie(session, super::session::LIFETIME_MS / 1000, tls)).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// `Set-Cookie` header that deletes the cookie.
pub(crate) fn no_cookie(tls: bool) -> HeaderValue {
    HeaderValue::from_str(&set_cookie("", 0, tls)).unwrap_or(HeaderValue::from_static(""))
}

fn set_cookie(value: &str, max_age: i64, tls: bool) -> String {
    let (name, secure) = (cookie_name(tls), if tls { "; Secure" } else { "" });
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age}{secure}")
}

/// Session in the cookies of a request.
pub(super) fn cookie_of(headers: &HeaderMap, tls: bool) -> Option<&str> {
    let all = headers.get_all(http::header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name.trim() == cookie_name(tls) && !value.trim().is_empty()).then_some(value.trim())
    })
}

/// Reject forwarded requests if the server requires no credentials. A proxy makes remote clients look local,
/// and may set a `Host` that this server accepts.
pub(super) fn check_forwarded(headers: &HeaderMap) -> Result<(), Problem> {
    let forwarded = |name: &HeaderName| {
        matches!(name.as_str(), "forwarded" | "via" | "x-real-ip")
            || name.as_str().starts_with("x-forwarded-")
    };
    let Some(name) = headers.keys().find(|name| forwarded(name)) else { return Ok(()) };
    let detail = format!(
        "the request came through a proxy (header `{name}`), and this server requires no credentials"
    );
    Err(Problem::new(StatusCode::FORBIDDEN, "forwarded-request", detail)
        .field(name.as_str())
        .remedy("start the server with --auth, or send the request directly from this machine"))
}

/// Without credentials, reject host names that a foreign page could resolve to this machine (DNS rebinding).
/// Only loopback names and addresses are accepted.
pub(super) fn check_host(parts: &Parts) -> Result<(), Problem> {
    let allowed = match host_of(parts) {
        Some(host) => is_loopback(host),
        // Browsers always send a host; old health checks do not.
        None => parts.version <= Version::HTTP_10,
    };
    if allowed {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "host-not-allowed",
        "the server accepts only loopback names and addresses",
    )
    .field("host")
    .remedy("use http://127.0.0.1 or http://localhost; for other names start it with --auth"))
}

/// Reject changes that a page of another site sends.
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
        // Not a browser.
        (None, None) => true,
    };
    if own {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "cross-site-request",
        "the request was sent by a page of another site",
    )
    .field("origin")
    .remedy("send it from the dashboard, or from a client that is not a browser"))
}

/// Host and port of the request.
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
    fn only_loopback_hosts_are_accepted() {
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
    fn changes_must_come_from_the_same_origin() {
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
            // `Sec-Fetch-Site` takes precedence over `Origin`.
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

    /// Regression: A proxy that set `Host: 127.0.0.1` gave every remote client administrator rights.
    #[test]
    fn forwarded_requests_are_rejected_without_access_control() {
        for name in
            ["forwarded", "via", "x-forwarded-for", "X-Forwarded-Host", "x-forwarded-proto", "x-real-ip"]
        {
            let problem = check_forwarded(&parts("GET", &[(name, "x"), ("host", "127.0.0.1")]).headers);
            assert_eq!(problem.expect_err(name).code, "forwarded-request");
        }
        assert!(check_forwarded(&parts("GET", &[("host", "127.0.0.1"), ("accept", "x")]).headers).is_ok());
    }

    #[test]
    fn the_cookie_is_protected() {
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
