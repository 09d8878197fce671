//! Sockets, TLS, time-outs, shutting down.
