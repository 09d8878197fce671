//! `tenure token`: who may do what at a server.
//!
//! A secret exists in two places only: on the standard output of the command that made it, once, and with whoever it was
//! made for. Everything else that is said goes to the error stream, so that `tenure token create … > file` is all it takes
//! to keep one.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::Name;
use tenure::port::{Backend, Credential, Deed, Grant, Proof};
use tenure::runtime::{random, wall_ms};
use tenure_server::access::token::{self, Token};
use tenure_server::access::{is_dashboard_session, principal_name};

use super::leader::whoami;
use crate::args::{Format, Global, Life, TokenArgs, TokenCommand};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago};
use crate::store;

/// The longest life that is asked for by a number; beyond it, say that it never ends.
const LIFE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) async fn run(global: &Global, args: TokenArgs) -> Result<u8, Failure> {
    match args.command {
        TokenCommand::Create { name, grants, life, certificate_subject } => {
            let name = principal(&name)?;
            let life =
                if life.never_expires { None } else { Some(bounded(life.expires.unwrap_or(DEFAULT_LIFE))?) };
            let subject = certificate_subject.map(|subject| checked_subject(&subject)).transpose()?;
            create(global, name, grants, life, subject).await
        }
        TokenCommand::List => list(global).await,
        TokenCommand::Revoke { which } => revoke(global, &which).await,
        TokenCommand::Rotate { name, overlap, life } => rotate(global, &name, overlap, &life).await,
    }
}

/// How long a credential is worth something, unless somebody says otherwise.
const DEFAULT_LIFE: Duration = Duration::from_secs(90 * 86_400);

async fn create(
    global: &Global,
    name: Name,
    grants: Vec<Grant>,
    life: Option<Duration>,
    subject: Option<String>,
) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    let made = Token::generate(random);
    let secret = subject.is_none();
    let proof = match subject {
        Some(subject) => Proof::Certificate { subject },
        None => Proof::Token { digest: made.digest.clone() },
    };
    let credential = new_credential(&made.id, name.as_str(), proof, grants, life);
    store.put_credential(&credential).await?;
    record(store.as_ref(), "token.create", &credential).await?;
    tell(global, &credential, secret.then_some(&made));
    Ok(0)
}

async fn list(global: &Global) -> Result<u8, Failure> {
    let credentials = tokens(store::open(global).await?.as_ref()).await?;
    let now_ms = wall_ms();
    if global.output == Format::Json {
        output::print_json(&credentials.iter().map(|it| json_of(it, now_ms)).collect::<Vec<_>>());
    } else if credentials.is_empty() {
        output::print_line(
            "there are no tokens yet; try: tenure token create --name ci --grant 'default:read,lead'",
        );
    } else {
        output::print_text(&table(&credentials, now_ms));
    }
    Ok(0)
}

/// The credentials that people made. The sessions of the dashboard are kept among them, and end with their tokens.
async fn tokens(store: &dyn Backend) -> Result<Vec<Credential>, Failure> {
    let mut credentials = store.credentials().await?;
    credentials.retain(|credential| !is_dashboard_session(credential));
    Ok(credentials)
}

async fn revoke(global: &Global, which: &str) -> Result<u8, Failure> {
    // Who has nothing but the token itself may mean it all the same; its secret is not repeated.
    let which = token::parse(which).map_or(which, |(id, _)| id);
    let store = store::open(global).await?;
    let credentials = tokens(store.as_ref()).await?;
    let meant = |it: &&Credential| it.id == which || it.name == which;
    let found: Vec<_> = credentials.iter().filter(meant).collect();
    if found.is_empty() {
        return Err(no_such(which));
    }
    let mut revoked = Vec::new();
    for credential in found.into_iter().filter(|it| it.revoked_at_ms.is_none()) {
        let credential = Credential { revoked_at_ms: Some(wall_ms()), ..credential.clone() };
        store.put_credential(&credential).await?;
        record(store.as_ref(), "token.revoke", &credential).await?;
        revoked.push(credential);
    }
    if global.output == Format::Json {
        output::print_json(&json!({"revoked": revoked.iter().map(|it| &it.id).collect::<Vec<_>>()}));
    } else if revoked.is_empty() {
        output::note(global, Ink::Yellow, &format!("{which} was revoked already"));
    }
    for credential in revoked {
        output::note(global, Ink::Green, &format!("revoked {} ({})", credential.id, credential.name));
    }
    Ok(0)
}

async fn rotate(global: &Global, name: &str, overlap: Duration, life: &Life) -> Result<u8, Failure> {
    let asked = life.expires.map(bounded).transpose()?;
    let overlap = millis(bounded_overlap(overlap)?);
    let store = store::open(global).await?;
    let credentials = tokens(store.as_ref()).await?;
    let (now_ms, known) = (wall_ms(), credentials.iter().any(|it| it.name == name || it.id == name));
    let is_token = |it: &&Credential| matches!(it.proof, Proof::Token { .. });
    let old: Vec<_> =
        credentials.iter().filter(|it| it.name == name && it.is_valid(now_ms)).filter(is_token).collect();
    // The newest comes first.
    let Some(newest) = old.first() else {
        return Err(if known { nothing_to_rotate(name) } else { no_such(name) });
    };
    if old.iter().any(|it| it.grants != newest.grants) {
        return Err(Failure::usage(format!(
            "the tokens named {name} do not all have the same grants, so it is unclear what the new one shall have; make it \
             with `tenure token create`, and revoke the others by their ids"
        )));
    }
    let before = newest
        .expires_at_ms
        .map(|at| Duration::from_millis((at - newest.created_at_ms).max(1).unsigned_abs()));
    let life = if life.never_expires { None } else { asked.or(before) };
    let made = Token::generate(random);
    let proof = Proof::Token { digest: made.digest.clone() };
    let credential = new_credential(&made.id, name, proof, newest.grants.clone(), life);
    store.put_credential(&credential).await?;
    for it in &old {
        let ends_at_ms = now_ms + overlap;
        let expires_at_ms = Some(it.expires_at_ms.map_or(ends_at_ms, |at| at.min(ends_at_ms)));
        store.put_credential(&Credential { expires_at_ms, ..(*it).clone() }).await?;
    }
    record(store.as_ref(), "token.rotate", &credential).await?;
    tell(global, &credential, Some(&made));
    let ids: Vec<_> = old.iter().map(|it| it.id.as_str()).collect();
    let when = if overlap == 0 { "no longer".to_owned() } else { format!("for {} more", ago(0, overlap)) };
    output::note(global, Ink::Yellow, &format!("{} is good {when}", ids.join(", ")));
    Ok(0)
}

fn new_credential(
    id: &str,
    name: &str,
    proof: Proof,
    grants: Vec<Grant>,
    life: Option<Duration>,
) -> Credential {
    let now_ms = wall_ms();
    Credential {
        id: id.into(),
        name: name.into(),
        proof,
        grants,
        created_at_ms: now_ms,
        created_by: whoami(),
        expires_at_ms: life.map(|life| now_ms + millis(life)),
        revoked_at_ms: None,
    }
}

async fn record(store: &dyn Backend, action: &str, credential: &Credential) -> Result<(), Failure> {
    let deed = Deed {
        n: 0,
        at_ms: wall_ms(),
        principal: whoami(),
        action: action.into(),
        namespace: None,
        target: credential.id.clone(),
        detail: format!("{}: {}", credential.name, grants(credential)),
        request_id: String::new(),
    };
    Ok(store.record(&deed).await?)
}

/// Says what was made: the secret, this one time, on the standard output, and nothing but it.
fn tell(global: &Global, credential: &Credential, made: Option<&Token>) {
    let now_ms = wall_ms();
    if global.output == Format::Json {
        let mut value = json_of(credential, now_ms);
        if let Some(made) = made {
            value["token"] = json!(made.text);
        }
        return output::print_json(&value);
    }
    if let Some(made) = made {
        output::print_line(&made.text);
    }
    let until = expiry(credential, now_ms);
    let what =
        format!("{} ({}) may {}; it expires {until}", credential.name, credential.id, grants(credential));
    output::note(global, Ink::Green, &what);
    let next = match made {
        Some(_) => "keep the token now: it is shown this once, and only its digest is stored",
        None => {
            "its certificate is its proof; a server must trust the authority that signed it (--client-ca)"
        }
    };
    output::note(global, Ink::Yellow, next);
}

fn table(credentials: &[Credential], now_ms: i64) -> String {
    let mut table = Table::new(&["id", "name", "proof", "grants", "made", "by", "expires", "state"]);
    for credential in credentials {
        let proof = match &credential.proof {
            Proof::Token { .. } => "token".to_owned(),
            Proof::Certificate { subject } => subject.clone(),
        };
        let (state, ink) = state(credential, now_ms);
        table.row(vec![
            (credential.id.clone(), Ink::Plain),
            (credential.name.clone(), Ink::Bold),
            (proof, Ink::Plain),
            (grants(credential), Ink::Plain),
            (format!("{} ago", ago(credential.created_at_ms, now_ms)), Ink::Dim),
            (credential.created_by.clone(), Ink::Dim),
            (expiry(credential, now_ms), Ink::Plain),
            (state.to_owned(), ink),
        ]);
    }
    table.render()
}

/// For scripts: all but the digest.
fn json_of(credential: &Credential, now_ms: i64) -> Value {
    let (kind, subject) = match &credential.proof {
        Proof::Token { .. } => ("token", None),
        Proof::Certificate { subject } => ("certificate", Some(subject)),
    };
    json!({
        "id": credential.id,
        "name": credential.name,
        "kind": kind,
        "subject": subject,
        "grants": credential.grants,
        "created_at_ms": credential.created_at_ms,
        "created_by": credential.created_by,
        "expires_at_ms": credential.expires_at_ms,
        "revoked_at_ms": credential.revoked_at_ms,
        "state": state(credential, now_ms).0,
    })
}

fn state(credential: &Credential, now_ms: i64) -> (&'static str, Ink) {
    match (credential.revoked_at_ms, credential.is_valid(now_ms)) {
        (Some(_), _) => ("revoked", Ink::Red),
        (None, true) => ("valid", Ink::Green),
        (None, false) => ("expired", Ink::Yellow),
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

fn principal(name: &str) -> Result<Name, Failure> {
    principal_name(name).map_err(|error| Failure::usage(format!("--name: {error}")))
}

fn checked_subject(subject: &str) -> Result<String, Failure> {
    let subject = subject.trim();
    let attribute =
        subject.split_once('=').is_some_and(|(kind, value)| !kind.trim().is_empty() && !value.is_empty());
    if !attribute {
        return Err(Failure::usage(format!(
            "--certificate-subject {subject:?} is no subject of a certificate; write it as RFC 4514 does, such as \
             'CN=worker-1,O=acme' (`openssl x509 -noout -subject -nameopt RFC2253 -in FILE` prints it)"
        )));
    }
    Ok(subject.to_owned())
}

fn bounded(life: Duration) -> Result<Duration, Failure> {
    if life < Duration::from_millis(1) {
        return Err(Failure::usage("--expires must be after now, such as 90d"));
    }
    if life > LIFE_MAX {
        return Err(Failure::usage(
            "--expires is more than 100 years away; say --never-expires if you mean it",
        ));
    }
    Ok(life)
}

fn bounded_overlap(overlap: Duration) -> Result<Duration, Failure> {
    if overlap > LIFE_MAX {
        return Err(Failure::usage("--overlap is more than 100 years; the old secret would never go"));
    }
    Ok(overlap)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn no_such(which: &str) -> Failure {
    Failure::usage(format!(
        "there is no token with the id or name {which:?}; `tenure token list` shows those that there are"
    ))
}

fn nothing_to_rotate(name: &str) -> Failure {
    Failure::usage(format!(
        "{name} is not the name of a token that is valid, so there is none to rotate; `tenure token list` shows names and \
         states, and `tenure token create` makes a new one"
    ))
}
