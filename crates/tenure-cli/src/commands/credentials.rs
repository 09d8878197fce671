//! `tenure credentials`: access tokens and client certificates, and their permissions.
//!
//! An access token is printed once, on stdout. All other output goes to stderr, so that
//! `tenure credentials create … > file` writes only the access token.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::Name;
use tenure::port::{AuditEntry, Credential, CredentialVerifier, Grant, Store};
use tenure::runtime::{random, wall_ms};
use tenure_server::access::access_token::{self, AccessToken};
use tenure_server::access::{is_dashboard_session, principal_name};

use super::elections::whoami;
use crate::args::{CredentialsArgs, CredentialsCommand, ExpiryArgs, GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago};
use crate::store;

/// Longest expiry; beyond it, `--no-expiry` is required.
const EXPIRY_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) async fn run(global: &GlobalArgs, args: CredentialsArgs) -> Result<u8, CliError> {
    match args.command {
        CredentialsCommand::Create { name, grants, expiry, certificate_subject } => {
            let name = principal(&name)?;
            let life = if expiry.no_expiry {
                None
            } else {
                Some(bounded(expiry.expires_in.unwrap_or(DEFAULT_EXPIRY))?)
            };
            let subject = certificate_subject.map(|subject| checked_subject(&subject)).transpose()?;
            create(global, name, grants, life, subject).await
        }
        CredentialsCommand::List => list(global).await,
        CredentialsCommand::Revoke { credential } => revoke(global, &credential).await,
        CredentialsCommand::Rotate { name, grace_period, expiry } => {
            rotate(global, &name, grace_period, &expiry).await
        }
    }
}

/// Default expiry of a credential.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(90 * 86_400);

async fn create(
    global: &GlobalArgs,
    name: Name,
    grants: Vec<Grant>,
    life: Option<Duration>,
    subject: Option<String>,
) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    let created = AccessToken::generate(random);
    let secret = subject.is_none();
    let verifier = match subject {
        Some(subject) => CredentialVerifier::Certificate { certificate_subject: subject },
        None => CredentialVerifier::AccessToken { digest: created.digest.clone() },
    };
    let credential = new_credential(&created.id, name.as_str(), verifier, grants, life);
    store.put_credential(&credential).await?;
    record(store.as_ref(), "credential.create", &credential).await?;
    print_created(global, &credential, secret.then_some(&created));
    Ok(0)
}

async fn list(global: &GlobalArgs) -> Result<u8, CliError> {
    let credentials = without_dashboard_sessions(store::read(global).await?.as_ref()).await?;
    let now_ms = wall_ms();
    if global.output == OutputFormat::Json {
        output::print_json(&credentials.iter().map(|it| json_of(it, now_ms)).collect::<Vec<_>>());
    } else if credentials.is_empty() {
        output::print_line(
            "there are no credentials; try: tenure credentials create --name ci --grant 'default:read,lead'",
        );
    } else {
        output::print_text(&table(&credentials, now_ms));
    }
    Ok(0)
}

/// Credentials without the dashboard sessions, which are stored with them and end with their access tokens.
async fn without_dashboard_sessions(store: &dyn Store) -> Result<Vec<Credential>, CliError> {
    let mut credentials = store.credentials().await?;
    credentials.retain(|credential| !is_dashboard_session(credential));
    Ok(credentials)
}

async fn revoke(global: &GlobalArgs, which: &str) -> Result<u8, CliError> {
    // An access token identifies its credential too. Use its id, so that no message repeats the secret.
    let which = access_token::parse(which).map_or(which, |(id, _)| id);
    let store = store::open(global).await?;
    let credentials = without_dashboard_sessions(store.as_ref()).await?;
    let matches_name = |it: &&Credential| it.id == which || it.name == which;
    let found: Vec<_> = credentials.iter().filter(matches_name).collect();
    if found.is_empty() {
        return Err(no_such(which));
    }
    let mut revoked = Vec::new();
    for credential in found.into_iter().filter(|it| it.revoked_at_ms.is_none()) {
        let credential = Credential { revoked_at_ms: Some(wall_ms()), ..credential.clone() };
        store.put_credential(&credential).await?;
        record(store.as_ref(), "credential.revoke", &credential).await?;
        revoked.push(credential);
    }
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"revoked": revoked.iter().map(|it| &it.id).collect::<Vec<_>>()}));
    } else if revoked.is_empty() {
        output::note(global, TextStyle::Yellow, &format!("{which} was already revoked"));
    }
    for credential in revoked {
        output::note(global, TextStyle::Green, &format!("revoked {} ({})", credential.id, credential.name));
    }
    Ok(0)
}

async fn rotate(
    global: &GlobalArgs,
    name: &str,
    grace_period: Duration,
    expiry: &ExpiryArgs,
) -> Result<u8, CliError> {
    let requested = expiry.expires_in.map(bounded).transpose()?;
    let grace_ms = millis(bounded_grace(grace_period)?);
    let store = store::open(global).await?;
    let credentials = without_dashboard_sessions(store.as_ref()).await?;
    let (now_ms, known) = (wall_ms(), credentials.iter().any(|it| it.name == name || it.id == name));
    let is_token = |it: &&Credential| matches!(it.verifier, CredentialVerifier::AccessToken { .. });
    let old: Vec<_> =
        credentials.iter().filter(|it| it.name == name && it.is_valid(now_ms)).filter(is_token).collect();
    // Sorted by age, newest first.
    let Some(newest) = old.first() else {
        return Err(if known { nothing_to_rotate(name) } else { no_such(name) });
    };
    if old.iter().any(|it| it.grants != newest.grants) {
        return Err(CliError::usage(format!(
            "the access tokens named {name} have different grants, so the grants of a new one are ambiguous; create it with \
             `tenure credentials create` and revoke the others by id"
        )));
    }
    let before = newest
        .expires_at_ms
        .map(|at| Duration::from_millis((at - newest.created_at_ms).max(1).unsigned_abs()));
    let life = if expiry.no_expiry { None } else { requested.or(before) };
    let created = AccessToken::generate(random);
    let verifier = CredentialVerifier::AccessToken { digest: created.digest.clone() };
    let credential = new_credential(&created.id, name, verifier, newest.grants.clone(), life);
    store.put_credential(&credential).await?;
    for it in &old {
        let ends_at_ms = now_ms + grace_ms;
        let expires_at_ms = Some(it.expires_at_ms.map_or(ends_at_ms, |at| at.min(ends_at_ms)));
        store.put_credential(&Credential { expires_at_ms, ..(*it).clone() }).await?;
    }
    record(store.as_ref(), "credential.rotate", &credential).await?;
    print_created(global, &credential, Some(&created));
    let ids: Vec<_> = old.iter().map(|it| it.id.as_str()).collect();
    let when = if grace_ms == 0 { "now".to_owned() } else { format!("in {}", ago(0, grace_ms)) };
    output::note(global, TextStyle::Yellow, &format!("{} expires {when}", ids.join(", ")));
    Ok(0)
}

fn new_credential(
    id: &str,
    name: &str,
    verifier: CredentialVerifier,
    grants: Vec<Grant>,
    life: Option<Duration>,
) -> Credential {
    let now_ms = wall_ms();
    Credential {
        id: id.into(),
        name: name.into(),
        verifier,
        grants,
        created_at_ms: now_ms,
        created_by: whoami(),
        expires_at_ms: life.map(|life| now_ms + millis(life)),
        revoked_at_ms: None,
    }
}

async fn record(store: &dyn Store, action: &str, credential: &Credential) -> Result<(), CliError> {
    let entry = AuditEntry {
        seq: 0,
        recorded_at_ms: wall_ms(),
        principal: whoami(),
        action: action.into(),
        namespace: None,
        target: credential.id.clone(),
        detail: format!("{}: {}", credential.name, grants(credential)),
        request_id: String::new(),
    };
    Ok(store.append_audit(&entry).await?)
}

/// Prints a new credential: only the access token on stdout, the rest on stderr.
fn print_created(global: &GlobalArgs, credential: &Credential, created: Option<&AccessToken>) {
    let now_ms = wall_ms();
    if global.output == OutputFormat::Json {
        let mut value = json_of(credential, now_ms);
        if let Some(created) = created {
            value["access_token"] = json!(created.text);
        }
        return output::print_json(&value);
    }
    if let Some(created) = created {
        output::print_line(&created.text);
    }
    let until = expiry(credential, now_ms);
    let what = format!(
        "{} ({}) has the grants {}; it expires {until}",
        credential.name,
        credential.id,
        grants(credential)
    );
    output::note(global, TextStyle::Green, &what);
    let next = match created {
        Some(_) => "save the access token now: it is not shown again, and only its digest is stored",
        None => {
            "it authenticates by client certificate; the server must trust the authority that signed it (--client-ca)"
        }
    };
    output::note(global, TextStyle::Yellow, next);
}

fn table(credentials: &[Credential], now_ms: i64) -> String {
    let mut table =
        Table::new(&["id", "name", "type", "grants", "created", "created by", "expires", "state"]);
    for credential in credentials {
        let verifier = match &credential.verifier {
            CredentialVerifier::AccessToken { .. } => "access token".to_owned(),
            CredentialVerifier::Certificate { certificate_subject: subject } => subject.clone(),
        };
        let (state, style) = state(credential, now_ms);
        table.row(vec![
            (credential.id.clone(), TextStyle::Plain),
            (credential.name.clone(), TextStyle::Bold),
            (verifier, TextStyle::Plain),
            (grants(credential), TextStyle::Plain),
            (format!("{} ago", ago(credential.created_at_ms, now_ms)), TextStyle::Dim),
            (credential.created_by.clone(), TextStyle::Dim),
            (expiry(credential, now_ms), TextStyle::Plain),
            (state.to_owned(), style),
        ]);
    }
    table.render()
}

/// JSON output of a credential, without the digest.
fn json_of(credential: &Credential, now_ms: i64) -> Value {
    let (kind, subject) = match &credential.verifier {
        CredentialVerifier::AccessToken { .. } => ("access_token", None),
        CredentialVerifier::Certificate { certificate_subject: subject } => ("certificate", Some(subject)),
    };
    json!({
        "id": credential.id,
        "name": credential.name,
        "kind": kind,
        "certificate_subject": subject,
        "grants": credential.grants,
        "created_at_ms": credential.created_at_ms,
        "created_by": credential.created_by,
        "expires_at_ms": credential.expires_at_ms,
        "revoked_at_ms": credential.revoked_at_ms,
        "state": state(credential, now_ms).0,
    })
}

fn state(credential: &Credential, now_ms: i64) -> (&'static str, TextStyle) {
    match (credential.revoked_at_ms, credential.is_valid(now_ms)) {
        (Some(_), _) => ("revoked", TextStyle::Red),
        (None, true) => ("valid", TextStyle::Green),
        (None, false) => ("expired", TextStyle::Yellow),
    }
}

fn grants(credential: &Credential) -> String {
    credential.grants.iter().map(Grant::to_string).collect::<Vec<_>>().join(" ")
}

fn expiry(credential: &Credential, now_ms: i64) -> String {
    match credential.expires_at_ms {
        None => "never".into(),
        Some(at) if at > now_ms => format!("in {}", ago(now_ms, at)),
        Some(at) => format!("{} ago", ago(at, now_ms)),
    }
}

fn principal(name: &str) -> Result<Name, CliError> {
    principal_name(name).map_err(|error| CliError::usage(format!("--name: {error}")))
}

fn checked_subject(subject: &str) -> Result<String, CliError> {
    let subject = subject.trim();
    let attribute =
        subject.split_once('=').is_some_and(|(kind, value)| !kind.trim().is_empty() && !value.is_empty());
    if !attribute {
        return Err(CliError::usage(format!(
            "invalid --certificate-subject {subject:?}: use the form of RFC 4514, such as 'CN=worker-1,O=acme' (`openssl x509 -noout \
             -subject -nameopt RFC2253 -in FILE` prints it)"
        )));
    }
    Ok(subject.to_owned())
}

fn bounded(life: Duration) -> Result<Duration, CliError> {
    if life < Duration::from_millis(1) {
        return Err(CliError::usage("--expires-in must be greater than zero, such as 90d"));
    }
    if life > EXPIRY_MAX {
        return Err(CliError::usage("--expires-in is more than 100 years; use --no-expiry instead"));
    }
    Ok(life)
}

fn bounded_grace(grace_period: Duration) -> Result<Duration, CliError> {
    if grace_period > EXPIRY_MAX {
        return Err(CliError::usage(
            "--grace-period is more than 100 years; the old access token would never expire",
        ));
    }
    Ok(grace_period)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn no_such(which: &str) -> CliError {
    CliError::usage(format!(
        "no credential has the id or name {which:?}; list the credentials with `tenure credentials list`"
    ))
}

fn nothing_to_rotate(name: &str) -> CliError {
    CliError::usage(format!(
        "{name} has no valid access token to rotate; list names and states with `tenure credentials list`, or create one with `tenure credentials \
         create`"
    ))
}
