//! A minimal HTTP client, as in any language.

use std::io::{Error, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::BootInstant;
use tenure::runtime::now;

/// Timeout of a response.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends one request on its own connection.
pub fn call(url: &str, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
    let host = url.strip_prefix("http://").expect("an address");
    let address = host.parse().expect("a socket's address");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nhost: {host}\r\n{kind}content-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| Error::other("no answer"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| Error::other("no status"))?, serde_json::from_str(body).unwrap_or_default()))
}

/// Number of online replicas that a server knows.
pub fn replicas(url: &str) -> usize {
    let answer = call(url, "GET", "/v1/replicas", None).map(|(_, body)| body).unwrap_or_default();
    answer["replicas"].as_array().map_or(0, |all| all.iter().filter(|one| one["online"] == true).count())
}

/// A leader over plain HTTP: it campaigns once and then sends heartbeats to any server that answers.
pub struct Plain {
    pub token: u64,
    renewed: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    task: Option<JoinHandle<()>>,
}

impl Plain {
    pub fn campaign(urls: &[String], election: &str) -> Plain {
        let wish = json!({"name": "plain", "lease_ms": 10_000, "wait_ms": 2000});
        let path = format!("/v1/elections/{election}/campaign");
        let (status, won) = call(&urls[0], "POST", &path, Some(&wish)).expect("a server");
        assert_eq!((status, &won["leading"]), (200, &json!(true)), "{won}");
        let session = won["session"].as_str().expect("a session").to_owned();
        let token = won["token"].as_u64().expect("a token");
        let (renewed, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let task = std::thread::spawn({
            let (urls, renewed, over) = (urls.to_vec(), renewed.clone(), over.clone());
            move || {
                let path = format!("/v1/sessions/{session}/heartbeat");
                let mut at = 0;
                while !over.load(Ordering::Relaxed) {
                    let sent = now();
                    match call(&urls[at % urls.len()], "POST", &path, None) {
                        Ok((200, _)) => {
                            renewed.store(sent.as_nanos(), Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(500));
                        }
                        Ok((410, _)) => return,
                        _ => at += 1,
                    }
                }
            }
        });
        Plain { token, renewed, over, task: Some(task) }
    }

    /// Waits until a heartbeat sent after this instant succeeds.
    pub fn until_renewed_since(&self, moment: BootInstant) {
        let so = || self.renewed.load(Ordering::Relaxed) > moment.as_nanos();
        super::until("the plain client has renewed", so, String::new);
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.task.take().map(JoinHandle::join);
    }
}

/// A listener that sends the same bytes to every client and is not a Tenure server.
pub struct Stranger {
    pub url: String,
}

impl Stranger {
    pub fn start(says: &str) -> Stranger {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let says = says.to_owned();
        // Ends with the process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(says.as_bytes());
            }
        });
        Stranger { url }
    }
}
