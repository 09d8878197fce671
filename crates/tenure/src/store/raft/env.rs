//! Environment of a Raft member: clock, disk and network.
//!
//! A member reaches the outside world only through these traits, including the timers and random numbers of openraft
//! (`sim_runtime`). A simulator therefore runs exactly the production code.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;

pub use super::sim_runtime::{PollDecision, SimHost, run_on_host};
use crate::runtime::Runtime;

/// Clock and network: everything a client needs.
#[derive(Clone)]
pub struct Env {
    /// Time and randomness.
    pub runtime: Arc<dyn Runtime>,
    /// Connection to the members.
    pub network: Arc<dyn Network>,
}

/// Configuration of a member.
pub struct MemberConfig {
    /// Node id.
    pub node: u64,
    /// Node ids and addresses of all members, including this one; empty for a cluster of one.
    pub peers: BTreeMap<u64, String>,
    /// Listen address, if it differs from the address in `peers`.
    pub listen: Option<String>,
    /// Number of entries after which the member writes a snapshot and truncates its log.
    pub snapshot: Option<u64>,
    /// Storage for the log and the snapshots.
    pub disk: Arc<dyn Disk>,
    /// Receives every entry when it is applied.
    pub observer: Option<EntryObserver>,
}

/// Callback with the index and the content of an applied entry.
pub type EntryObserver = Arc<dyn Fn(u64, &[u8]) + Send + Sync>;

/// A blocking disk operation.
pub type DiskOperation = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// A directory that one running member uses exclusively.
pub trait Disk: Send + Sync + 'static {
    /// Display path of a file.
    fn display_path(&self, name: &str) -> String;

    /// Return the names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Return the content of a file, or `None` if it does not exist.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Open a file for appending, create it if missing, and truncate it to `length`. The result is durable when this
    /// returns.
    fn open(&self, name: &str, length: u64) -> io::Result<Box<dyn AppendFile>>;

    /// Replace a file atomically. The result is durable when this returns.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Remove files in the given order.
    fn remove(&self, names: &[String]) -> io::Result<()>;

    /// Run a slow operation without blocking the async runtime.
    fn run_blocking(&self, act: DiskOperation) -> BoxFuture<'static, io::Result<()>>;
}

/// An append-only file.
pub trait AppendFile: Send {
    /// Append bytes. A crash may lose all or some of them until [`sync`](Self::sync) returns.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Make all written bytes durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Transport between members, and between clients and members.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Send a request and return the reply. After an error the request may or may not have been received.
    async fn request(&self, node: u64, address: &str, request: Vec<u8>) -> io::Result<Vec<u8>>;

    /// Send a request whose reply is a stream.
    async fn subscribe(
        &self,
        node: u64,
        address: &str,
        request: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>>;

    /// Listen on an address. The listener accepts requests from when this returns, for as long as the returned future
    /// is polled.
    async fn serve(
        &self,
        address: &str,
        handler: Arc<dyn RequestHandler>,
    ) -> io::Result<BoxFuture<'static, ()>>;
}

/// Handles requests from the network.
pub trait RequestHandler: Send + Sync + 'static {
    /// Handle one request.
    fn handle(&self, request: Vec<u8>) -> BoxFuture<'static, RequestReply>;
}

/// Reply to a network request.
pub enum RequestReply {
    /// One message.
    Message(Vec<u8>),
    /// A stream of messages.
    Stream(BoxStream<'static, Vec<u8>>),
    /// No reply: the connection is closed, as if the member did not run.
    NoReply,
}
