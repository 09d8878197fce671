//! Export of spans to an OpenTelemetry collector. Needs the feature `otel`, see `scripts/test`.
#![cfg(feature = "otel")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

/// Path and body of a request to the collector.
type Sent = (String, Vec<u8>);

/// Accepts requests and forwards them to the channel.
fn collect(listener: &TcpListener, sent: &Sender<Sent>) {
    for stream in listener.incoming().map_while(Result::ok) {
        let sent = sent.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            while let Some(request) = receive(&mut reader) {
                let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                let _ = sent.send(request);
            }
        });
    }
}

fn receive(reader: &mut BufReader<TcpStream>) -> Option<Sent> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|&read| read > 0)?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, body))
}

#[test]
fn a_request_to_the_server_is_exported_as_a_span() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let collector = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, sent) = channel();
    std::thread::spawn(move || collect(&listener, &sender));

    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("tenure.db").display());
    let mut server = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["serve", "--listen", "127.0.0.1:0", "--store", &store])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tenure runs");
    let lines = BufReader::new(server.stdout.take().expect("its output")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("http://")).expect("an address");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(['"', '/', ' ']).next());
    let mut stream = TcpStream::connect(address.expect("an address")).expect("it listens");
    let request = "GET /v1/elections HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it listens");
    stream.read_to_end(&mut Vec::new()).expect("it answers");

    // Buffered spans are sent on exit.
    let ended = Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
    assert!(ended.expect("kill runs").success());
    assert!(server.wait().expect("it ends").success());
    let named = |body: &[u8]| {
        let has = |text: &[u8]| body.windows(text.len()).any(|window| window == text);
        has(b"GET /v1/elections") && has(b"tenure")
    };
    let spans = sent.try_iter().filter(|(path, _)| path == "/v1/traces");
    assert!(spans.into_iter().any(|(_, body)| named(&body)), "no span of the request arrived");
}
