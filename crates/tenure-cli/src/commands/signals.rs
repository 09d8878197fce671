//! Signals of this process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;

/// Signals that a supervisor forwards to its child.
const FORWARDED: [i32; 6] =
    [libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH, libc::SIGALRM];

/// Handlers of the signals of this process, which replace their default actions.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    forwarded: Vec<(i32, Signal)>,
}

impl Signals {
    /// Handles SIGTERM and SIGINT.
    pub(crate) fn ending() -> Result<Signals, CliError> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            forwarded: Vec::new(),
        })
    }

    /// Handles SIGTERM, SIGINT and the forwarded signals.
    pub(crate) fn all() -> Result<Signals, CliError> {
        let mut signals = Signals::ending()?;
        for number in FORWARDED {
            signals.forwarded.push((number, signal(SignalKind::from_raw(number))?));
        }
        Ok(signals)
    }

    /// Waits for the next signal.
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
