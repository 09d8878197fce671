//! Which variables of `tenure` its commands get: all but those that hold secrets of `tenure` itself.

use std::ffi::OsString;

use crate::args::Global;
use crate::output::{self, Ink};

/// Variables that hold a secret.
const SECRETS: [&str; 4] =
    ["TENURE_ACCESS_TOKEN", "TENURE_RAFT_SECRET", "TENURE_GOSSIP_SECRET", "TENURE_ETCD_USER"];

/// Variables that hold an address, which may have a password in it.
const ADDRESSES: [&str; 5] =
    ["TENURE_STORE", "TENURE_ELECT", "TENURE_DIRECT_URL", "TENURE_AND_STORE", "DATABASE_URL"];

/// The variables that a command does not get, unless `--pass-env` names them: secrets, and addresses with a password.
pub(crate) fn withheld(pass: &[String]) -> Vec<OsString> {
    let addresses = ADDRESSES
        .into_iter()
        .filter(|name| std::env::var_os(name).is_some_and(|url| has_password(&url.to_string_lossy())));
    let names = SECRETS.into_iter().chain(addresses);
    names.filter(|name| !pass.iter().any(|passed| passed == name)).map(Into::into).collect()
}

/// Tells that a command gets no `DATABASE_URL`: programs other than `tenure` use that variable too.
pub(crate) fn tell_withheld(global: &Global, pass: &[String]) {
    if withheld(pass).iter().any(|name| name == "DATABASE_URL") {
        let text =
            "the command does not get DATABASE_URL, which has a password; --pass-env DATABASE_URL passes it";
        output::note(global, Ink::Dim, text);
    }
}

/// The password in an address, if it has one.
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

/// Hides the passwords of these addresses from the list of processes, and tells whoever typed one there.
///
/// Must be called while the process has one thread.
pub(crate) fn hide_typed_passwords<'a>(global: &Global, urls: impl Iterator<Item = &'a str>) {
    let mut typed = false;
    for password in urls.filter_map(password) {
        typed |= crate::child::overwrite_in_arguments(password);
    }
    if typed {
        let text = "a password on the command line can be read by other users of this machine until it is hidden; use \
                    --store-file, TENURE_STORE or PGPASSFILE instead";
        output::note(global, Ink::Yellow, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_in_every_form_of_an_address() {
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
