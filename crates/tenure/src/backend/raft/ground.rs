//! What a member stands on: a clock, a disk and a network. The machine's own; or, in a simulator, others.
//!
//! Everything that a member knows of the world outside goes through here, openraft's timers and dice included ([`hosted`]). So the members that a simulator
//! runs are the very ones that ship.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;

pub use super::hosted::{Host, Turn, hosted};
use crate::runtime::Runtime;

/// A clock and a network: all that somebody who uses a cluster needs.
#[derive(Clone)]
pub struct Ground {
    /// Time and randomness.
    pub runtime: Arc<dyn Runtime>,
    /// The way to the members.
    pub network: Arc<dyn Network>,
}

/// What a member needs besides.
pub struct Seat {
    /// Its number.
    pub node: u64,
    /// All members and where they are, itself included; none if it is alone.
    pub peers: BTreeMap<u64, String>,
    /// Where it listens, if that is not where the others reach it.
    pub listen: Option<String>,
    /// After how many entries the state is written down and the log cut.
    pub snapshot: Option<u64>,
    /// What it keeps its log on.
    pub disk: Arc<dyn Disk>,
    /// Is told of each entry as it becomes part of the state.
    pub witness: Option<Witness>,
}

/// Is told the index of an entry, and what it says.
pub type Witness = Arc<dyn Fn(u64, &[u8]) + Send + Sync>;

/// Something to be done with a disk.
pub type Act = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// A folder that belongs to one member, and to nobody else while that runs.
pub trait Disk: Send + Sync + 'static {
    /// What people call a file of it.
    fn place(&self, name: &str) -> String;

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// A whole file, if there is one.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Opens a file to be appended to, and makes it if there is none; what is behind `length` is cut off. Durable when this returns.
    fn open(&self, name: &str, length: u64) -> io::Result<Box<dyn Sheet>>;

    /// Puts a new file in the place of another, whole or not at all. Durable when this returns.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Removes files, in this order.
    fn remove(&self, names: &[String]) -> io::Result<()>;

    /// Does what may take a while, where nobody waits for it but who asked.
    fn during(&self, act: Act) -> BoxFuture<'static, io::Result<()>>;
}

/// A file that is appended to.
pub trait Sheet: Send {
    /// Writes; what is written may be lost in a crash, or a part of it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// What was written is not lost any more.
    fn sync(&mut self) -> io::Result<()>;
}

/// How members, and those who use them, reach each other.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Asks a member, and brings its answer. An error tells nothing about whether it was heard.
    async fn ask(&self, node: u64, place: &str, question: Vec<u8>) -> io::Result<Vec<u8>>;

    /// Asks a member that has more than one thing to say.
    async fn listen(
        &self,
        node: u64,
        place: &str,
        question: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>>;

    /// Is somebody who can be asked at a place: from when this returns, for as long as what it returns is polled.
    async fn serve(&self, place: &str, answers: Arc<dyn Answers>) -> io::Result<BoxFuture<'static, ()>>;
}

/// Who is asked.
pub trait Answers: Send + Sync + 'static {
    /// What it says to a question.
    fn answer(&self, question: Vec<u8>) -> BoxFuture<'static, Said>;
}

/// What is said to a question.
pub enum Said {
    /// An answer.
    Once(Vec<u8>),
    /// As long as there is something to say.
    Often(BoxStream<'static, Vec<u8>>),
    /// Nothing: to who asks it is as if nobody were there.
    Nothing,
}
