//! Environment of the commands that tenure runs: all variables except those with secrets of tenure itself.

use std::ffi::OsString;

use crate::args::GlobalArgs;
use crate::output::{self, TextStyle};

/// Variables that hold a secret.
const SECRETS: [&str; 4] =
    ["TENURE_ACCESS_TOKEN", "TENURE_RAFT_SECRET", "TENURE_GOSSIP_SECRET", "TENURE_ETCD_USER"];

/// Variables that hold a URL, possibly with a password.
const ADDRESSES: [&str; 5] =
    ["TENURE_STORE", "TENURE_ELECTION_STORE", "TENURE_DIRECT_URL", "TENURE_SECOND_STORE", "DATABASE_URL"];

/// Variables withheld from a command unless `--pass-env` names them: secrets, and URLs with a password.
pub(crate) fn withheld(pass: &[String]) -> Vec<OsString> {
    let addresses = ADDRESSES
        .into_iter()
        .filter(|name| std::env::var_os(name).is_some_and(|url| has_password(&url.to_string_lossy())));
    let names = SECRETS.into_iter().chain(addresses);
    names.filter(|name| !pass.iter().any(|passed| passed == name)).map(Into::into).collect()
}

/// Reports that the command does not get `DATABASE_URL`, because other programs use that variable too.
pub(crate) fn note_withheld(global: &GlobalArgs, pass: &[String]) {
    if withheld(pass).iter().any(|name| name == "DATABASE_URL") {
        let text = "DATABASE_URL has a password and is withheld from the command; use --pass-env DATABASE_URL to pass it";
        output::note(global, TextStyle::Dim, text);
    }
}

/// The password in a URL, if it has one.
pub(crate) fn password(url: &str) -> Option<&str> {
    let after_scheme = url.split_once("://").map(|(_, rest)| rest);
    let authority = after_scheme.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    let user = authority.and_then(|authority| authority.rsplit_once('@')).map(|(user, _)| user);
    let in_authority = user.and_then(|user| user.split_once(':')).map(|(_, password)| password);
    let named = ["password=", "secret="].into_iter().find_map(|name| {
        let (_, value) = url.split_once(name)?;
        value.split(['&', ' ', '#']).next()
    });
    in_authority.or(named).filter(|password| !password.is_empty())
}

fn has_password(url: &str) -> bool {
    password(url).is_some()
}

/// Hides the passwords of these URLs from the process list, and warns if one was given on the command line.
///
/// Must be called while the process has one thread.
pub(crate) fn hide_passwords_in_arguments<'a>(global: &GlobalArgs, urls: impl Iterator<Item = &'a str>) {
    let mut found = false;
    for password in urls.filter_map(password) {
        found |= crate::child::overwrite_in_arguments(password);
    }
    if found {
        let text = "other users of this machine can read a password on the command line until tenure hides it; use --store-file, \
                    TENURE_STORE or PGPASSFILE instead";
        output::note(global, TextStyle::Yellow, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_in_every_form_of_a_url() {
        for (url, found) in [
            ("postgres://app@db/app", None),
            ("postgres://app:@db/app", None),
            ("postgres://app:s3cret@db/app", Some("s3cret")),
            ("postgresql://app:s%40cret@a:1,b:2/app?sslmode=require", Some("s%40cret")),
            ("postgres:///app?host=/run&password=s3cret&user=app", Some("s3cret")),
            ("host=db user=app password=s3cret dbname=app", Some("s3cret")),
            ("http://127.0.0.1:8368", None),
            ("sqlite:/var/lib/tenure.db", None),
            ("etcd://root:s3cret@a:2379,b:2379", Some("s3cret")),
            ("raft:/data?node=1&peers=1@a:8369,2@b:8369", None),
        ] {
            assert_eq!(password(url), found, "{url}");
        }
    }
}
