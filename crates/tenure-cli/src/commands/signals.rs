//! Signals as a stream.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// Signals that a supervisor passes on to its child.
const FORWARDED: [i32; 6] =
    [libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH, libc::SIGALRM];

/// The signals of this process, taken from their default actions.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    forwarded: Vec<(i32, Signal)>,
}

impl Signals {
    /// Only the two that end us.
    pub(crate) fn ending() -> Result<Signals, Failure> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            forwarded: Vec::new(),
        })
    }

    /// Also those that are passed on.
    pub(crate) fn all() -> Result<Signals, Failure> {
        let mut signals = Signals::ending()?;
        for number in FORWARDED {
            signals.forwarded.push((number, signal(SignalKind::from_raw(number))?));
        }
        Ok(signals)
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> i32 {
        let forwarded = async {
            std::future::poll_fn(|context| {
                for (number, signal) in &mut self.forwarded {
                    if signal.poll_recv(context).is_ready() {
                        return std::task::Poll::Ready(*number);
                    }
                }
                std::task::Poll::Pending
            })
            .await
        };
        tokio::select! {
            _ = self.terminate.recv() => libc::SIGTERM,
            _ = self.interrupt.recv() => libc::SIGINT,
            number = forwarded => number,
        }
    }
}
